"""Threads for work that blocks and should stop when nobody waits for it any more."""

from collections.abc import Callable
from threading import Event
from time import monotonic
from typing import TypeVar

from agentrt.database.operations import OperationQueue

__all__ = ["Deadline", "WorkerThreads"]

_ThreadResult = TypeVar("_ThreadResult")


class Deadline:
    """Until when work in a thread may take, and whether anyone still waits for it."""

    __slots__ = ("_abandoned", "_end")

    def __init__(self, seconds: float) -> None:
        self._end = monotonic() + seconds
        self._abandoned = Event()

    def seconds_left(self) -> float:
        """Return how long the work may still take: 0 when it should stop."""
        return 0.0 if self._abandoned.is_set() else max(0.0, self._end - monotonic())

    def abandon(self) -> None:
        """Note that nobody waits any more."""
        self._abandoned.set()


class WorkerThreads:
    """Runs the work of one store in at most `max_threads` threads per event loop, each for at most `seconds`."""

    def __init__(self, max_threads: int, seconds: float) -> None:
        self._operations, self._seconds = OperationQueue(max_threads, seconds), seconds

    async def run(self, work: Callable[[Deadline], _ThreadResult], extra_seconds: float = 0.0) -> _ThreadResult:
        """Return what the work returns; raises `TimeoutError` where it takes too long, and leaves it to itself then."""
        deadline = Deadline(self._seconds + extra_seconds)
        try:
            run = self._operations.run
            return await run(object(), lambda _: work(deadline), shield=False, extra_seconds=extra_seconds)
        finally:
            deadline.abandon()
