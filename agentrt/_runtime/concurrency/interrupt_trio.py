"""Interrupting a reply on trio, and the choice of the way that the running event loop needs."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from agentrt._runtime.concurrency.coroutine_reader import Reading
from agentrt._runtime.concurrency.event_loop import running_trio
from agentrt._runtime.concurrency.interrupt import Interrupted, Interruption
from agentrt.types import FinishedReason

_TrioValue = TypeVar("_TrioValue")


def create_interruption(loop: asyncio.AbstractEventLoop | None) -> Interruption:
    """Return the means for asyncio's event loop, `None` for trio's."""
    return _TrioInterruption() if loop is None else Interruption(loop)


class _TrioInterruption(Interruption):
    """The same on trio, where the reply is stopped by a cancel scope.

    One scope is open while a step works, and closed before the reader has control; where nobody reads, it is open from
    the first step to the end. A scope knows its own cancellation, so nothing is taken back, and no task is noted. The
    scope of a step that is read gets its deadline when the step waits, since hardly any step for a delta does.
    """

    has_scopes = True
    _is_read = False
    _has_caught = False  # whether the scope that was left last has ended its own cancellation

    def __init__(self) -> None:
        self.reason = None
        trio = running_trio()
        self._new_scope = trio.CancelScope  # anyio's costs twice as much
        self._now = trio.lowlevel.current_clock().current_time
        self._token = trio.lowlevel.current_trio_token()
        self._checkpoint_if_cancelled = trio.lowlevel.checkpoint_if_cancelled
        self.current_task = lambda: None
        self._scope: Any = None  # the one to cancel
        self._work_scope: Any = None
        self._step_scope: Any = None

    @property
    def is_in_step(self) -> bool:
        return self._scope is not None

    def request(self, reason: FinishedReason, message: str | None = None) -> None:
        if self.reason is None:
            self.message = message
            self.reason = reason
            self._token.run_sync_soon(self._cancel)  # which wakes a loop that sleeps, where a signal handler asks

    def _cancel(self) -> None:
        if self.print_scope is not None:
            self.print_scope.cancel()
        if self._scope is not None:
            self._scope.cancel()

    def begin(self, seconds: float) -> None:
        self.started_at = self._now()
        self.deadline = self.started_at + seconds

    def end(self) -> None:
        self.suspend()

    def suspend(self, error: BaseException | None = None) -> None:
        scope = self._step_scope
        if scope is not None:
            self._scope = self._step_scope = None
            # The error is that of the step. Of a group, what is not the cancellation is raised here.
            self._has_caught = scope.__exit__(type(error), error, None) and error is not None
            if self._has_caught:
                self.reason = self.reason or "exceed_max_seconds"

    def resume(self) -> None:
        if self._step_scope is not None:
            return
        if self._now() >= self.deadline:  # looked at here, since what never waits does not notice its scope's deadline
            self.reason = self.reason or "exceed_max_seconds"
        if self.reason is None:  # else nothing is left to stop, and what closes the step is not to be cancelled
            scope = self._new_scope() if self._is_read else self._new_scope(deadline=self.deadline)
            self._scope = self._step_scope = scope
            scope.__enter__()

    def elapsed(self) -> float:
        return float(self._now()) - self.started_at

    def follow(self, reading: Reading) -> None:
        self._is_read = True
        reading.on_wait = self._set_deadline

    def _set_deadline(self) -> None:
        scope = self._step_scope
        if scope is not None and scope.deadline != self.deadline:
            scope.deadline = self.deadline

    def bind_reader(self) -> None:
        pass

    def has_pending_cancellation(self) -> bool:
        return True  # there may be one, and the checkpoint raises it if there is

    def raise_pending_cancellation(self) -> Any:
        return self._checkpoint_if_cancelled()

    async def is_interruption(self, error: BaseException) -> bool:
        return isinstance(error, Interrupted) or self._has_caught

    async def run_interruptible(self, work: Callable[[], Awaitable[_TrioValue]]) -> _TrioValue:
        if self.reason is None:
            with self._new_scope() as scope:
                self._scope = self._work_scope = scope
                try:
                    return await work()
                finally:
                    self._scope = self._work_scope = None
        raise Interrupted

    def rearm(self) -> None:
        self._scope = self._work_scope
