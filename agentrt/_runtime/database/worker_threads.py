"""Threads for blocking work that should stop when nobody waits for it any more."""

from collections.abc import Callable
from threading import Event
from time import monotonic
from typing import TypeVar

from agentrt._runtime.database.operations import OperationQueue

_ThreadResult = TypeVar("_ThreadResult")


class Deadline:
    """The deadline of work in a thread, and whether anyone still waits for it."""

    __slots__ = ("_abandoned", "_end")

    def __init__(self, seconds: float) -> None:
        self._end = monotonic() + seconds
        self._abandoned = Event()

    def seconds_left(self) -> float:
        """Return the seconds left for the work: 0 if it should stop."""
        return 0.0 if self._abandoned.is_set() else max(0.0, self._end - monotonic())

    def abandon(self) -> None:
        """Record that nobody waits any more."""
        self._abandoned.set()


class WorkerThreads:
    """Runs the work of one store in at most `max_threads` threads per event loop, each for at most `seconds`."""

    def __init__(self, max_threads: int, seconds: float) -> None:
        self._operations, self._seconds = OperationQueue(max_threads, seconds), seconds

    async def run(self, work: Callable[[Deadline], _ThreadResult], extra_seconds: float = 0.0) -> _ThreadResult:
        """Return the result of the work; raises `TimeoutError` if it takes too long, and abandons it then."""
        deadline = Deadline(self._seconds + extra_seconds)
        try:
            run = self._operations.run
            return await run(object(), lambda _: work(deadline), shield=False, extra_seconds=extra_seconds)
        finally:
            deadline.abandon()
