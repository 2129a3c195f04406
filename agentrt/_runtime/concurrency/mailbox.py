"""Events on their way to the stream of a reply."""

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any

from agentrt._runtime.concurrency.event_loop import Event, new_event
from agentrt.errors import UsageError

_MAILBOX_SIZE = 64
_MAX_POSTED = 10_000
_NOTHING: deque[Any] = deque(maxlen=0)  # an empty deque takes as much memory as ten events


class EventSource:
    """An item that stands for the events of something that its reader tells in another way, if it has one."""

    __slots__ = ()

    def events(self) -> Iterable[Any]:
        raise NotImplementedError


class Mailbox:
    """Events on their way from the code that makes them to the reply's stream, in order.

    `is_read` says that the reader of a `BackgroundTask` takes them; otherwise the core of the reply does, between other
    events.
    """

    # Defaults of the class: every reply has a mailbox, and in hardly any of them is anything posted. The two events are
    # made only where a task waits, since one costs more than all the rest.
    is_read = False
    _arrival: Event | None = None
    _room: Event | None = None

    def __init__(self) -> None:
        self.items: deque[Any] = _NOTHING  # not on the class, since it is looked at with each event

    def post(self, item: Any) -> None:
        """Add an item at once; raises `UsageError` when ten thousand were added and none was taken."""
        if len(self.items) >= _MAX_POSTED:
            raise UsageError(f"{_MAX_POSTED} events were emitted and none was taken: is anyone reading the stream?")
        self._add(item)

    async def put(self, item: Any) -> None:
        """Add an item as soon as there is room."""
        while len(self.items) >= _MAILBOX_SIZE:
            if self._room is None:  # an event of trio is neither true nor false
                self._room = new_event()
            await self._room.wait()
        self._add(item)

    def _add(self, item: Any) -> None:
        if self.items is _NOTHING:
            self.items = deque()
        self.items.append(item)
        self.wake()

    def take(self) -> Iterator[Any]:
        """Take items and yield them as events, until there are none."""
        while self.items:
            item = self.items.popleft()
            if isinstance(item, EventSource):
                yield from item.events()
            else:
                yield item
        self.admit_waiting()

    def admit_waiting(self) -> None:
        """Let tasks that wait in `put` proceed; called when the mailbox is empty, so that all wake at once."""
        if self._room is not None:
            self._room.set()
            self._room = None

    def keep(self, kind: type) -> None:
        """Drop all items of other types, which were left behind when the reading stopped early."""
        if self.items:
            self.items = deque(item for item in self.items if isinstance(item, kind))

    async def wait(self) -> None:
        """Return when an item comes, or at a call of `wake`."""
        self._arrival = new_event()
        await self._arrival.wait()

    def wake(self) -> None:
        """Let `wait` return."""
        if self._arrival is not None:
            self._arrival.set()
            self._arrival = None
