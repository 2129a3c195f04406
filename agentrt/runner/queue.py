"""The queue of a runner: what an engine that decides what runs has to do, wherever it keeps the requests."""

from collections.abc import Hashable
from typing import Literal, NamedTuple, Protocol

from agentrt.errors import QueueFull
from agentrt.runner.requests import Request
from agentrt.types import FinishedReason

__all__ = ["SUSPECT_DEATHS", "ClaimedRequest", "ReplyQueue", "Result", "Standing", "queue_full"]


SUSPECT_DEATHS = 2
"""From so many on, a request may be what kills the workers, or only have been there: it is run alone."""


class ClaimedRequest(NamedTuple):
    """A request that a worker has taken. `deaths` counts the workers that died with it, as far as is known."""

    name: Hashable
    request: Request
    deaths: int
    is_interrupted: bool


class Result(NamedTuple):
    """What became of a request, and how its reply ended, if it did.

    "held" is for a message to a session that waits for an answer, and "left" for what is to run elsewhere. `number` is
    that of the last event of the reply.
    """

    kind: Literal["over", "waiting", "held", "left"]
    reason: FinishedReason | None = None
    error: str | None = None
    number: int | None = None


class Standing(NamedTuple):
    """What the queue knows of a reply: whether it is still to run, and else how it ended, if it did."""

    is_pending: bool
    worker: str
    reason: FinishedReason | None
    error: str | None
    number: int | None = None


class ReplyQueue(Protocol):
    """The requests of a runner, in the order in which they came; those of one session run one after the other.

    A worker that dies leaves its requests to others. Each method is done whole or not at all, and raises
    `SessionIOError` where the database is away.
    """

    async def add(self, request: Request, due_at: int, *, max_queued: int, max_per_session: int) -> None:
        """Store the request, if its key is new.

        Raises `InvalidInputError` where that key was given with another input, `QueueFull` where there is no room, and
        `ResumeError` for an answer that contradicts one which is not taken in yet: the state does not know that one.
        """
        ...

    async def begin(self, claimed: ClaimedRequest) -> None:
        """Note that a request with `SUSPECT_DEATHS` is run now: until then, no further death is counted."""
        ...

    async def finish(self, claimed: ClaimedRequest, result: Result) -> None:
        """Note what became of the request; those of its session that were held back may run."""
        ...

    async def give_back(self, claimed: ClaimedRequest) -> bool:
        """Leave the request to another worker; returns whether this one still had it."""
        ...

    async def hold(self, claimed: ClaimedRequest) -> None:
        """Give the request back until another one of its session is done, such as the answer that this waits for."""
        ...

    async def standing(self, session_id: str, reply_id: str) -> Standing | None:
        """Return what is known of the reply, `None` for nothing."""
        ...

    async def find_sessions(self, reply_id: str, limit: int) -> list[str]:
        """Return the sessions that have a reply of that id, those of the latest requests first."""
        ...

    async def find_replies(self, session_id: str) -> list[str]:
        """Return the replies of the session that are still to run."""
        ...

    async def pending_answers(self, session_id: str, reply_id: str) -> list[Request]:
        """Return the answers to the reply that are not taken in yet."""
        ...

    async def interrupt(self, session_id: str, reply_id: str) -> bool:
        """Remove the reply if it has not begun, else have its worker end it; returns whether it is in the queue."""
        ...

    async def forget(self, session_id: str) -> None:
        """Remove the replies of the session that are over."""
        ...

    async def last_tick(self, name: str) -> int | None:
        """Return when the schedule was last followed, in nanoseconds."""
        ...

    async def note_tick(self, name: str, ticked_at: int) -> None:
        """Note that the schedule was followed."""
        ...


def queue_full(session_id: str, in_all: int, in_session: int, max_queued: int, finished: int) -> QueueFull:
    """Return the error of a queue that has no room, where so many replies were finished in the last minute."""
    # The time in which one place gets free, at the pace of the last minute.
    retry_after = min(60.0, max(1.0, 60.0 / max(finished, 1)))
    if in_all >= max_queued:
        what = f"{in_all:,} replies wait in the queue, as many as max_queued allows"
    else:
        what = f"{in_session:,} replies wait in session {session_id!r:.100}, as many as max_queued_per_session allows"
    return QueueFull(f"{what}: try again in {retry_after:.0f} s; nothing was stored", retry_after=retry_after)
