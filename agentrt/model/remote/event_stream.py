"""The binary event streams of AWS: frames with a length, headers, a payload and checksums."""

import json
from collections.abc import Iterator
from struct import Struct
from zlib import crc32

from agentrt._runtime.text import lazy_pattern
from agentrt.errors import Malformed
from agentrt.model.remote.provider_errors import json_or_text
from agentrt.model.remote.sse import ServerSentEvent

_PRELUDE = Struct(">III")  # the lengths of the frame and of its headers, and the checksum of both
_CHECKSUM = Struct(">I")
_MAX_FRAME = 24 * 1024 * 1024  # bytes, the limit of AWS's own SDKs
_NAME_OF_EVENT = lazy_pattern(r"[A-Za-z][A-Za-z0-9]{0,63}")
# The sizes of a header's value, by its type; texts and bytes carry their own.
_SIZES = {0: 0, 1: 0, 2: 1, 3: 2, 4: 4, 5: 8, 8: 8, 9: 16}
_TEXT_TYPE = 7
_WITH_LENGTH = (6, _TEXT_TYPE)


class FrameReader:
    """Parses frames from bytes that arrive in pieces of any size.

    An event becomes an object with the payload under its name, as AWS's SDKs show it, and an exception becomes an event
    with the name "error". A frame that is damaged or too long is `Malformed` once the events before it have been read.
    """

    __slots__ = ("_rest", "_wanted", "stray")

    def __init__(self) -> None:
        self.stray = b""
        self._rest = bytearray()
        self._wanted = _PRELUDE.size

    def feed(self, chunk: bytes) -> Iterator[ServerSentEvent]:
        """Return the events that are complete by now, each parsed when it is asked for."""
        self._rest += chunk
        while len(self._rest) >= self._wanted:
            # First the prelude: nobody waits for the rest of a frame whose length is wrong.
            size, size_of_headers, checksum = _PRELUDE.unpack_from(self._rest)
            if crc32(self._rest[:8]) != checksum:
                raise Malformed("it sent a frame whose lengths do not match their checksum")
            if not _PRELUDE.size + size_of_headers + _CHECKSUM.size <= size <= _MAX_FRAME:
                raise Malformed(f"it announced a frame of {size} bytes with {size_of_headers} bytes of headers")
            if len(self._rest) < size:
                self._wanted = size
                return
            frame = bytes(self._rest[:size])
            del self._rest[:size]
            self._wanted = _PRELUDE.size
            if crc32(frame[: -_CHECKSUM.size]) != _CHECKSUM.unpack_from(frame, size - _CHECKSUM.size)[0]:
                raise Malformed("it sent a frame that does not match its checksum")
            start = _PRELUDE.size + size_of_headers
            yield self._event(self._read_headers(frame[_PRELUDE.size : start]), frame[start : -_CHECKSUM.size])

    def end(self) -> Iterator[ServerSentEvent]:
        """End the input; an incomplete frame is not an event."""
        return iter(())

    def _event(self, headers: dict[str, str], payload: bytes) -> ServerSentEvent:
        kind = headers.get(":message-type", "event")
        name = headers.get(":event-type", "") if kind == "event" else headers.get(":exception-type", "")
        if kind == "event":
            if not _NAME_OF_EVENT.fullmatch(name):
                raise Malformed(f"it sent a frame of the type {name!r:.100}, which is not the name of an event")
            return ServerSentEvent("", b'{"%s":%s}' % (name.encode(), payload.strip() or b"{}"))
        fields = json_or_text(payload.decode(errors="replace"))
        if not isinstance(fields, dict):
            fields = {"message": fields or headers.get(":error-message", "")}
        return ServerSentEvent("error", json.dumps({**fields, "type": name or headers.get(":error-code", "")}).encode())

    def _read_headers(self, data: bytes) -> dict[str, str]:
        """Return the headers that are texts."""
        headers: dict[str, str] = {}
        place = 0
        while place < len(data):
            # A length is one byte for a name and two for a value; what lies behind the end counts as missing.
            name_end = place + 1 + data[place]
            kind = data[name_end] if name_end < len(data) else -1
            start = name_end + 1
            if kind in _WITH_LENGTH:
                start += 2
                end = start + int.from_bytes(data[start - 2 : start], "big")
            else:
                end = start + _SIZES.get(kind, len(data))
            if end > len(data):
                raise Malformed("it sent a frame whose headers cannot be read")
            if kind == _TEXT_TYPE:
                name = data[place + 1 : name_end].decode(errors="replace")
                headers[name] = data[start:end].decode(errors="replace")
            place = end
        return headers
