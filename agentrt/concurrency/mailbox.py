"""Events on their way to the stream of a reply."""

from collections import deque
from collections.abc import Iterator
from typing import Any

import anyio

from agentrt.errors import UsageError

__all__ = ["Mailbox"]

_MAILBOX_SIZE = 64
_MOST_POSTED = 10_000


class Mailbox:
    """Events on their way from whoever makes them to the reply's stream, in order.

    `is_read` says that the reader of a `Host` takes them; otherwise the core of the reply does, between other events.
    """

    __slots__ = ("_freed", "_wanted", "is_read", "items")

    def __init__(self) -> None:
        self.items: deque[Any] = deque()
        self.is_read = False
        self._wanted: anyio.Event | None = None
        self._freed: anyio.Event | None = None

    def post(self, item: Any) -> None:
        """Leave an item at once; raises `UsageError` when ten thousand lie there that nobody has taken."""
        if len(self.items) >= _MOST_POSTED:
            raise UsageError(f"{_MOST_POSTED} events were emitted and none was taken: is anyone reading the stream?")
        self.items.append(item)
        self.wake()

    async def put(self, item: Any) -> None:
        """Leave an item as soon as there is room."""
        while len(self.items) >= _MAILBOX_SIZE:
            self._freed = self._freed or anyio.Event()
            await self._freed.wait()
        self.items.append(item)
        self.wake()

    def take(self) -> Iterator[Any]:
        """Yield what is there, until nothing is."""
        items = self.items
        while items:
            yield items.popleft()
        if self._freed is not None:
            self._freed.set()
            self._freed = None

    def keep(self, kind: type) -> None:
        """Drop everything else: what was left behind when the reading stopped early."""
        kept = [item for item in self.items if isinstance(item, kind)]
        self.items.clear()
        self.items.extend(kept)

    async def wait(self) -> None:
        """Return when something is there, or at a call of `wake`."""
        self._wanted = anyio.Event()
        await self._wanted.wait()

    def wake(self) -> None:
        """Let `wait` return."""
        if self._wanted is not None:
            self._wanted.set()
            self._wanted = None
