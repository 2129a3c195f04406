"""What can be set on an agent, beyond its parts."""

from dataclasses import dataclass
from typing import TypeGuard

from agentrt.errors import ConfigError
from agentrt.keywords import suggest_keywords

__all__ = ["ContextConfig", "ReActConfig"]

_DAY = 24 * 60 * 60


@suggest_keywords()
@dataclass(frozen=True, slots=True)
class ReActConfig:
    """How far one reply may go; each limit ends it tidily, with a `finished_reason` of its own.

    `max_iters` rounds, and then one more request for an answer in words, without tools; `max_tool_calls` in all rounds
    together; `max_seconds` of work, not counting what it waits for answers; `max_output` characters that the
    model may write; `max_depth` replies inside of each other. The user's yes counts for `answer_within` seconds.

    `max_form_attempts` is for a reply with a `structured_schema`: after so many answers that do not fit, it ends. An
    answer in words, without a tool call, is one of them; calls of other tools are not.
    """

    max_iters: int = 50
    max_tool_calls: int = 1_000
    max_seconds: float = 6 * 60 * 60
    max_output: int = 10_000_000
    max_depth: int = 8
    max_form_attempts: int = 3
    answer_within: float = 30 * _DAY

    def __post_init__(self) -> None:
        for name in ("max_iters", "max_tool_calls", "max_output", "max_depth", "max_form_attempts"):
            count: object = getattr(self, name)
            if type(count) is not int or count < 1:
                raise ConfigError(f"{type(self).__name__}({name}=...) must be a whole number from 1 up, not {count!r}")
        for name in ("max_seconds", "answer_within"):
            seconds: object = getattr(self, name)
            if not _is_real_number(seconds) or not seconds > 0:
                raise ConfigError(
                    f"{type(self).__name__}({name}=...) must be a number of seconds above 0, not {seconds!r}"
                )


@suggest_keywords()
@dataclass(frozen=True, slots=True)
class ContextConfig:
    """When a conversation that grows too long for its model is summarised, and how much of it stays.

    Both ratios are of the model's `context_size`: it is summarised when it fills more than `trigger_ratio`, and the
    newest part that fits into `reserve_ratio` is kept as it is. `instructions` are for the model that writes the
    summary, in place of the runtime's own.
    """

    trigger_ratio: float = 0.8
    reserve_ratio: float = 0.1
    instructions: str | None = None

    def __post_init__(self) -> None:
        if not (_is_real_number(self.trigger_ratio) and _is_real_number(self.reserve_ratio)):
            raise ConfigError(f"the ratios of a ContextConfig must be numbers, not {self!r}")
        if not (self.instructions is None or isinstance(self.instructions, str)):
            raise ConfigError(f"ContextConfig(instructions=...) must be a str, not {self.instructions!r:.200}")
        if not 0 <= self.reserve_ratio < self.trigger_ratio <= 1:
            raise ConfigError(
                f"ContextConfig needs 0 <= reserve_ratio < trigger_ratio <= 1, not reserve_ratio="
                f"{self.reserve_ratio!r} and trigger_ratio={self.trigger_ratio!r}"
            )


def _is_real_number(value: object) -> TypeGuard[float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
