"""A store that reports edits which another store would not save."""

from typing import Any

from agentrt._runtime.representation import never_raises
from agentrt.errors import UsageError
from agentrt.state import AgentState, StateStore


class ExactStore:
    """Delegates to another store, and checks after each save that the whole state is there.

    Raises `UsageError` for a message that was edited in place without `state.touch(message)`, which stores that write
    only changes do not save. For tests: each save loads the whole state.
    """

    def __init__(self, store: StateStore) -> None:
        self._store: Any = store

    @never_raises
    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._store!r})"

    async def save(self, state: AgentState) -> None:
        """Save the state, and compare it with the loaded one."""
        await self._store.save(state)
        saved: AgentState | None = await self._store.load(state.session_id)
        if saved is None or saved == state:
            return
        for index, (message, other) in enumerate(zip(state.context, saved.context, strict=False)):
            if message != other:
                state.touch()  # so that the next save, once the program is fixed, is complete
                raise UsageError(
                    f"state.context[{index}] of session {state.session_id!r:.100} was edited in place, and is not "
                    f"saved: call state.touch(message) after the edit, or put an edited copy in its place"
                )
        raise UsageError(f"the state of session {state.session_id!r:.100} is saved, but loads as another one")

    async def load(self, session_id: str) -> AgentState | None:
        """Return the saved state of the session or `None`."""
        state: AgentState | None = await self._store.load(session_id)
        return state

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)
