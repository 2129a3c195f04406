"""Blocking work in threads, first in first out per session, with a time limit."""

import errno
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from functools import partial
from threading import Event, Lock
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import anyio
from anyio import to_thread
from anyio.lowlevel import RunVar

from agentrt.errors import SessionIOError, StateError

MAX_WAIT = 10.0
"""Seconds that an operation may take."""

MAX_OPERATIONS = 10_000
"""Operations of one store that may run or wait; more are refused as "busy"."""

_EXTRA_WAIT = 1.0
# Per event loop, since a limiter belongs to one, and only as long as the queue is there.
_operation_limiters: RunVar["WeakKeyDictionary[OperationQueue, anyio.CapacityLimiter]"] = RunVar(
    "agentrt database threads"
)
_OperationResult = TypeVar("_OperationResult")
_BlockingWork = Callable[[float], _OperationResult]


class DatabaseError(Exception):
    """A database has failed; the text says how, without its input.

    With `is_lost`, the connection was lost before the answer, so the operation may have succeeded.
    """

    def __init__(self, reason: str, error: type[StateError] = SessionIOError, *, is_lost: bool = False) -> None:
        super().__init__(reason)
        self.error, self.is_lost = error, is_lost


class OperationQueue:
    """Runs blocking work in threads; operations with one key run one after the other, in order.

    At most `threads` of them run at a time, apart from the threads of tools; `None` means no separate limit.
    Each takes at most `seconds`, or `MAX_WAIT`. At most `MAX_OPERATIONS` run or wait at a time.
    """

    def __init__(self, threads: int | None = None, seconds: float | None = None) -> None:
        # By key, in order. The first of each key runs, or is about to.
        self._lines: dict[Hashable, OrderedDict[_Operation, None]] = {}
        self._count = 0  # of all operations in lines
        self._lock = Lock()  # of both, which threads also change
        self._threads = threads
        self._seconds = seconds

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._threads, self._seconds)  # a copy has operations of its own

    async def run(
        self, key: Hashable, work: _BlockingWork[_OperationResult], *, shield: bool, extra_seconds: float = 0.0
    ) -> _OperationResult:
        """Return the result of `work`, which gets its deadline, in `time.monotonic()`.

        It may take `extra_seconds` longer than others. With `shield` a cancellation waits for it, except for
        asyncio's own: then the work ends without its caller. Raises `TimeoutError` if it takes longer, and if too
        many others wait; the text says whether it may have succeeded.
        """
        seconds = (MAX_WAIT if self._seconds is None else self._seconds) + extra_seconds
        limiter = self._get_limiter()
        operation = self._enqueue(key)
        run = partial(self._run_in_turn, operation, work, seconds, time.monotonic() + seconds)
        try:
            # The thread gives up first, unless the disk or a server hangs.
            with anyio.move_on_after(seconds + _EXTRA_WAIT, shield=shield):
                # In the order of the lines, without a turn of the event loop in between: else a thread that waits for
                # an earlier operation could be the one that this would have to run in.
                await limiter.acquire_on_behalf_of(operation)
                try:
                    return await to_thread.run_sync(run, abandon_on_cancel=True, limiter=anyio.CapacityLimiter(1))
                finally:
                    limiter.release_on_behalf_of(operation)
        finally:
            has_begun = self._withdraw(operation)
        if has_begun:
            raise no_answer(seconds)
        raise TimeoutError(errno.ETIMEDOUT, f"it had no turn for {seconds:g} seconds, so nothing was done")

    def _enqueue(self, key: Hashable) -> "_Operation":
        with self._lock:
            if self._count >= MAX_OPERATIONS:
                raise TimeoutError(errno.EBUSY, f"it is busy: {self._count:,} operations wait, so try again later")
            line = self._lines.setdefault(key, OrderedDict())
            operation = _Operation(key)
            line[operation] = None
            self._count += 1
            if len(line) == 1:
                operation.is_due.set()
        return operation

    def _run_in_turn(
        self, operation: "_Operation", work: _BlockingWork[_OperationResult], seconds: float, deadline: float
    ) -> _OperationResult:
        if not operation.is_due.wait(max(0.0, deadline - time.monotonic())):
            raise TimeoutError(errno.ETIMEDOUT, f"an earlier operation on it has not ended for {seconds:g} seconds")
        with self._lock:
            if operation.has_left:
                raise TimeoutError(errno.ECANCELED, "its caller has left")  # so nothing ever shows this
            operation.is_running = True
        try:
            return work(deadline)
        finally:
            with self._lock:
                self._remove(operation)

    def _withdraw(self, operation: "_Operation") -> bool:
        """Prevent the operation from running; returns whether it already runs, and so leaves its line when it ends.

        A task cancelled by asyncio itself leaves at once, even if shielded: its thread then continues alone, and the
        next operation must not overtake it.
        """
        with self._lock:
            has_begun = operation.is_running or operation.has_left
            if not has_begun:
                self._remove(operation)
            return has_begun

    def _remove(self, operation: "_Operation") -> None:
        operation.is_running, operation.has_left = False, True
        operation.is_due.set()  # a thread that waits for its turn can stop
        line = self._lines[operation.key]
        del line[operation]
        self._count -= 1
        if line:
            next(iter(line)).is_due.set()
        else:
            del self._lines[operation.key]

    def _get_limiter(self) -> anyio.CapacityLimiter:
        if self._threads is None:
            return to_thread.current_default_thread_limiter()
        limiters = _operation_limiters.get(None)
        if limiters is None:
            limiters = WeakKeyDictionary()
            _operation_limiters.set(limiters)
        limiter = limiters.get(self)
        if limiter is None:
            limiter = limiters[self] = anyio.CapacityLimiter(self._threads)
        return limiter


def no_answer(seconds: float | None = None) -> TimeoutError:
    """Return the error of an operation that exceeds `seconds` or `MAX_WAIT`."""
    seconds = MAX_WAIT if seconds is None else seconds
    return TimeoutError(errno.ETIMEDOUT, f"no answer for {seconds:g} seconds, so it may or may not have been done")


class _Operation:
    """An operation in the line of its key; `has_left` says that it is over, or will not run."""

    __slots__ = ("has_left", "is_due", "is_running", "key")

    def __init__(self, key: Hashable) -> None:
        self.key = key
        self.is_due = Event()
        self.is_running = self.has_left = False
