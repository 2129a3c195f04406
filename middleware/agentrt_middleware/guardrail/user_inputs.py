"""What users have said in a conversation: what has been judged of it, and what the model does not see any more."""

from dataclasses import replace
from typing import Any

from agentrt.message import Msg, TextBlock

__all__ = ["UserInputs"]

_WITHHELD = "[withheld by a guardrail]"


class UserInputs:
    """The messages of users; `data` is what is saved of it with the conversation.

    `passed` is the id of the newest message that was judged, so that each is judged once, `replacements` the text that
    requests have in the place of a message's own, by its id, and `withheld` the ids of those that no request has.
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
        self._data.setdefault("replacements", {})[message.id] = text

    def withhold(self, message: Msg) -> None:
        """Let no request have the message any more."""
        self._data.setdefault("withheld", []).append(message.id)
        self._data["passed"] = message.id

    def apply(self, messages: list[Msg]) -> list[Msg]:
        """Return the messages as requests may have them."""
        withheld, replacements = self._data.get("withheld", ()), self._data.get("replacements", {})
        if not withheld and not replacements:
            return messages
        allowed: list[Msg] = []
        for message in messages:
            if message.id in withheld:
                message = replace(message, content=_WITHHELD)
            elif message.id in replacements:
                others = [block for block in message.get_content_blocks() if not isinstance(block, TextBlock)]
                message = replace(message, content=[TextBlock(replacements[message.id]), *others])
            allowed.append(message)
        return allowed
