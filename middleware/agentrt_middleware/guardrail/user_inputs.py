"""What users have said in a conversation: what has been judged of it, and what is no longer shown to the model."""

from dataclasses import replace
from typing import Any

from agentrt.message import Msg, TextBlock

__all__ = ["UserInputs"]

_WITHHELD = "[withheld by a guardrail]"


class UserInputs:
    """The messages of users; `data` is what is saved of it with the conversation.

    `passed` is the id of the newest message that was judged, so that each is judged once, and `shown` the text that
    requests have in the place of a message's own, by its id.
    """

    def __init__(self, data: dict[str, Any]) -> None:
        self._data = data

    def new_messages(self, messages: list[Msg]) -> list[Msg]:
        """Return the messages of users that have not been judged, the oldest first."""
        passed = self._data.get("passed")
        new: list[Msg] = []
        for message in reversed(messages):
            if message.id == passed:
                break
            if message.role == "user" and message.get_text_content():
                new.append(message)
        return new[::-1]

    def accept(self, message: Msg) -> None:
        """Remember that the message has been judged, and those before it."""
        self._data["passed"] = message.id

    def replace(self, message: Msg, text: str) -> None:
        """Let requests have this text in the place of the message's own."""
        self._data.setdefault("shown", {})[message.id] = text

    def withhold(self, message: Msg) -> None:
        """Let no request have the message any more."""
        self._data.setdefault("withheld", []).append(message.id)
        self._data["passed"] = message.id

    def apply(self, messages: list[Msg]) -> list[Msg]:
        """Return the messages as requests may have them."""
        withheld, shown = self._data.get("withheld", ()), self._data.get("shown", {})
        if not withheld and not shown:
            return messages
        return [
            replace(message, content=_WITHHELD)
            if message.id in withheld
            else _with_text(message, shown[message.id])
            if message.id in shown
            else message
            for message in messages
        ]


def _with_text(message: Msg, text: str) -> Msg:
    others = [block for block in message.get_content_blocks() if not isinstance(block, TextBlock)]
    return replace(message, content=[TextBlock(text), *others])
