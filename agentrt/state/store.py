"""The protocols of state stores, and the base class of the shipped ones."""

from collections.abc import Mapping
from time import time_ns
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, Self

from agentrt.errors import ConfigError, SessionConflict, UsageError
from agentrt.state.records.rows import RunRows
from agentrt.state.sessions import EPHEMERAL, SessionInfo, SessionPage, check_labels, check_session_id, fork_state
from agentrt.state.state import AgentState

if TYPE_CHECKING:
    from agentrt.runs.store import RunStore

_EPHEMERAL_SECONDS = 3600


class StateStore(Protocol):
    """Keeps one state per session.

    `save` returns once the state is safe; the runtime waits for it before the next side effect.
    """

    async def save(self, state: AgentState) -> None:
        """Save the state under its `session_id`, replacing the one that it is based on, and set its `revision`.

        Raises `SessionConflict` if another state is saved by now: of two writers, the second gets the error.
        """

    async def load(self, session_id: str) -> AgentState | None:
        """Return the saved state of the session or `None`."""


class SessionStore(StateStore, Protocol):
    """A `StateStore` that can also list and delete its sessions.

    Its promises, which `agentrt.testing.check_store` tests: a save is atomic; of several writers on one revision one
    wins, and the others get `SessionConflict`; `load` returns the saved state; a session that was deleted or has
    expired cannot be saved again from an old state.
    """

    async def save(self, state: AgentState) -> None:
        """Save the state, replacing the one that it is based on, and set its `revision`.

        After the first save or load, a message that was edited in place is saved only if
        `state.touch(message)` was called.

        A cancellation waits for the write; asyncio's own does not, and the write ends without its caller. Raises
        `SessionConflict` if another state is saved by now, `SessionUnserializable` for values that JSON cannot hold, or
        that could not be loaded again, and `SessionIOError` also for a save of more than ten seconds.
        """

    async def delete(self, session_id: str) -> None:
        """Delete the session, if it exists. A state that was based on it can no longer be saved."""

    async def describe(self, session_id: str) -> SessionInfo | None:
        """Return the info of the session or `None`; reads no other session.

        A damaged session may raise `SessionCorrupt`; `list` skips it.
        """

    async def list(
        self, *, labels: Mapping[str, str] | None = None, prefix: str = "", limit: int = 100, cursor: str | None = None
    ) -> SessionPage:
        """Return a page of at most `limit` sessions, in the order of their ids.

        They have all of these `labels`, and ids that begin with `prefix`. The `cursor` of a page requests the next one.
        A session that exists throughout is on exactly one page, whatever is saved and deleted meanwhile.
        """

    async def fork(self, session_id: str, new_id: str, *, messages: int | None = None) -> AgentState:
        """Copy the first `messages` of the finished messages, or all, into a new session, and return its state.

        The fork has no reply in progress, and shares nothing with the session that it comes from. Raises
        `SessionConflict` if `new_id` is already saved, `UsageError` if `session_id` is not.
        """

    async def expire(self) -> int:
        """Delete the data of sessions not saved within the store's `ttl`; returns how many there were.

        `load`, `list` and `save` ignore them even before. Sessions with the label `EPHEMERAL` are deleted an hour
        after their last save.
        """

    async def migrate(self) -> None:
        """Migrate the store's database now, not at the first operation."""

    async def __aenter__(self) -> Self:
        """Return the store itself."""

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close files and connections; the next operation opens them again."""


class SessionStoreBase:
    """The base of most stores: forks by a load and a save, and has nothing to migrate or to close."""

    @property
    def runs(self) -> "RunStore":
        """The recorded runs of the sessions; see `agentrt.runs`."""
        from agentrt.runs.store import RunStore  # which is above, and loaded by those who use it

        # One for each store, since its thread is the only one that writes runs in this process.
        found: RunStore = vars(self).get("_runs") or vars(self).setdefault("_runs", RunStore(self._make_run_rows()))
        return found

    async def _forget_runs(self, session_id: str) -> None:
        """Remove what this process has recorded of a session, with what is queued."""
        found: RunStore | None = vars(self).get("_runs")
        if found is not None:
            await found.forget(session_id)

    async def _close_runs(self) -> None:
        found: RunStore | None = vars(self).get("_runs")
        if found is not None:
            await found.aclose()

    def _make_run_rows(self) -> RunRows:
        raise ConfigError(f"{type(self).__name__} keeps no runs: use SQLiteStore, or another store of agentrt.state")

    async def describe(self: SessionStore, session_id: str) -> SessionInfo | None:
        """Return the info of the session or `None`."""
        check_session_id(session_id)
        # Of the sessions with its id as the prefix, the session itself is the first.
        page = await self.list(prefix=session_id, limit=1)
        return next((info for info in page.sessions if info.session_id == session_id), None)

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
        """Delete sessions for one answer an hour after their last save; returns how many there were."""
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
        """Do nothing: this store needs no migration."""

    async def aclose(self) -> None:
        """Close files and connections; the next operation opens them again."""
        await self._close_runs()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()


async def find_session(store: SessionStore, session_id: str) -> SessionInfo | None:
    """Return the info of a session; a store without `describe` is asked for a list of that session."""
    if hasattr(store, "describe"):
        return await store.describe(session_id)
    return await SessionStoreBase.describe(store, session_id)


def check_saved(state: object) -> None:
    """Raise `UsageError` unless it is a state with a valid session id and valid labels."""
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

    The first is the time in microseconds, so that a session that is deleted and created again never gets a revision
    that it had before.
    """
    return saved + 1 if saved else time_ns() // 1000
