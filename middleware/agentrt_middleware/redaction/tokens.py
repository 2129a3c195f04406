"""Reversible tokens: handles of the conversation, which the runtime turns into values again where that is allowed."""

import re
from collections.abc import Sequence
from functools import cache

from agentrt.agent import AgentBase
from agentrt.types import FlowLabel
from agentrt_middleware.redaction.detectors import Pattern
from agentrt_middleware.redaction.text_redactor import Engine, TextRedactor

_TOKEN = re.compile(r"<[A-Z][A-Z0-9_]{0,63}_[0-9]{1,9}_[0-9a-f]{8}>")


@cache
def _token_engine() -> Engine:
    return Engine([Pattern("token", _TOKEN.pattern)])


class Tokens:
    """The tokens of a conversation, such as `<EMAIL_1_a1b2c3d4>`, and where they become values."""

    def __init__(self, agent: AgentBase, restore: Sequence[str]) -> None:
        self._agent = agent
        self._restore = restore

    def token(self, name: str, value: str) -> str:
        """Return the token of the value, the same each time."""
        # Trusted and for anyone: a token keeps a value from the model, and says nothing of who may have written it.
        return self._agent.hold(value, FlowLabel(), name, self._restore)  # type: ignore[arg-type]  # checked places

    @property
    def restores_output(self) -> bool:
        """Whether this layer puts values into the output: for an agent with a loop, the runtime does."""
        return "output" in self._restore and not self._agent.runs_reply_loop

    def restore_arguments(self, text: str) -> str:
        """Return text in a call's arguments with its values."""
        return str(self._agent.released(text, "tools"))

    def restore(self, text: str) -> str:
        """Return text of the output with its values."""
        return str(self._agent.released(text, "output"))

    def restoring(self) -> TextRedactor:
        """Return the same for what comes in pieces."""
        return TextRedactor(_token_engine(), lambda text, _: self.restore(text))
