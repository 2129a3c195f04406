"""Work that runs one at a time, where one run serves all who waited for it: saving what has changed, say."""

from collections.abc import Awaitable, Callable
from threading import RLock

from agentrt._runtime.concurrency.event_loop import CrossThreadEvent

_SERVED, _TURN = "served", "turn"


class CoalescedWork:
    """Runs work for callers in any number of tasks, threads and event loops, never twice at a time.

    Who finds it running waits, and one further run serves all who waited as it began. A run that fails or is cancelled
    serves its own caller only: the next of those who wait runs it again, and has an error of its own if that fails too.
    """

    __slots__ = ("_is_running", "_lock", "_served", "_waiting")

    def __init__(self) -> None:
        self._lock = RLock()  # a caller's coroutine may be collected under it
        self._is_running = False
        self._waiting: list[CrossThreadEvent] = []
        self._served: list[CrossThreadEvent] = []  # by the current run, if it does not fail

    async def run(self, work: Callable[[], Awaitable[object]]) -> None:
        """Await `work()`, or a run for another caller that begins after this call."""
        if not self._begin() and not await self._wait():
            return
        is_done = False
        try:
            await work()
            is_done = True
        finally:
            self._end(is_done)

    def _begin(self) -> bool:
        with self._lock:
            if self._is_running:
                return False
            self._is_running = True
            return True

    async def _wait(self) -> bool:
        """Wait for a run by another caller, or for the turn to run; returns whether it is the turn."""
        turn = CrossThreadEvent()
        with self._lock:
            if self._begin():  # it has ended just now, in another thread
                return True
            self._waiting.append(turn)
        try:
            await turn.wait()
        except BaseException:
            self._leave(turn)
            raise
        if turn.result == _SERVED:
            return False
        with self._lock:
            self._served, self._waiting = self._waiting, []
        return True

    def _leave(self, turn: CrossThreadEvent) -> None:
        """Note that a caller does not wait any more; the turn, if it has it, passes to the next one."""
        with self._lock:
            for group in (self._waiting, self._served):
                if turn in group:
                    group.remove(turn)
                    return
            if turn.result == _TURN:
                self._end(False)

    def _end(self, is_done: bool) -> None:
        with self._lock:
            served, self._served = self._served, []
            if is_done:
                for turn in served:
                    turn.set(_SERVED)
            else:
                # They came first, and what they wait for is not done.
                self._waiting = served + self._waiting
            while self._waiting:
                # A caller whose event loop has ended is passed over.
                if self._waiting.pop(0).set(_TURN):
                    return
            self._is_running = False
