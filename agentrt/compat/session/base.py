"""The base class of sessions, wherever they keep their states."""

from agentrt.module import StateModule


class SessionBase:
    """Keeps the states of modules, under the session's id and, where there are many, its user's."""

    async def save_session_state(self, session_id: str, user_id: str = "", **modules: StateModule) -> None:
        """Keep the states of these modules, each under its name, in place of what the session held before."""
        raise NotImplementedError

    async def load_session_state(
        self, session_id: str, user_id: str = "", allow_not_exist: bool = True, **modules: StateModule
    ) -> None:
        """Give these modules the states that were saved under their names: all of them, or none when one is wrong.

        A module whose name is not in the session stays as it is. A session that does not exist leaves all as they are,
        or raises `ValueError` unless `allow_not_exist`.
        """
        raise NotImplementedError
