"""Simulated users: a model that pursues a goal in a conversation with the agent."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from agentrt.errors import ConfigError, UsageError
from agentrt.evaluation.spending import Asker, SpendingAccount, is_text
from agentrt.model import ChatModelBase
from agentrt.types import JSONObject

_MAX_TURNS = 1_000
_USER_PROMPT = (
    "You play a user who talks to an assistant. Your goal: {goal}\n"
    "You see the conversation so far. Write the user's next message, short and in the first person. Do not help the "
    "assistant, and do not invent facts that the goal does not have. When the goal is reached, or cannot be reached, "
    "answer with is_done=true."
)


@dataclass
class UserTurn:
    """The next message of a simulated user, or the end of the conversation."""

    message: str
    is_done: bool


class SimulatedUser:
    """A user whose messages a model writes, until the `goal` is reached or `max_turns` messages are sent."""

    def __init__(self, model: ChatModelBase | str, goal: str, max_turns: int = 10) -> None:
        if not is_text(goal):
            raise ConfigError(f"SimulatedUser(goal=...) must be a str, not {goal!r:.100}")
        if type(max_turns) is not int or not 1 <= max_turns <= _MAX_TURNS:
            raise ConfigError(
                f"SimulatedUser(max_turns=...) must be an int from 1 to {_MAX_TURNS}, not {max_turns!r:.50}"
            )
        self._asker = Asker("SimulatedUser(model)", model)
        self._spec = model if isinstance(model, str) else None
        self.goal, self.max_turns = goal, max_turns

    def __repr__(self) -> str:
        return f"SimulatedUser({self._asker.model!r:.60}, {self.goal!r:.60}, max_turns={self.max_turns})"

    async def next_message(self, conversation: Sequence[tuple[str, str]], account: SpendingAccount) -> str | None:
        """Return the next message, given the speakers and texts so far; `None` at the end."""
        lines = "\n\n".join(f"{speaker}: {text}" for speaker, text in conversation)
        text = lines or "The conversation has not started: write the first message."
        turn = await self._asker.ask("user", _USER_PROMPT.format(goal=self.goal), text, UserTurn, account)
        return None if turn.is_done else turn.message

    def to_json(self) -> JSONObject:
        """Return the user as JSON; raises `UsageError` for a model that is not named by a str."""
        if self._spec is None:
            raise UsageError(
                f"SimulatedUser({self._asker.model!r:.60}, ...) has a model object, which a file cannot hold: name it"
            )
        return {"model": self._spec, "goal": self.goal, "max_turns": self.max_turns}

    @classmethod
    def from_json(cls, value: Any) -> "SimulatedUser":
        """Return the user that `to_json` wrote; raises `ConfigError` for anything else."""
        if not isinstance(value, dict) or not set(value) <= {"model", "goal", "max_turns"} or len(value) < 2:
            raise ConfigError(f"a simulated user has a model, a goal and max_turns, not {value!r:.100}")
        return cls(**{"model": "", "goal": "", **value})
