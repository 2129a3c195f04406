"""Where states are kept."""

from typing import Protocol

from agentrt.state.state import AgentState

__all__ = ["InMemoryStateStore", "StateStore"]


class StateStore(Protocol):
    """Keeps one state per session.

    `save` returns only once the state is safe; the runtime waits for it before the next side effect.
    """

    async def save(self, state: AgentState) -> None:
        """Keep the state under its `session_id`, in place of the one kept before."""
        ...

    async def load(self, session_id: str) -> AgentState | None:
        """Return the state last saved for that session, `None` when there is none."""
        ...


class InMemoryStateStore:
    """Keeps states in this process, as JSON, so that what is loaded shares nothing with what was saved."""

    def __init__(self) -> None:
        self._saved: dict[str, str] = {}

    async def save(self, state: AgentState) -> None:
        """Keep the state under its `session_id`, in place of the one kept before."""
        self._saved[state.session_id] = state.model_dump_json()

    async def load(self, session_id: str) -> AgentState | None:
        """Return the state last saved for that session, `None` when there is none."""
        saved = self._saved.get(session_id)
        return None if saved is None else AgentState.model_validate_json(saved)
