"""Those who follow replies in this process, and what they were told of them by others."""

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic

import anyio

from agentrt.runner.dbos.database import EventBatch

_LOOK_SECONDS = 1.0  # after which a follower who hears nothing looks for itself, in case that a notice was lost
_MAX_LOOK_SECONDS = 15.0  # when it has heard nothing again and again: there may be thousands of them
_END_SECONDS = 0.02  # between the last event of a reply and the note that it is over
_MAX_TOLD = 1_000  # batches


class Follower:
    """The news for one follower since its last look."""

    def __init__(self) -> None:
        self.is_behind = True
        self._batches: deque[EventBatch] = deque()
        self._news = anyio.Event()
        self._ends_until = 0.0
        self._look_seconds = _LOOK_SECONDS

    def tell(self, kind: str, batch: EventBatch | None) -> None:
        if batch is not None:
            self._batches.append(batch)
            if len(self._batches) > _MAX_TOLD:  # it is slow, and reads them from the table
                self._batches.clear()
                self.is_behind = True
        elif kind == "lost":
            self.is_behind = True
        else:
            self._ends_until = monotonic() + _LOOK_SECONDS
        self._news.set()

    def has_news(self) -> bool:
        return bool(self._batches) or self.is_behind

    def take(self) -> list[EventBatch]:
        batches = list(self._batches)
        self._batches.clear()
        return batches

    async def wait(self) -> bool:
        """Wait for events, and not too long: none may come, or be lost. Returns whether there are any."""
        if not self.has_news():
            is_ending = monotonic() < self._ends_until
            with anyio.move_on_after(_END_SECONDS if is_ending else self._look_seconds):
                await self._news.wait()
            longer = min(2 * self._look_seconds, _MAX_LOOK_SECONDS)
            self._look_seconds = _LOOK_SECONDS if is_ending or self._news.is_set() else longer
            self._news = anyio.Event()
        return self.has_news()


class Followers:
    """The followers of replies; a reply may have several."""

    def __init__(self) -> None:
        self._by_reply: dict[tuple[str, str], set[Follower]] = {}

    @contextmanager
    def follow(self, session_id: str, reply_id: str) -> Iterator[Follower]:
        """Tell a new follower what is heard of a reply."""
        follower, key = Follower(), (session_id, reply_id)
        self._by_reply.setdefault(key, set()).add(follower)
        try:
            yield follower
        finally:
            self._by_reply[key].discard(follower)
            if not self._by_reply[key]:
                del self._by_reply[key]

    def tell(self, kind: str, key: tuple[str, str], batch: EventBatch | None) -> None:
        """Tell those who follow a reply."""
        for follower in self._by_reply.get(key, ()):
            follower.tell(kind, batch)

    def tell_all_lost(self) -> None:
        """Tell everybody that something may have been missed."""
        for followers in self._by_reply.values():
            for follower in followers:
                follower.tell("lost", None)
