"""What can be set on an agent, beyond its parts."""

from dataclasses import dataclass

from agentrt.errors import ConfigError

__all__ = ["ReActConfig"]


@dataclass(frozen=True, slots=True)
class ReActConfig:
    """How long one reply may go on: `max_iters` rounds, and then one more request for a text answer without tools."""

    max_iters: int = 50

    def __post_init__(self) -> None:
        if type(self.max_iters) is not int or self.max_iters < 1:
            raise ConfigError(f"ReActConfig(max_iters=...) must be a whole number from 1 up, not {self.max_iters!r}")
