"""Strict parsing of streams, which are server-sent events or lines of JSON, and of the JSON fields in them.

Everything here raises `Malformed` for invalid input, and `Transient` for input that was cut off, and quotes all of it:
the caller masks the secrets before it shortens the text, since half a secret would not be found any more.
"""

import json
import math
from codecs import getincrementaldecoder
from collections.abc import Mapping
from json import JSONDecoder
from typing import NamedTuple, TypeVar

from pydantic_core import from_json

from agentrt._runtime.text import lazy_pattern
from agentrt.errors import Malformed, Transient

_FieldValue = TypeVar("_FieldValue")

_END_OF_LINE = lazy_pattern(rb"\r\n|\n|\r")
_FIELDS = {b"data", b"event", b"id", b"retry"}


class ServerSentEvent(NamedTuple):
    """One event: its name, "" when it has none, and its data."""

    name: str
    data: bytes


class EventReader:
    """Parses server-sent events from bytes that arrive in pieces of any size.

    `stray` is the first line that belongs to no event: the text received instead, if no events came.
    """

    __slots__ = ("_data", "_name", "_rest", "stray")

    def __init__(self) -> None:
        self.stray = b""
        self._name = ""
        self._rest: list[bytes] = []
        self._data: list[bytes] = []

    def feed(self, chunk: bytes) -> list[ServerSentEvent]:
        """Return the events that are complete by now; comments and events without data are skipped."""
        # A long line may come in many chunks: they are joined once, at its end.
        self._rest.append(chunk)
        if b"\n" not in chunk and b"\r" not in chunk:
            return []
        text = b"".join(self._rest)
        # A carriage return at the end may be the first half of a line break.
        cut = max(text.rfind(b"\n"), text.rfind(b"\r", 0, len(text) - 1)) + 1
        self._rest = [text[cut:]]
        return [event for line in _END_OF_LINE.split(text[:cut])[:-1] for event in self._line(line)]

    def end(self) -> list[ServerSentEvent]:
        """End the input, and return the last events; an incomplete line belongs to no event."""
        rest = b"".join(self._rest)
        self._rest = []
        if rest.endswith(b"\r"):  # nothing follows it, so it is a complete line break
            return self._line(rest[:-1])
        self.stray = self.stray or rest.lstrip()
        return []

    def _line(self, line: bytes) -> list[ServerSentEvent]:
        if not line:
            event = ServerSentEvent(self._name, b"\n".join(self._data))
            self._name, self._data = "", []
            return [event] if event.data.strip() else []
        # The byte order mark may come only at the beginning, but no field starts with it anyway.
        field, _, value = line.removeprefix(b"\xef\xbb\xbf").partition(b":")
        if field == b"data":
            self._data.append(value.removeprefix(b" "))
        elif field == b"event":
            self._name = value.strip().decode(errors="replace")
        elif field and field not in _FIELDS and not self.stray:
            self.stray = line.strip()
        return []


class JSONLineReader:
    """Parses lines of JSON ("NDJSON"), each an event without a name, from bytes that arrive in pieces of any size."""

    __slots__ = ("_rest", "stray")

    def __init__(self) -> None:
        self.stray = b""
        self._rest: list[bytes] = []

    def feed(self, chunk: bytes) -> list[ServerSentEvent]:
        """Return the events that are complete by now; blank lines are skipped."""
        self._rest.append(chunk)
        if b"\n" not in chunk:
            return []
        *lines, rest = b"".join(self._rest).split(b"\n")
        self._rest = [rest]
        return [ServerSentEvent("", line) for line in lines if line.strip()]

    def end(self) -> list[ServerSentEvent]:
        """End the input, and return the last event: its line need not be ended, and shows itself if it was cut."""
        return self.feed(b"\n")


def parse_object(data: bytes) -> dict[str, object]:
    """Return the JSON object in the UTF-8 text; raises `Transient` for an incomplete one."""
    try:
        value = json.loads(data.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        why = "nested too deeply" if isinstance(error, RecursionError) else error
        text = data.decode(errors="replace")
        # A retry may help after a cut connection, but not with a server that does not write JSON.
        if _is_beginning(data):
            raise Transient(f"its answer breaks off within an event: {text!r}") from None
        raise Malformed(f"it answered with {text!r}, which is not valid JSON ({why})") from None
    if not isinstance(value, dict):
        raise Malformed(f"it answered with {value!r}, not with a JSON object")
    return value


def _is_beginning(data: bytes) -> bool:
    """Say whether the data is the beginning of an object, which may end in the middle of a character."""
    try:
        text = getincrementaldecoder("utf-8-sig")().decode(data).lstrip()
        from_json(text, allow_partial=True)
    except ValueError:
        return False
    if not text.startswith("{"):
        return False
    try:
        JSONDecoder().raw_decode(text)
    except ValueError:
        return True
    return False  # a complete object, with other text after it


# A missing field and `null` are the same: servers differ in this.


def text_in(fields: Mapping[str, object], name: str) -> str:
    """Return the text under `name`, "" if missing."""
    value = fields.get(name)
    return "" if value is None else _require(value, str, name, "a string")


def dict_in(fields: Mapping[str, object], name: str) -> dict[str, object]:
    """Return the object under `name`, an empty one if missing."""
    value = fields.get(name)
    return {} if value is None else _require(value, dict, name, "an object")


def list_in(fields: Mapping[str, object], name: str) -> list[dict[str, object]]:
    """Return the list of objects under `name`, an empty one if missing."""
    value = fields.get(name)
    items: list[object] = [] if value is None else _require(value, list, name, "a list")
    return [_require(item, dict, f"{name}[]", "an object") for item in items]


def count_in(fields: Mapping[str, object], name: str) -> int:
    """Return the number under `name`, 0 if missing."""
    value = fields.get(name)
    if value is None:
        return 0
    if isinstance(value, float) and math.isfinite(value):  # some languages have no other numbers
        value = int(value)
    return max(_require(value, int, name, "a whole number"), 0)


def _require(value: object, kind: type[_FieldValue], name: str, description: str) -> _FieldValue:
    if not isinstance(value, kind):
        raise Malformed(f"its {name!r} is {value!r}, not {description}")
    return value
