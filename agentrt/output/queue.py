"""What agents show, for whoever reads it: a bounded queue on either event loop."""

from collections import deque
from typing import Any, Generic, TypeVar

import anyio
import anyio.lowlevel

from agentrt.errors import ConfigError

__all__ = ["MessageQueue"]

_T = TypeVar("_T")


class MessageQueue(Generic[_T]):
    """A bounded queue, first come first served on both sides, for tasks of one event loop.

    Cancelling never loses an item and never doubles one: a `put` that was cancelled has not put, a `get` that was
    cancelled has not taken. What is never closed leaves nothing behind.
    """

    __slots__ = ("_closed", "_getters", "_items", "_maxsize", "_putters")

    def __init__(self, maxsize: int = 100) -> None:
        self._maxsize = _checked(maxsize)
        self._items: deque[_T] = deque()
        self._getters: deque[anyio.Event] = deque()
        self._putters: deque[anyio.Event] = deque()
        self._closed = False

    async def put(self, item: _T) -> None:
        """Add the item, once there is room; on a closed queue return at once, since nobody waits for the item."""
        await anyio.lowlevel.checkpoint()
        if self._putters or not self._takes():
            await self._wait(self._putters)
        self._add(item)

    async def get(self) -> _T:
        """Take the oldest item, once there is one; raises `anyio.EndOfStream` when the queue is closed and empty."""
        await anyio.lowlevel.checkpoint()
        if self._getters or not self._gives():
            await self._wait(self._getters)
        return self._take()

    def put_nowait(self, item: _T) -> None:
        """Add the item; raises `anyio.WouldBlock` when there is no room, or others wait for it."""
        if self._putters or not self._takes():
            raise anyio.WouldBlock
        self._add(item)

    def get_nowait(self) -> _T:
        """Take the oldest item; raises `anyio.WouldBlock` when there is none, or others wait for it.

        Raises `anyio.EndOfStream` when the queue is closed and empty.
        """
        if self._getters or not self._gives():
            raise anyio.WouldBlock
        return self._take()

    def close(self) -> None:
        """Take nothing more: what is in the queue can still be read, and what waits for room is dropped."""
        self._closed = True
        self._call_next()

    def qsize(self) -> int:
        """Return how many items there are to take."""
        return len(self._items)

    def empty(self) -> bool:
        """Say whether there is nothing to take."""
        return not self._items

    def full(self) -> bool:
        """Say whether there is no room."""
        return len(self._items) >= self._maxsize

    def _takes(self) -> bool:
        return self._closed or not self.full()

    def _gives(self) -> bool:
        return self._closed or bool(self._items)

    def _add(self, item: _T) -> None:
        if not self._closed:
            self._items.append(item)
        self._call_next()

    def _take(self) -> _T:
        try:
            if not self._items:
                raise anyio.EndOfStream
            return self._items.popleft()
        finally:
            self._call_next()

    async def _wait(self, line: deque[anyio.Event]) -> None:
        turn = anyio.Event()
        line.append(turn)
        try:
            await turn.wait()
        except BaseException:  # cancelled: the turn goes on to the next, whether it was called already or not
            line.remove(turn)
            self._call_next()
            raise
        line.popleft()

    def _call_next(self) -> None:
        # Only ever the first of each line, who calls the next when done. Nothing is handed over while somebody
        # sleeps, so there is nothing to be lost.
        if self._getters and self._gives():
            self._getters[0].set()
        if self._putters and self._takes():
            self._putters[0].set()


def _checked(maxsize: Any) -> int:
    if type(maxsize) is not int or maxsize < 1:
        raise ConfigError(f"MessageQueue(maxsize=...) must be a whole number from 1 up, not {maxsize!r:.100}")
    return int(maxsize)
