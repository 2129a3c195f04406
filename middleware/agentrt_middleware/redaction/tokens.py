"""Reversible tokens: which value each of them stands for, in one conversation."""

import re
from collections.abc import Collection
from functools import cache
from secrets import token_hex
from typing import Any

from agentrt_middleware.redaction.detectors import Pattern
from agentrt_middleware.redaction.text_redactor import Engine, TextRedactor

__all__ = ["TokenTable"]

_TOKEN = re.compile(r"<([A-Z][A-Z0-9_]{0,63})_([0-9]{1,9})_([0-9a-f]{8})>")
_TAG_FORM = re.compile("[0-9a-f]{8}")


@cache
def _token_engine() -> Engine:
    return Engine([Pattern("token", _TOKEN.pattern)])


class TokenTable:
    """The tokens of a conversation, kept in `data`, which is saved with its state.

    A token is `<EMAIL_1_a1b2c3d4>`: the detector, a number, and the tag of this conversation. What looks like a token
    and is not in the table stays as it is.
    """

    def __init__(self, data: dict[str, Any]) -> None:
        if not self._is_table(data):  # new, or from a damaged state
            data.clear()
            data.update(tag=token_hex(4), values={})
        self._tag: str = data["tag"]
        self._values: dict[str, list[str]] = data["values"]
        self._numbers: dict[tuple[str, str], int] = {}
        self._read: dict[str, int] = {}  # how many values of each name are among the numbers
        for name in self._values:
            self._read_new(name)

    def token(self, name: str, value: str) -> str:
        """Return the token of the value, the same each time."""
        number = self._numbers.get((name, value))
        if number is None:
            values = self._values.setdefault(name, [])
            # Another hook has a table of its own over the same data, and may have added the value since.
            self._read_new(name)
            if (name, value) not in self._numbers:
                values.append(value)
                self._read_new(name)
            number = self._numbers[name, value]
        return f"<{name}_{number}_{self._tag}>"

    def _read_new(self, name: str) -> None:
        values, read = self._values[name], self._read.get(name, 0)
        self._numbers.update({(name, value): number for number, value in enumerate(values[read:], read + 1)})
        self._read[name] = len(values)

    def restore(self, text: str) -> str:
        """Return the text with the values of this conversation in the place of their tokens."""
        return self.restoring().end(text) if self._tag in text else text  # most texts hold no token

    def restoring(self) -> TextRedactor:
        """Return the same for what comes in pieces."""
        return TextRedactor(_token_engine(), self._value)

    def _value(self, text: str, _: Collection[int]) -> str:
        match = _TOKEN.fullmatch(text)
        # Of another conversation, or made up: the tag is drawn at random, so that nobody can guess a token.
        if match is None or match[3] != self._tag:
            return text
        values = self._values.get(match[1], [])
        return values[int(match[2]) - 1] if 0 < int(match[2]) <= len(values) and match[2][0] != "0" else text

    def _is_table(self, data: dict[str, Any]) -> bool:
        tag, values = data.get("tag"), data.get("values")
        if not isinstance(tag, str) or not _TAG_FORM.fullmatch(tag) or not isinstance(values, dict):
            return False
        return all(
            isinstance(name, str) and isinstance(known, list) and all(isinstance(value, str) for value in known)
            for name, known in values.items()
        )
