"""What a sub-agent gets of its supervisor's resources."""

from agentrt.module import StateModule
from agentrt.session import SessionBase

__all__ = ["PrefixedSession"]


class PrefixedSession(SessionBase):
    """A session in which a sub-agent keeps its modules under names of its own."""

    def __init__(self, session: SessionBase, prefix: str) -> None:
        self._session = session
        self._prefix = prefix

    async def save_session_state(self, session_id: str, user_id: str = "", **modules: StateModule) -> None:
        """Keep the states of these modules."""
        await self._session.save_session_state(f"{self._prefix}.{session_id}", user_id, **modules)

    async def load_session_state(
        self, session_id: str, user_id: str = "", allow_not_exist: bool = True, **modules: StateModule
    ) -> None:
        """Give these modules the states that were saved under their names."""
        name = f"{self._prefix}.{session_id}"
        await self._session.load_session_state(name, user_id, allow_not_exist, **modules)
