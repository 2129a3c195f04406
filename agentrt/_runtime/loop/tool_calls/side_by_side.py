"""Which calls run at the same time where tools make some of them."""

from collections.abc import Iterable

import anyio


class SideBySide:
    """Lets calls run beside each other if all of their tools may, and any other one alone, first come, first served.

    A call that makes calls itself counts for nothing from then on: what it does is what these do. So none of them waits
    for the one that makes it.
    """

    __slots__ = ("_running", "_waiting")

    def __init__(self, running: Iterable[str]) -> None:
        # Whether each may have neighbours, by the id of the call; those that began before, beside each other, may.
        self._running = dict.fromkeys(running, True)
        self._waiting: list[tuple[str, bool, anyio.Event]] = []

    async def enter(self, call_id: str, is_safe: bool) -> None:
        """Return when the call may run; `leave` is to follow."""
        turn = anyio.Event()
        self._waiting.append((call_id, is_safe, turn))
        self._admit()
        try:
            await turn.wait()
        except BaseException:
            self._waiting = [item for item in self._waiting if item[0] != call_id]
            self.leave(call_id)
            raise

    def leave(self, call_id: str) -> None:
        """Let others run: the call has ended, or it makes calls itself."""
        self._running.pop(call_id, None)
        self._admit()

    def _admit(self) -> None:
        while self._waiting:
            call_id, is_safe, turn = self._waiting[0]
            if self._running and not (is_safe and all(self._running.values())):
                return
            del self._waiting[0]
            self._running[call_id] = is_safe
            turn.set()
