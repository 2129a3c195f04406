"""The format of a session's file: a log of saves; each save appends its changes, in one or more lines.

The first line has the format, its version and the session's id. Each later line is a SHA-256 in hex, a space, and
the hashed text: the revision, a space, and a JSON object.

    {"at":2,"sizes":[20,31],"rest_size":99,"new":[...],"rest":{...}}

`at` is how many of the earlier messages stay, `new` those that follow them, `rest` the state without its messages.
The sizes are those of the messages and of the rest, in bytes. A line without `rest` is continued by the next one.
`sed -n 2p FILE | cut -c 66- | tr -d '\\n' | sha256sum` checks the second line by hand.
"""

from collections.abc import Sequence
from contextlib import suppress
from hashlib import sha256
from json import dumps
from typing import NamedTuple

from pydantic_core import from_json

from agentrt.errors import SessionCorrupt
from agentrt.types import JSONObject

CHECKSUM_SIZE = 64
_MAX_IN_LINE = 100  # messages: a line is parsed in one piece
_NEW, _REST = b',"new":[', b',"rest":'


class JournalContents(NamedTuple):
    """The content of a journal: the last saved state.

    `last_line` is where the last line of that save begins in the file, and `end` where it ends. The rest is a part
    of a save that a crash cut off.
    """

    revision: int
    messages: list[bytes]
    rest: bytes
    last_line: int
    end: int


class _Line(NamedTuple):
    revision: int
    start: int
    messages: list[bytes]
    rest: bytes | None


def encode_head(file_format: str, version: int, session_id: str) -> bytes:
    """Return the first line of a journal."""
    return dumps({"format": file_format, "version": version, "session_id": session_id}).encode() + b"\n"


def encode_lines(revision: int, start: int, messages: Sequence[bytes], rest: bytes) -> list[bytes]:
    """Return the lines of one save, which puts these messages after the first `start`."""
    firsts = range(0, len(messages), _MAX_IN_LINE) or range(1)
    lines: list[bytes] = []
    for first in firsts:
        part = messages[first : first + _MAX_IN_LINE]
        sizes = ",".join(str(len(message)) for message in part).encode()
        size, end = (b',"rest_size":%d' % len(rest), _REST + rest) if first == firsts[-1] else (b"", b"")
        head = b'%d {"at":%d,"sizes":[%s]%s' % (revision, start + first, sizes, size)
        text = b"".join([head, _NEW, b",".join(part), b"]", end, b"}"])
        lines.append(b"".join([sha256(text).hexdigest().encode(), b" ", text, b"\n"]))
    return lines


def parse_lines(data: bytes, first: int, damage: SessionCorrupt) -> JournalContents:
    """Return the content of the lines from that position on; raises `damage` if a line is damaged.

    Only the data after the last complete save may be cut off, as a crash cuts off an append.
    """
    found: JournalContents | None = None
    messages: list[bytes] = []
    position, revision, is_open = first, 0, False
    while (end := data.find(b"\n", position) + 1) > 0:
        line = _parse_line(data[position : end - 1])
        if line is None or line.start > len(messages):
            raise damage
        # The lines of one save share its revision, which is higher than those of all earlier saves.
        if line.revision != revision if is_open else line.revision <= revision:
            raise damage
        del messages[line.start :]
        messages += line.messages
        revision, is_open = line.revision, line.rest is None
        if line.rest is not None:
            found = JournalContents(revision, messages, line.rest, position, end)
        position = end
    if found is None or _is_longer_than_a_line(data[position:]):
        raise damage
    if is_open:  # the lines of the incomplete save have changed the messages
        return parse_lines(data[: found.end], first, damage)
    return found


def _parse_line(line: bytes) -> _Line | None:
    checksum, _, text = line.partition(b" ")
    if sha256(text).hexdigest().encode() != checksum:
        return None
    number, _, body = text.partition(b" ")
    head, _, tail = body.partition(_NEW)  # only numbers precede it
    try:
        about = from_json(head + b"}")
        messages, position = [], 0
        for size in about["sizes"]:
            messages.append(tail[position : position + size])
            position += size + 1
        rest_size = about.get("rest_size")
        rest = None if rest_size is None else tail[len(tail) - 1 - rest_size : -1]
        return _Line(int(number), about["at"], messages, rest)
    except (AttributeError, KeyError, TypeError, ValueError):  # by someone who can compute a checksum
        return None


def _is_longer_than_a_line(tail: bytes) -> bool:
    """Say whether the last line, which has no line end, is too long: then its end is damaged, not missing."""
    head, separator, rest = tail.partition(_NEW)
    if not separator:
        return False
    with suppress(AttributeError, KeyError, TypeError, ValueError):
        about = from_json(b"{" + head.partition(b"{")[2] + b"}")
        size: int = sum(about["sizes"]) + max(0, len(about["sizes"]) - 1) + len("]}")
        if "rest_size" in about:
            size += len(_REST) + about["rest_size"]
        return len(rest) > size
    return False


def parse_json_line(line: bytes) -> JSONObject:
    """Return the JSON object in the line, an empty one for anything else."""
    with suppress(ValueError):
        if isinstance(parsed := from_json(line), dict):
            return parsed
    return {}
