"""States in this process."""

from collections.abc import Mapping
from time import time_ns
from typing import NamedTuple

from agentrt._runtime.representation import never_raises
from agentrt.state.changes import mark_saved, unsaved_changes
from agentrt.state.records.memory import MemoryRunRows
from agentrt.state.records.rows import RunRows
from agentrt.state.sessions import SessionInfo, SessionPage, SessionQuery, check_session_id, check_ttl, session_status
from agentrt.state.state import AgentState, join_state
from agentrt.state.store import SessionStoreBase, check_revision, check_saved, next_revision


class _Session(NamedTuple):
    info: SessionInfo
    head: bytes
    messages: list[bytes]
    message_bytes: int


class InMemoryStateStore(SessionStoreBase):
    """Keeps states in this process, as JSON, so that a loaded state shares nothing with the saved one.

    With a `ttl` a session expires that many seconds after its last save.
    """

    def __init__(self, *, ttl: float | None = None) -> None:
        self._ttl = check_ttl(type(self).__name__, ttl)
        self._saved: dict[str, _Session] = {}

    @never_raises
    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {len(self._saved)} sessions>"

    async def save(self, state: AgentState) -> None:
        """Save the state under its `session_id`, replacing the one that it is based on, and set its `revision`.

        After the first save or load, a message that was edited in place is saved only after
        `state.touch(message)`.

        Raises `SessionConflict` if another state is saved by now, and `SessionUnserializable` for values that JSON
        cannot hold, or that could not be loaded again.
        """
        check_saved(state)
        change = unsaved_changes(state, self)
        try:
            messages = change.dump_messages()
            saved = self._find(state.session_id)
            check_revision(state, saved.info.revision if saved is not None else 0)
        except BaseException:
            change.abandon()
            raise
        now = time_ns()
        revision, created_at = next_revision(0), now
        message_bytes = sum(map(len, messages))
        if saved is not None:
            revision, created_at = next_revision(saved.info.revision), saved.info.created_at
            if not change.is_whole:
                message_bytes += saved.message_bytes - sum(map(len, saved.messages[change.start :]))
                saved.messages[change.start :] = messages
                messages = saved.messages
        status, labels, size = session_status(state), dict(state.labels), len(change.head) + message_bytes
        info = SessionInfo(state.session_id, revision, created_at, now, len(messages), status, labels, size)
        self._saved[state.session_id] = _Session(info, change.head, messages, message_bytes)
        change.accept(revision, None)

    async def load(self, session_id: str) -> AgentState | None:
        """Return the saved state of the session or `None`."""
        check_session_id(session_id)
        saved = self._find(session_id)
        if saved is None:
            return None
        state = join_state(saved.head, saved.messages, saved.info.revision, f"session {session_id!r:.100}")
        mark_saved(state, self)
        return state

    async def delete(self, session_id: str) -> None:
        """Delete the session, if it exists. A state that was based on it can no longer be saved."""
        check_session_id(session_id)
        self._saved.pop(session_id, None)
        await self._forget_runs(session_id)

    async def describe(self, session_id: str) -> SessionInfo | None:
        """Return the info of the session or `None`."""
        check_session_id(session_id)
        saved = self._find(session_id)
        return None if saved is None else saved.info

    async def list(
        self, *, labels: Mapping[str, str] | None = None, prefix: str = "", limit: int = 100, cursor: str | None = None
    ) -> SessionPage:
        """Return a page of at most `limit` sessions, in the order of their ids, as `SessionStore` says."""
        query = SessionQuery.check(labels, prefix, limit, cursor)
        found = (self._find(session_id) for session_id in sorted(self._saved))
        return query.page_of(saved.info for saved in found if saved is not None and query.matches(saved.info))

    async def expire(self) -> int:
        """Delete expired sessions, as `SessionStore` says; returns how many there were."""
        expired = [session_id for session_id in self._saved if self._find(session_id) is None]
        for session_id in expired:
            del self._saved[session_id]
            await self._forget_runs(session_id)
        return len(expired) + await super().expire()

    def _make_run_rows(self) -> RunRows:
        return MemoryRunRows()

    def _find(self, session_id: str) -> _Session | None:
        saved = self._saved.get(session_id)
        # An expired session stays until `expire`, or until a save replaces it.
        if saved is None or self._ttl is None or time_ns() - saved.info.updated_at < self._ttl * 1e9:
            return saved
        return None
