"""Interrupting a reply on trio, and the choice of the way that the running event loop needs."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any, TypeVar

from agentrt.concurrency.event_loop import running_trio
from agentrt.concurrency.interrupt import Interrupted, Interruption
from agentrt.types import FinishedReason

__all__ = ["create_interruption"]

_TrioValue = TypeVar("_TrioValue")


def create_interruption(loop: asyncio.AbstractEventLoop | None) -> Interruption:
    """Return the means for asyncio's event loop, `None` for trio's."""
    return _TrioInterruption() if loop is None else Interruption(loop)


class _TrioInterruption(Interruption):
    """The same on trio, where the reply is stopped by a cancel scope.

    Where the reader has control between two items, each of them has a scope of its own. With `single_task` nobody has,
    so one scope is open from the first step to the end: opening and closing one takes longer than most items do. A
    scope knows its own cancellation, so nothing need be taken back, and no task is noted.
    """

    _has_caught = False  # whether the scope that was left last has ended its own cancellation

    def __init__(self) -> None:
        trio = running_trio()
        self._new_scope = trio.CancelScope  # anyio's costs twice as much
        self._now = trio.lowlevel.current_clock().current_time
        self._token = trio.lowlevel.current_trio_token()
        self._checkpoint_if_cancelled = trio.lowlevel.checkpoint_if_cancelled
        self.current_task = lambda: None
        self._scope: Any = None  # the one to cancel
        self._work_scope: Any = None
        self._single_scope: Any = None

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

    def begin(self, seconds: float, *, single_task: bool = False) -> None:
        self.single_task = single_task
        self.started_at = self._now()
        self.deadline = self.started_at + seconds

    def end(self) -> None:
        self.suspend()

    def suspend(self, error: BaseException | None = None) -> None:
        scope = self._single_scope
        if scope is not None:
            self._scope = self._single_scope = None
            # The error is that of the step. Of a group, what is not the cancellation is raised here.
            self._has_caught = scope.__exit__(type(error), error, None) and error is not None
            if self._has_caught:
                self.reason = self.reason or "exceed_max_seconds"

    def resume(self) -> None:
        if self._single_scope is None:
            self._scope = self._single_scope = scope = self._new_scope(deadline=self.deadline)
            scope.__enter__()

    def elapsed(self) -> float:
        return float(self._now()) - self.started_at

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

    def guard_steps(self, stream: AsyncGenerator[_TrioValue, None]) -> AsyncGenerator[_TrioValue, None]:
        if not self.single_task:
            return self._guard_each_step(stream)
        self.guard_work()
        return stream

    def guard_work(self) -> None:
        if self._now() >= self.deadline:  # looked at here, since what never waits does not notice its scope's deadline
            self.reason = self.reason or "exceed_max_seconds"
            raise Interrupted
        self.resume()

    async def _guard_each_step(self, stream: AsyncGenerator[_TrioValue, None]) -> AsyncGenerator[_TrioValue, None]:
        new_scope, now, deadline, take_step = self._new_scope, self._now, self.deadline, aiter(stream).__anext__
        while now() < deadline:
            # Set before it is entered: a request that comes in between cancels the step as it begins.
            self._scope = scope = new_scope(deadline=deadline)
            try:
                with scope:
                    item = await take_step()
            except StopAsyncIteration:
                return
            finally:
                self._scope = None
            if scope.cancelled_caught:
                break
            yield item
        self.reason = self.reason or "exceed_max_seconds"
        raise Interrupted
