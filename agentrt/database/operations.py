"""Blocking work in threads: what belongs to one session in the order in which it came, and never for ever."""

import errno
import time
from collections.abc import Callable, Hashable
from functools import partial
from threading import Event, Lock
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import anyio
from anyio import to_thread
from anyio.lowlevel import RunVar

from agentrt.errors import SessionIOError, StateError

__all__ = ["MAX_WAIT", "DatabaseError", "OperationQueue", "no_answer"]

MAX_WAIT = 10.0
"""So many seconds an operation may take."""

_EXTRA_WAIT = 1.0
# Per event loop, since a limiter belongs to one, and only as long as the queue is there.
_operation_limiters: RunVar["WeakKeyDictionary[OperationQueue, anyio.CapacityLimiter]"] = RunVar(
    "agentrt database threads"
)
_OperationResult = TypeVar("_OperationResult")
_BlockingWork = Callable[[float], _OperationResult]


class DatabaseError(Exception):
    """A database has failed; the text says how, and nothing of what it was given.

    With `is_lost` the connection was lost before the answer came, so that what was asked for may have been done.
    """

    def __init__(self, reason: str, error: type[StateError] = SessionIOError, *, is_lost: bool = False) -> None:
        super().__init__(reason)
        self.error, self.is_lost = error, is_lost


class OperationQueue:
    """Runs blocking work in threads; operations with one key run one after the other, in order.

    At most `threads` of them run at a time, apart from the threads that tools use; `None` is for no limit of its own.
    Each takes at most `seconds`, or `MAX_WAIT`.
    """

    def __init__(self, threads: int | None = None, seconds: float | None = None) -> None:
        self._last: dict[Hashable, _QueuedOperation] = {}
        self._lock = Lock()  # of `_last`, which threads change too
        self._threads = threads
        self._seconds = seconds

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._threads, self._seconds)  # a copy has operations of its own

    async def run(
        self, key: Hashable, work: _BlockingWork[_OperationResult], *, shield: bool, extra_seconds: float = 0.0
    ) -> _OperationResult:
        """Return what `work` returns, which is given the time by which it has to end, in `time.monotonic()`.

        It may take `extra_seconds` longer than others. With `shield` a cancellation waits for it, except for one of
        asyncio's own: then the work ends without its caller. Raises `TimeoutError` when it takes longer, so that it may
        or may not have been done.
        """
        seconds = (MAX_WAIT if self._seconds is None else self._seconds) + extra_seconds
        with self._lock:
            operation = self._last[key] = _QueuedOperation(self._last.get(key))
        run = partial(self._run_in_turn, key, operation, work, time.monotonic() + seconds)
        try:
            # The thread stops waiting first, unless it is the disk or a server that hangs.
            with anyio.move_on_after(seconds + _EXTRA_WAIT, shield=shield):
                return await to_thread.run_sync(run, abandon_on_cancel=True, limiter=self._get_limiter())
        finally:
            operation.withdraw()
            self._forget_ended(key)
        raise no_answer(seconds)

    def _run_in_turn(
        self, key: Hashable, operation: "_QueuedOperation", work: _BlockingWork[_OperationResult], deadline: float
    ) -> _OperationResult:
        try:
            return operation.run(work, deadline)
        finally:
            self._forget_ended(key)  # here too, since its caller may have left, and so may those after it

    def _forget_ended(self, key: Hashable) -> None:
        with self._lock:
            last = self._last.get(key)
            if last is not None and last.is_done():
                del self._last[key]

    def _get_limiter(self) -> anyio.CapacityLimiter | None:
        if self._threads is None:
            return None
        limiters = _operation_limiters.get(None)
        if limiters is None:
            limiters = WeakKeyDictionary()
            _operation_limiters.set(limiters)
        limiter = limiters.get(self)
        if limiter is None:
            limiter = limiters[self] = anyio.CapacityLimiter(self._threads)
        return limiter


def no_answer(seconds: float | None = None) -> TimeoutError:
    """Return the error of an operation that takes longer than that, or than `MAX_WAIT`."""
    seconds = MAX_WAIT if seconds is None else seconds
    return TimeoutError(errno.ETIMEDOUT, f"no answer for {seconds:g} seconds, so it may or may not have been done")


class _QueuedOperation:
    """One operation on a session: runs in a thread when those before it are over, unless its caller left by then.

    A task that `asyncio` itself cancels leaves at once, whatever shields it: its thread then continues alone, and the
    next operation must not overtake it.
    """

    __slots__ = ("_claim", "_ended", "before", "never_ran")

    def __init__(self, before: "_QueuedOperation | None") -> None:
        # Those that were withdrawn are skipped, or a disk that hangs would make an ever longer chain.
        while before is not None and before.never_ran:
            before = before.before
        self.before: _QueuedOperation | None = before
        self._claim = Lock()
        self._ended = Event()
        self.never_ran: bool = False

    def run(self, work: _BlockingWork[_OperationResult], deadline: float) -> _OperationResult:
        if self.before is not None and not self.before.wait(deadline):
            raise TimeoutError(errno.ETIMEDOUT, f"an earlier operation on it has not ended for {MAX_WAIT:g} seconds")
        self.before = None  # it has ended: what it holds can be freed
        if not self._claim.acquire(blocking=False):
            raise TimeoutError(errno.ECANCELED, "its caller has left")  # so nothing ever shows this
        try:
            return work(deadline)
        finally:
            self._ended.set()

    def withdraw(self) -> None:
        """Prevent the operation from running, unless it already does."""
        if self._claim.acquire(blocking=False):
            self.never_ran = True
            self._ended.set()

    def is_done(self) -> bool:
        return self.wait(0)

    def wait(self, deadline: float) -> bool:
        """Wait for this operation and all before it; returns whether they ended in time."""
        before = self.before
        if before is not None and not before.wait(deadline):
            return False
        return self._ended.wait(max(0, deadline - time.monotonic()))
