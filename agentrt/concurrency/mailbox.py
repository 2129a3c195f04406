"""Events on their way to the stream of a reply."""

from collections import deque
from collections.abc import Iterator
from typing import Any

import anyio

from agentrt.errors import UsageError

__all__ = ["Mailbox"]

_MAILBOX_SIZE = 64
_MAX_POSTED = 10_000


class Mailbox:
    """Events on their way from the code that makes them to the reply's stream, in order.

    `is_read` says that the reader of a `BackgroundTask` takes them; otherwise the core of the reply does, between other
    events.
    """

    __slots__ = ("_arrival", "_room", "is_read", "items")

    def __init__(self) -> None:
        self.items: deque[Any] = deque()
        self.is_read = False
        # Made only where a task waits, since an event costs more than all the rest.
        self._arrival: anyio.Event | None = None
        self._room: anyio.Event | None = None

    def post(self, item: Any) -> None:
        """Add an item at once; raises `UsageError` when ten thousand were added and none was taken."""
        if len(self.items) >= _MAX_POSTED:
            raise UsageError(f"{_MAX_POSTED} events were emitted and none was taken: is anyone reading the stream?")
        self.items.append(item)
        self.wake()

    async def put(self, item: Any) -> None:
        """Add an item as soon as there is room."""
        while len(self.items) >= _MAILBOX_SIZE:
            self._room = self._room or anyio.Event()
            await self._room.wait()
        self.items.append(item)
        self.wake()

    def take(self) -> Iterator[Any]:
        """Take items and yield them, until there are none."""
        items = self.items
        while items:
            yield items.popleft()
        self.admit_waiting()

    def admit_waiting(self) -> None:
        """Let tasks that wait in `put` proceed; called when the mailbox is empty, so that all wake at once."""
        if self._room is not None:
            self._room.set()
            self._room = None

    def keep(self, kind: type) -> None:
        """Drop all items of other types, which were left behind when the reading stopped early."""
        remaining = [item for item in self.items if isinstance(item, kind)]
        self.items.clear()
        self.items.extend(remaining)

    async def wait(self) -> None:
        """Return when an item comes, or at a call of `wake`."""
        self._arrival = anyio.Event()
        await self._arrival.wait()

    def wake(self) -> None:
        """Let `wait` return."""
        if self._arrival is not None:
            self._arrival.set()
            self._arrival = None
