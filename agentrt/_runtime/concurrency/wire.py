"""Protocols over standard input and output: each message is a line of limited length."""

import os
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

import anyio.from_thread
import anyio.lowlevel

_CHUNK_BYTES = 65_536
_KEPT_BYTES = 200  # of each end of a line that is too long


class Wire(NamedTuple):
    """The file descriptors on which the client writes and reads."""

    reads: int
    writes: int


@contextmanager
def take_stdio() -> Iterator[Wire]:
    """Keep standard input and output for the protocol alone.

    Meanwhile other code, in Python or not, prints to standard error and reads an empty input: one printed line among
    the messages would break the connection.
    """
    wire = Wire(os.dup(0), os.dup(1))
    try:
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.close(nothing)
        os.dup2(2, 1)
        yield wire
    finally:
        # Standard output stays redirected: what is printed at the end of the program is not for the client either.
        os.close(wire.writes)
        # `wire.reads` is left open: a thread may still read it, and must not read another file of that number.


class LongLine(NamedTuple):
    """A line of more bytes than are allowed: their number, and the first and the last of them."""

    size: int
    head: bytes
    tail: bytes


class Lines:
    """Splits what was read into lines of at most `limit` bytes."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._pieces: list[bytes] = []
        self._size = 0

    def feed(self, chunk: bytes) -> list[bytes | LongLine]:
        """Return the lines that the chunk completes, without blank ones."""
        *ends, rest = chunk.split(b"\n")
        found: list[bytes | LongLine] = []
        for end in ends:
            self._add(end)
            if self._size > self._limit:
                head, tail = self._pieces
                found.append(LongLine(self._size, head, tail))
            elif line := b"".join(self._pieces).strip():
                found.append(line)
            self._pieces, self._size = [], 0
        self._add(rest)
        return found

    def _add(self, piece: bytes) -> None:
        # In pieces: to join them for each chunk would copy a large message again and again.
        self._pieces.append(piece)
        self._size += len(piece)
        if self._size > self._limit:
            # Before its end has come, so that all of it is never in memory.
            line = b"".join(self._pieces)
            self._pieces = [line[:_KEPT_BYTES], line[_KEPT_BYTES:][-_KEPT_BYTES:]]


def read_in_thread(file: int, take: Callable[[bytes], Coroutine[Any, Any, None]]) -> None:
    """Have `take` called on this event loop for each chunk that can be read; an empty chunk is the end."""

    def read(token: anyio.lowlevel.EventLoopToken) -> None:
        chunk = b"-"  # anything but the empty chunk
        # The event loop may end at any moment, and this thread has nothing to do then.
        with suppress(BaseException):
            while chunk:
                try:
                    chunk = os.read(file, _CHUNK_BYTES)
                except OSError:
                    chunk = b""
                anyio.from_thread.run(take, chunk, token=token)

    # A daemon thread, since nothing ends a read, and the program must not wait for it.
    threading.Thread(target=read, args=(anyio.lowlevel.current_token(),), daemon=True).start()


def write_bytes(file: int, data: bytes) -> None:
    """Write all of the data; to be called in a thread, since a reader that does not read would stop the event loop."""
    view = memoryview(data)
    while view:
        view = view[os.write(file, view) :]
