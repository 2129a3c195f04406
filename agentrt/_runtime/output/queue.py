"""A bounded queue for printed messages, on either event loop."""

from collections import deque
from typing import Generic, TypeVar

import anyio
import anyio.lowlevel

from agentrt._runtime.options import check_whole

_QueueItem = TypeVar("_QueueItem")


class MessageQueue(Generic[_QueueItem]):
    """A bounded queue, first come first served on both sides, for tasks of one event loop.

    Cancelling never loses an item and never doubles one: a `put` that was cancelled has not put, a `get` that was
    cancelled has not taken. A queue that is never closed leaves nothing behind.
    """

    __slots__ = ("_closed", "_getters", "_items", "_maxsize", "_putters")

    def __init__(self, maxsize: int = 100) -> None:
        self._maxsize = check_whole("MessageQueue(maxsize=...)", maxsize)
        self._items: deque[_QueueItem] = deque()
        self._getters: deque[anyio.Event] = deque()
        self._putters: deque[anyio.Event] = deque()
        self._closed = False

    async def put(self, item: _QueueItem) -> None:
        """Add the item once there is room; a closed queue drops it at once, since nobody waits for it."""
        await anyio.lowlevel.checkpoint()
        if self._putters or not self._has_room():
            await self._wait_in(self._putters)
        self._add(item)

    async def get(self) -> _QueueItem:
        """Take the oldest item, once there is one; raises `anyio.EndOfStream` when the queue is closed and empty."""
        await anyio.lowlevel.checkpoint()
        if self._getters or not self._has_item():
            await self._wait_in(self._getters)
        return self._take()

    def put_nowait(self, item: _QueueItem) -> None:
        """Add the item; raises `anyio.WouldBlock` when there is no room, or when others wait for room."""
        if self._putters or not self._has_room():
            raise anyio.WouldBlock
        self._add(item)

    def get_nowait(self) -> _QueueItem:
        """Take the oldest item; raises `anyio.WouldBlock` when the queue is empty, or when others wait for an item.

        Raises `anyio.EndOfStream` when the queue is closed and empty.
        """
        if self._getters or not self._has_item():
            raise anyio.WouldBlock
        return self._take()

    def close(self) -> None:
        """Take no more items: those in the queue can still be read, and those that wait for room are dropped."""
        self._closed = True
        self._call_next()

    def qsize(self) -> int:
        """Return the number of items."""
        return len(self._items)

    def empty(self) -> bool:
        """Say whether it is empty."""
        return not self._items

    def full(self) -> bool:
        """Say whether there is no room."""
        return len(self._items) >= self._maxsize

    def _has_room(self) -> bool:
        return self._closed or not self.full()

    def _has_item(self) -> bool:
        return self._closed or bool(self._items)

    def _add(self, item: _QueueItem) -> None:
        if not self._closed:
            self._items.append(item)
        self._call_next()

    def _take(self) -> _QueueItem:
        try:
            if not self._items:
                raise anyio.EndOfStream
            return self._items.popleft()
        finally:
            self._call_next()

    async def _wait_in(self, line: deque[anyio.Event]) -> None:
        turn = anyio.Event()
        line.append(turn)
        try:
            await turn.wait()
        except BaseException:  # cancelled: the turn passes to the next in line, even if it had already come
            line.remove(turn)
            self._call_next()
            raise
        line.popleft()

    def _call_next(self) -> None:
        # Only the first of each line is ever called, and calls the next when it is done. No item is given to a task
        # that sleeps, so none can be lost with one that is cancelled.
        if self._getters and self._has_item():
            self._getters[0].set()
        if self._putters and self._has_room():
            self._putters[0].set()
