"""The queue of a runner: what an engine that decides what runs has to do, wherever it keeps the requests."""

from collections.abc import Hashable
from typing import Literal, NamedTuple, Protocol, TypeAlias

from agentrt.errors import QueueFull
from agentrt.runner.requests import Request
from agentrt.types import FinishedReason

FullScope: TypeAlias = Literal["queue", "session", "owner"]
SUSPECT_DEATHS = 2
"""From this number of deaths on, a request is suspected of killing the workers, and runs alone."""


class ClaimedRequest(NamedTuple):
    """A request that a worker has taken. `deaths` counts the workers that died with it, as far as is known."""

    name: Hashable
    request: Request
    deaths: int
    is_interrupted: bool


class Result(NamedTuple):
    """The outcome of a request, and the end of its reply, if any.

    "held" is for a message to a session that waits for an answer, and "left" for what is to run elsewhere. `number` is
    that of the last event of the reply.
    """

    kind: Literal["over", "waiting", "held", "left"]
    reason: FinishedReason | None = None
    error: str | None = None
    number: int | None = None


class Standing(NamedTuple):
    """The queue's view of a reply: whether it is pending, otherwise its end, if any."""

    is_pending: bool
    worker: str
    reason: FinishedReason | None
    error: str | None
    number: int | None = None


class QueueRoom(NamedTuple):
    """How many messages may wait in the queue; `of_owner` is `None` where owners have no shares."""

    in_all: int
    in_session: int
    of_owner: int | None = None

    def find_full(self, request: Request, in_all: int, in_session: int, of_owner: int) -> tuple[FullScope, str] | None:
        """Return the full scope that has no room for the request, and its description; `None` if there is room."""
        if in_all >= self.in_all:
            return "queue", f"{in_all:,} replies wait in the queue, as many as max_queued allows"
        if self.of_owner is not None and request.owner and of_owner >= self.of_owner:
            return "owner", f"{of_owner:,} replies of this owner wait, as many as max_queued_per_owner allows"
        if in_session >= self.in_session:
            place = f"session {request.session_id!r:.100}"
            return "session", f"{in_session:,} replies wait in {place}, as many as max_queued_per_session allows"
        return None


class ReplyQueue(Protocol):
    """The requests of a runner; those of one session run one after the other, in the order in which they came.

    A worker that dies leaves its requests to others. Each method is done whole or not at all, and raises
    `SessionIOError` where the database is away.
    """

    async def add(self, request: Request, due_at: int, room: QueueRoom) -> None:
        """Store the request, if its key is new. Its owner is that of what waits in its session, if anything does.

        Raises `InvalidInputError` where that key was given with another input, `QueueFull` where there is no room, and
        `ResumeError` for an answer that contradicts one which is not taken in yet: the state does not know that one.
        """

    async def begin(self, claimed: ClaimedRequest) -> None:
        """Note that a request with `SUSPECT_DEATHS` is run now: until then, no further death is counted."""

    async def note_saved(self, claimed: ClaimedRequest) -> None:
        """Note that the session of the request was saved: it is not created again if it is deleted from now on."""

    async def finish(self, claimed: ClaimedRequest, result: Result) -> None:
        """Record the outcome of the request; held-back ones of its session may run."""

    async def give_back(self, claimed: ClaimedRequest) -> bool:
        """Leave the request to another worker; returns whether this one still had it."""

    async def hold(self, claimed: ClaimedRequest) -> None:
        """Give the request back until another one of its session is done, such as the answer that this waits for."""

    async def standing(self, session_id: str, reply_id: str) -> Standing | None:
        """Return what is known of the reply, `None` for nothing."""

    async def find_sessions(self, reply_id: str, owner: str | None, limit: int) -> list[str]:
        """Return the sessions that have a reply of that id, those of the latest requests first.

        With an owner, they are that owner's, or it is not known whose they are.
        """

    async def find_replies(self, session_id: str) -> list[str]:
        """Return the replies of the session that are still to run."""

    async def pending_answers(self, session_id: str, reply_id: str) -> list[Request]:
        """Return the answers to the reply that are not taken in yet."""

    async def interrupt(self, session_id: str, reply_id: str) -> bool:
        """Remove the reply if it has not started, else tell its worker to end it; returns whether it is queued."""

    async def forget(self, session_id: str) -> None:
        """Remove the replies of the session that are over."""

    async def last_tick(self, name: str) -> int | None:
        """Return when the schedule was last followed, in nanoseconds."""

    async def note_tick(self, name: str, ticked_at: int) -> None:
        """Note that the schedule was followed."""


def queue_full(full: tuple[FullScope, str], finished: int) -> QueueFull:
    """Return the error of a full queue, given the number of replies finished in the last minute."""
    scope, what = full
    # The time in which one place gets free, at the pace of the last minute.
    retry_after = min(60.0, max(1.0, 60.0 / max(finished, 1)))
    message = f"{what}: try again in {retry_after:.0f} s; nothing was stored"
    return QueueFull(message, retry_after=retry_after, scope=scope)
