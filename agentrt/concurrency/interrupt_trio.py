"""Interrupting a reply on trio, and the choice of the way that the running event loop needs."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any, TypeVar

from anyio.lowlevel import checkpoint_if_cancelled

from agentrt.concurrency.event_loop import running_trio
from agentrt.concurrency.interrupt import Interrupted, Interruption
from agentrt.types import FinishedReason

__all__ = ["create_interruption"]

_TrioValue = TypeVar("_TrioValue")


def create_interruption(loop: asyncio.AbstractEventLoop | None) -> Interruption:
    """Return the means for asyncio's event loop, `None` for trio's."""
    return _TrioInterruption() if loop is None else Interruption(loop)


class _TrioInterruption(Interruption):
    """The same on trio, where the reply is stopped by a cancel scope around each of its steps.

    A scope knows its own cancellation, so nothing need be taken back, and no task is noted.
    """

    def __init__(self) -> None:
        trio = running_trio()
        self._new_scope = trio.CancelScope  # anyio's costs twice as much, and there is one for each event
        self._now = trio.lowlevel.current_clock().current_time
        self._token = trio.lowlevel.current_trio_token()
        self.current_task = lambda: None
        self._scope: Any = None
        self._work_scope: Any = None

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
        self.started_at = self._now()
        self.deadline = self.started_at + seconds

    def elapsed(self) -> float:
        return float(self._now()) - self.started_at

    def bind_reader(self) -> None:
        pass

    def has_pending_cancellation(self) -> bool:
        return True  # there may be one, and the checkpoint below raises it if there is

    async def raise_pending_cancellation(self) -> None:
        await checkpoint_if_cancelled()

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

    async def guard_steps(self, stream: AsyncGenerator[_TrioValue, None]) -> AsyncGenerator[_TrioValue, None]:
        new_scope, now, deadline, take_step = self._new_scope, self._now, self.deadline, stream.__anext__
        while now() < deadline:  # looked at here, since a step that never waits does not notice its scope's deadline
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
