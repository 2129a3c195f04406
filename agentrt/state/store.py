"""Where states are kept."""

from time import time_ns
from typing import Protocol

from agentrt.errors import SessionConflict, UsageError
from agentrt.keywords import suggest_keywords
from agentrt.representation import never_raises
from agentrt.state.state import AgentState, state_from_json, state_to_json

__all__ = [
    "InMemoryStateStore",
    "StateStore",
    "check_revision",
    "check_saved",
    "check_session_id",
    "next_revision",
]


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


@suggest_keywords()
class InMemoryStateStore:
    """Keeps states in this process, as JSON, so that what is loaded shares nothing with what was saved."""

    def __init__(self) -> None:
        self._saved: dict[str, tuple[int, bytes]] = {}

    @never_raises
    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {len(self._saved)} sessions>"

    async def save(self, state: AgentState) -> None:
        """Keep the state under its `session_id`, in place of the one that it is based on, and set its `revision`.

        Raises `SessionConflict` when that is no longer the saved one, and `SessionUnserializable` for what JSON cannot
        hold or what could not be loaded again.
        """
        check_saved(state)
        text = state_to_json(state)  # first, so that a state which cannot be saved leaves the saved one as it is
        saved, _ = self._saved.get(state.session_id, (0, b""))
        check_revision(state, saved)
        state.revision = next_revision(saved)
        self._saved[state.session_id] = state.revision, text

    async def load(self, session_id: str) -> AgentState | None:
        """Return the state last saved for that session, `None` when there is none."""
        check_session_id(session_id)
        saved = self._saved.get(session_id)
        return None if saved is None else state_from_json(saved[1], saved[0], f"session {session_id!r:.100}")

    async def delete(self, session_id: str) -> None:
        """Forget the session, if it is there. A state that was based on it can no longer be saved."""
        check_session_id(session_id)
        self._saved.pop(session_id, None)


def check_saved(state: object) -> None:
    """Raise `UsageError` for what is not a state with the id of a session."""
    if not isinstance(state, AgentState):
        raise UsageError(f"a store saves an AgentState, not {state!r:.200}: give it agent.state")
    check_session_id(state.session_id)


def check_session_id(session_id: object) -> None:
    """Raise `UsageError` for what cannot be the id of a session."""
    if not isinstance(session_id, str) or not session_id:
        raise UsageError(f"a session id must be a str that is not empty, not {session_id!r:.100}")


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
