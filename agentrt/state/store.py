"""What a store of states promises, and what all stores have in common."""

from collections.abc import Mapping
from time import time_ns
from types import TracebackType
from typing import Protocol, Self

from agentrt.errors import SessionConflict, UsageError
from agentrt.state.sessions import EPHEMERAL, SessionPage, check_labels, check_session_id, fork_state
from agentrt.state.state import AgentState

__all__ = [
    "SessionStore",
    "SessionStoreBase",
    "StateStore",
    "check_revision",
    "check_saved",
    "next_revision",
]

_EPHEMERAL_SECONDS = 3600


class StateStore(Protocol):
    """Keeps one state per session.

    `save` returns only once the state is safe; the runtime waits for it before the next side effect.
    """

    async def save(self, state: AgentState) -> None:
        """Keep the state under its `session_id`, in place of the one that it is based on, and set its `revision`.

        Raises `SessionConflict` when that is no longer the saved one: of two writers, the second gets the error.
        """
        ...

    async def load(self, session_id: str) -> AgentState | None:
        """Return the state last saved for that session, `None` when there is none."""
        ...


class SessionStore(StateStore, Protocol):
    """A `StateStore` that also knows which sessions it has, and can end them.

    Its promises, which `agentrt.testing.check_store` tries: a save is done whole or not at all; of several writers on
    one revision one wins, and the others get `SessionConflict`; `load` gives what was saved; a session that was deleted
    or has expired is not saved over.
    """

    async def save(self, state: AgentState) -> None:
        """Keep the state as it is now, in place of the one that it is based on, and set its `revision`.

        Of a state that this store has saved or loaded, a message that was edited in place is saved only where
        `state.touch(message)` was called.

        A cancellation waits for the write; one of asyncio's own does not, and the write ends without its caller. Raises
        `SessionConflict` when the saved state is another one, `SessionUnserializable` for what JSON cannot hold or what
        could not be loaded again, and `SessionIOError` also when it takes more than ten seconds.
        """
        ...

    async def delete(self, session_id: str) -> None:
        """Forget the session, if it is there. A state that was based on it can no longer be saved."""
        ...

    async def list(
        self, *, labels: Mapping[str, str] | None = None, prefix: str = "", limit: int = 100, cursor: str | None = None
    ) -> SessionPage:
        """Return a page of at most `limit` sessions, in the order of their ids.

        They have all of these `labels`, and ids that begin with `prefix`. The `cursor` of a page gives the next one. A
        session that is there all the time is on exactly one page, whatever is saved and deleted meanwhile.
        """
        ...

    async def fork(self, session_id: str, new_id: str, *, messages: int | None = None) -> AgentState:
        """Copy the first `messages` of the finished messages, or all, into a new session, and return its state.

        The fork has no reply in progress, and shares nothing with the session that it comes from. Raises
        `SessionConflict` if `new_id` is already saved, `UsageError` if `session_id` is not.
        """
        ...

    async def expire(self) -> int:
        """Remove what sessions leave that have not been saved for the store's `ttl`; returns how many there were.

        They are gone for `load`, `list` and `save` before that. Sessions with the label `EPHEMERAL` are removed an hour
        after their last save.
        """
        ...

    async def migrate(self) -> None:
        """Bring what the store has made in its database up to date; else the first operation does so."""
        ...

    async def __aenter__(self) -> Self:
        """Return the store itself."""
        ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Let go of files and connections; the next operation opens them again."""
        ...


class SessionStoreBase:
    """What most stores do in the same way: they fork by a load and a save, and have nothing to migrate or to close."""

    async def fork(self: SessionStore, session_id: str, new_id: str, *, messages: int | None = None) -> AgentState:
        """Copy the first `messages` of the finished messages, or all, into a new session, and return its state.

        The fork has no reply in progress, and shares nothing with the session that it comes from. Raises
        `SessionConflict` if `new_id` is already saved, `UsageError` if `session_id` is not.
        """
        check_session_id(new_id)
        state = await self.load(session_id)
        if state is None:
            raise UsageError(f"session {session_id!r:.100} is not saved here, or no longer, so it cannot be forked")
        fork = fork_state(state, new_id, messages)
        await self.save(fork)
        return fork

    async def expire(self: SessionStore) -> int:
        """Remove sessions for one answer an hour after their last save; returns how many there were."""
        removed, cursor, oldest = 0, None, time_ns() - _EPHEMERAL_SECONDS * 1_000_000_000
        while True:
            page = await self.list(labels=EPHEMERAL, limit=1_000, cursor=cursor)
            for info in page.sessions:
                if info.status != "waiting" and info.updated_at < oldest:
                    await self.delete(info.session_id)
                    removed += 1
            cursor = page.cursor
            if cursor is None:
                return removed

    async def migrate(self) -> None:
        """Do nothing: what this store has made needs no migration."""

    async def aclose(self) -> None:
        """Let go of files and connections; the next operation opens them again."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()


def check_saved(state: object) -> None:
    """Raise `UsageError` for what is not a state with the id of a session, or whose labels are none."""
    if not isinstance(state, AgentState):
        raise UsageError(f"a store saves an AgentState, not {state!r:.200}: give it agent.state")
    check_session_id(state.session_id)
    if state.labels:
        check_labels(state.labels, "state.labels")


def check_revision(state: AgentState, saved: int) -> None:
    """Raise `SessionConflict` unless the state is based on the saved revision, 0 for none."""
    if state.revision == saved:
        return
    session = f"session {state.session_id!r:.100}"
    if not saved:
        raise SessionConflict(
            f"{session} is not saved here, or no longer, but this state is based on its revision {state.revision}: "
            f"to save it as a new session, set state.revision = 0"
        )
    if not state.revision:
        raise SessionConflict(
            f"{session} is already saved, as revision {saved}, but this state is new (revision 0): "
            f"load the saved state and continue it, or choose another session_id"
        )
    raise SessionConflict(
        f"{session} was saved by another writer as revision {saved}, but this state is based on revision "
        f"{state.revision}: load the saved state and make the change again"
    )


def next_revision(saved: int) -> int:
    """Return the revision after this one.

    The first is the time in microseconds, so that a session that is deleted and started again never gets a revision
    that it had before.
    """
    return saved + 1 if saved else time_ns() // 1000
