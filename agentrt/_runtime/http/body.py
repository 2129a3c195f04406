"""The body of a response: decoded in slices, limited in size, and closed completely."""

import zlib
from collections.abc import AsyncIterator
from contextlib import suppress
from datetime import timedelta

import anyio
import httpx2

from agentrt._runtime.http.limits import CLOSE_SECONDS, MAX_BYTES

_DECODED = ("gzip", "x-gzip", "deflate")
_SLICE = 65_536
_GZIP_BITS, _DEFLATE_BITS, _BARE_DEFLATE_BITS = 31, 15, -15


class RefusedBody(httpx2.StreamError):
    """The body cannot be decoded, or is too long; a class of httpx2, since the SDK of MCP reports such errors."""

    def __init__(self, message: str, *, is_too_long: bool = False) -> None:
        super().__init__(message)
        self.is_too_long = is_too_long


class _Decoder:
    """Decodes gzip, or deflate with or without its frame."""

    def __init__(self, encoding: str) -> None:
        self._encoding = encoding
        self._waiting = b""  # input not decoded yet
        self._has_output = False  # zlib may hold output that did not fit into the last slice
        self._zlib: zlib._Decompress | None = None

    def feed(self, data: bytes) -> None:
        self._waiting += data

    def next_slice(self) -> bytes:
        """Return the next bytes of the output, at most `_SLICE`; `b""` when more input is needed."""
        if self._zlib is None:
            if len(self._waiting) < 2:
                return b""
            self._zlib = zlib.decompressobj(self._window_bits())
        if self._zlib.eof or not (self._waiting or self._has_output):
            self._waiting = b""  # data after the end is ignored
            return b""
        try:
            decoded = self._zlib.decompress(self._waiting, _SLICE)
        except zlib.error:
            raise RefusedBody(f"the answer cannot be decoded as {self._encoding}") from None
        self._waiting = self._zlib.unconsumed_tail
        self._has_output = len(decoded) == _SLICE
        return decoded

    def _window_bits(self) -> int:
        if self._encoding != "deflate":
            return _GZIP_BITS
        first, second = self._waiting[:2]
        is_framed = first & 0x0F == zlib.DEFLATED and (first * 256 + second) % 31 == 0
        return _DEFLATE_BITS if is_framed else _BARE_DEFLATE_BITS


class LimitedBody(httpx2.AsyncByteStream):
    """The decoded bytes of a response, at most `max_bytes` of them; reading raises `RefusedBody` for any other."""

    def __init__(self, stream: httpx2.AsyncByteStream, encodings: list[str]) -> None:
        self.max_bytes: float = MAX_BYTES
        self.size = 0
        self._stream = stream
        self._chunks = aiter(stream)
        self._encodings = encodings
        self._decoder = _Decoder(encodings[0]) if encodings else None
        self._received = 0
        self._is_closed = False

    @property
    def elapsed(self) -> timedelta | None:
        """The time that the response took, measured by its client."""
        return getattr(self._stream, "elapsed", None)

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        piece = await anext(self._chunks) if self._decoder is None else await self._next_slice(self._decoder)
        self.size += len(piece)
        self._check(self.size)
        return piece

    async def _next_slice(self, decoder: _Decoder) -> bytes:
        if len(self._encodings) > 1 or self._encodings[0] not in _DECODED:
            raise RefusedBody(f"the answer is encoded as {', '.join(self._encodings)!r:.100}, not as gzip or deflate")
        while not (piece := decoder.next_slice()):
            chunk = await anext(self._chunks)
            self._received += len(chunk)
            self._check(self._received)  # endless input may have no output
            decoder.feed(chunk)
        return piece

    def _check(self, size: int) -> None:
        if size > self.max_bytes:
            raise RefusedBody(f"the answer has more than {self.max_bytes:,} bytes", is_too_long=True)

    async def aclose(self) -> None:
        """Close the response, even if it was not read to its end and its task is cancelled."""
        if self._is_closed:
            return
        self._is_closed = True
        # Shielded, since a caller that is being cancelled must not leave the connection open; limited, since the server
        # may not answer any more.
        with anyio.move_on_after(CLOSE_SECONDS, shield=True):
            try:
                # Closing the generators of an HTTP client from outside leaves their inner ones suspended; a read that
                # is cancelled ends them all.
                with anyio.CancelScope() as scope, suppress(Exception):
                    scope.cancel()
                    while True:
                        await anext(self._chunks)
            finally:
                await self._stream.aclose()


async def limit_body(response: httpx2.Response) -> None:
    """Decode and limit the body of the response here; a response hook for httpx2's clients."""
    if isinstance(response.stream, LimitedBody) or not isinstance(response.stream, httpx2.AsyncByteStream):
        return
    names = response.headers.get_list("content-encoding", split_commas=True)
    encodings = [name for name in (name.strip().lower() for name in names) if name not in ("", "identity")]
    response.headers.pop("content-encoding", None)  # otherwise the client decodes it again, without a limit
    response.stream = LimitedBody(response.stream, encodings)
