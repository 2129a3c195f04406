"""The events of replies, kept in memory for those who follow them."""

from bisect import bisect_right
from operator import attrgetter
from time import monotonic
from weakref import WeakValueDictionary

import anyio

from agentrt.event import AnyEvent, ReplyEndEvent, ReplyResumedEvent
from agentrt.message import Msg

_MAX_REPLY_EVENTS = 4_000
"""How many events of one reply are kept; those before them are kept as the message that they build."""
_MAX_CLOSED_EVENTS = 100_000
_MAX_CLOSED_REPLIES = 1_000
_seq_of = attrgetter("seq")


class ReplyLog:
    """The events of one reply, in order. `is_open` says that it is being run here, `has_ended` that it is over.

    A follower says up to which number it has read. One that is too far behind gets what the events before had built, in
    one `ReplyResumedEvent`, so a slow follower costs nothing and loses nothing.
    """

    __slots__ = ("_base", "_base_number", "_changed", "_events", "_session_id", "closed_at", "has_ended", "is_open")

    def __init__(self, session_id: str, message: Msg, number: int) -> None:
        self.is_open = True
        self.has_ended = False
        self.closed_at = 0.0
        self._session_id = session_id
        self._base = message
        self._base_number = number
        self._events: list[AnyEvent] = []
        self._changed: anyio.Event | None = None

    def __len__(self) -> int:
        return len(self._events)

    @property
    def last_number(self) -> int:
        return self._events[-1].seq if self._events else self._base_number

    def add(self, event: AnyEvent) -> None:
        """Note an event, whose number is above those before it, and wake the followers."""
        if isinstance(event, ReplyResumedEvent) and event.reply_id == self._base.id:
            # It stands for everything before it, and for what a process that died has sent and not saved.
            self._base = Msg(event.name, [], event.role, id=event.reply_id)
            self._base_number = 0
            self._events.clear()
        elif len(self._events) >= _MAX_REPLY_EVENTS:
            # The first events are kept as the message that they build. Half at a time, since taking events from the
            # front of a list costs as much as all that stay.
            count = _MAX_REPLY_EVENTS // 2
            for first in self._events[:count]:
                self._base.append_event(first)
            self._base_number = self._events[count - 1].seq
            del self._events[:count]
        self._events.append(event)
        if isinstance(event, ReplyEndEvent) and event.reply_id == self._base.id:
            self.has_ended = True
        self._wake()

    def read(self, after: int) -> list[AnyEvent]:
        """Return the events with numbers above `after`."""
        if after < self._base_number:
            return [resumed_event(self._base, self._session_id, self._base_number), *self._events]
        return self._events[bisect_right(self._events, after, key=_seq_of) :]

    async def wait(self, after: int) -> None:
        """Wait until there is an event above that number, or the log is closed."""
        if self.is_open and self.last_number <= after:
            if self._changed is None:  # made for the first follower that waits: most events have none
                self._changed = anyio.Event()
            await self._changed.wait()
        else:
            await anyio.lowlevel.checkpoint()

    def close(self) -> None:
        """Note that this process has stopped running the reply."""
        self.is_open = False
        self.closed_at = monotonic()
        self._wake()

    def _wake(self) -> None:
        changed, self._changed = self._changed, None
        if changed is not None:
            changed.set()


class EventLog:
    """The logs of the replies that run in this process, and of those that ran in the last `ttl` seconds."""

    def __init__(self, ttl: float) -> None:
        self._ttl = ttl
        self._logs: dict[tuple[str, str], ReplyLog] = {}  # those that are closed in the order of their closing
        # By replies, as long as a follower waits for one that does not run here.
        self._changes: WeakValueDictionary[tuple[str, str], anyio.Event] = WeakValueDictionary()

    def reopen(self) -> None:
        """Prepare for use in the current event loop; the logs are kept."""
        self._changes.clear()

    def open(self, session_id: str, message: Msg, number: int) -> ReplyLog:
        """Return the log of a reply that is about to run; up to that number its events have built the message."""
        key = session_id, message.id
        log = self._logs.pop(key, None)
        if log is None or log.last_number < number:  # another process has run it in between
            log = ReplyLog(session_id, message, number)
        log.is_open = True
        self._logs[key] = log
        self.tell_change(*key)
        return log

    def close(self, session_id: str, reply_id: str) -> None:
        """Note that this process has stopped running the reply, and forget the oldest of such replies."""
        key = session_id, reply_id
        log = self._logs.pop(key)
        log.close()
        self._logs[key] = log
        closed = [(key, log) for key, log in self._logs.items() if not log.is_open]
        events = sum(len(log) for _, log in closed)
        for index, (old_key, old) in enumerate(closed):
            is_old = old.closed_at < monotonic() - self._ttl
            if not is_old and events <= _MAX_CLOSED_EVENTS and len(closed) - index <= _MAX_CLOSED_REPLIES:
                break
            events -= len(old)
            del self._logs[old_key]

    def forget(self, session_id: str) -> None:
        """Forget the replies of the session that are not run here now."""
        for key, log in list(self._logs.items()):
            if key[0] == session_id and not log.is_open:
                del self._logs[key]

    def get(self, session_id: str, reply_id: str) -> ReplyLog | None:
        return self._logs.get((session_id, reply_id))

    async def last_number(self, session_id: str, reply_id: str) -> int:
        """Return the last number that followers may have seen, or 0."""
        log = self.get(session_id, reply_id)
        return 0 if log is None else log.last_number

    async def flush(self) -> None:
        """Wait until followers in other processes can have all events."""

    @property
    def awaited(self) -> int:
        """The number of replies that followers wait for, which do not run here yet."""
        return len(self._changes)

    def next_change(self, session_id: str, reply_id: str) -> anyio.Event:
        """Return the event that is set when the reply begins to run here, or the queue knows how it ended here."""
        # One for each reply: if all followers looked when any reply begins, n of them would look n * n times.
        return self._changes.setdefault((session_id, reply_id), anyio.Event())

    def tell_change(self, session_id: str, reply_id: str) -> None:
        """Have those who wait for the next change of the reply look at it now."""
        change = self._changes.pop((session_id, reply_id), None)
        if change is not None:
            change.set()

    async def wait(self, change: anyio.Event, seconds: float) -> None:
        """Wait for a change, at most so long: a reply may also run in another process."""
        with anyio.move_on_after(seconds):
            await change.wait()


def resumed_event(message: Msg, session_id: str, number: int) -> ReplyResumedEvent:
    """Return the event that has all that a reply has said up to that number."""
    copy = message.copy()  # the event is its reader's, and the message may grow
    return ReplyResumedEvent(
        message.id,
        list(copy.get_content_blocks()),
        session_id,
        message.name,
        message.role,
        message.usage,
        message.created_at,
        seq=number,
    )
