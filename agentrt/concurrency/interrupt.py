"""Interrupting a reply: it ends tidily, whoever asked, and nobody else's cancellation is touched.

A reply that waits must be woken, and on both event loops only a cancellation does that. On asyncio the task that works
for the reply is cancelled; the cancellation is ours if taking it back leaves the task as it was, and otherwise goes on
as what it is. On trio each step of the reply has a cancel scope of its own. Between steps, while the reader holds an
event, nothing is cancelled: the request is found when the next step begins.
"""

import asyncio
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from functools import partial
from threading import get_ident
from typing import Any, TypeVar

import anyio
from anyio.lowlevel import checkpoint_if_cancelled

from agentrt.concurrency.event_loop import running_trio
from agentrt.types import FinishedReason

__all__ = ["InterruptResult", "Interrupted", "Interruption", "create_interruption"]

_T = TypeVar("_T")
_TICK_SECONDS = 1.0
_STUBBORN_SECONDS = 10.0


class InterruptResult(int):
    """Whether there was a reply to interrupt: true or false, and what comes of awaiting it, for those who do."""

    __slots__ = ()

    def __await__(self) -> Generator[None, None, "InterruptResult"]:
        return self
        yield  # which makes it a generator

    def __repr__(self) -> str:
        return repr(bool(self))


class Interrupted(BaseException):
    """Leaves the core of a reply that was asked to stop."""


class Interruption:
    """Whether one reply was asked to stop, and the means to stop it, on asyncio.

    `reason` is how the reply ends, once somebody asked it to. `task` is the task that works for the reply, and `None`
    while the reader holds an event; who goes on with the reply sets it to `current_task()`. With `single_task` one task
    reads the whole reply and waits for nothing else meanwhile, so that `task` need not be cleared for each event.
    """

    # Defaults of the class: hardly any reply is interrupted.
    task: asyncio.Task[Any] | None = None
    reason: FinishedReason | None = None
    message: str | None = None
    deadline = float("inf")
    started_at = 0.0
    single_task = False
    print_scope: anyio.CancelScope | None = None  # what is printed meanwhile, in the reader's task
    _watch: "_Watch | None" = None
    _reader: asyncio.Task[Any] | None = None
    _cancelled: asyncio.Task[Any] | None = None
    _retry_timer: asyncio.TimerHandle | None = None
    _cancelling_before = _cancel_count = 0

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop: Any = loop
        self.current_task: Callable[[], asyncio.Task[Any] | None] = partial(asyncio.current_task, loop)
        self._thread = get_ident()

    def request(self, reason: FinishedReason, message: str | None = None) -> None:
        """Ask the reply to stop, from any thread or signal handler; only the first request counts."""
        if self.reason is not None:
            return
        self.message = message
        self.reason = reason
        # A task cannot cancel itself: what it awaits next may be somewhere else altogether. And a signal handler comes
        # when no task runs and the loop sleeps, which must be woken.
        worker = self.current_task() if get_ident() == self._thread else None
        if worker is not None and worker is not self.task:
            self._deliver()
        else:
            self._loop.call_soon_threadsafe(self._deliver)

    def _deliver(self) -> None:
        if self.print_scope is not None:
            self.print_scope.cancel()
        if self.task is None or self._cancelled not in (None, self.task):
            return
        self._cancelled = self.task
        self._cancel_count += 1
        self.task.cancel()
        # Whoever swallowed that and waits on is told again, but not before a clean-up has had its time.
        self._retry_timer = self._loop.call_later(_STUBBORN_SECONDS, self._deliver)

    def begin(self, seconds: float, *, single_task: bool = False) -> None:
        """Have the reply stopped when that many seconds of it have gone by."""
        self.single_task = single_task
        watch = _thread_watch.watch
        if watch is None or watch.loop is not self._loop:
            watch = _thread_watch.watch = _Watch(self._loop)
        self._watch = watch
        watch.add(self, seconds)

    def elapsed(self) -> float:
        """Return how many seconds have gone by since the reply, or this part of it, began."""
        return float(self._loop.time()) - self.started_at

    def end(self) -> None:
        """Forget it all: the reply is over."""
        self.task = None
        if self._watch is not None:
            self._watch.running.discard(self)
            self._watch = None
        if self._cancelled is not None:
            self._uncancel()

    async def run_interruptible(self, work: Callable[[], Awaitable[_T]]) -> _T:
        """Await `work()`, which can be interrupted until it reads a stream of its own; raises `Interrupted`."""
        if self.reason is not None:
            raise Interrupted
        self.bind_reader()
        self.task = self._reader
        try:
            return await work()
        except BaseException as error:
            if self.reason is None or not self.is_interruption(error):
                raise
            raise Interrupted from None
        finally:
            self.task = None

    def rearm(self) -> None:
        """Have the work that `whole` awaits interruptible again, after it has taken steps of its own."""
        self.task = self.current_task()

    def guard_steps(self, stream: AsyncGenerator[_T, None]) -> AsyncGenerator[_T, None]:
        """Return the stream to read in place of this one, each step of which can be interrupted."""
        if not self.single_task or self._reader is None:
            self.bind_reader()
        self.task = self._reader
        return stream

    def bind_reader(self) -> None:
        """Note which task reads the reply, and how often it had been cancelled before it did."""
        reader = self.current_task()
        if reader is not self._reader:
            self._reader = reader
            self._cancelling_before = 0 if reader is None else reader.cancelling()

    def has_pending_cancellation(self) -> bool:
        """Say whether a tool or a layer has swallowed the caller's cancellation in this round."""
        reader = self._reader
        if reader is None or not reader.cancelling():
            return False
        ours = self._cancel_count if self._cancelled is reader else 0
        return reader is self.current_task() and reader.cancelling() > self._cancelling_before + ours

    async def raise_pending_cancellation(self) -> None:
        """Raise the cancellation that was swallowed."""
        await checkpoint_if_cancelled()  # a scope of anyio knows its own cancellation only
        raise anyio.get_cancelled_exc_class()

    def is_interruption(self, error: BaseException) -> bool:
        """Say whether the error is the interruption, and nobody else's cancellation as well."""
        self.task = None
        alone = self._uncancel()
        return isinstance(error, Interrupted) or (alone and isinstance(error, anyio.get_cancelled_exc_class()))

    def _uncancel(self) -> bool:
        task, self._cancelled = self._cancelled, None
        if task is None or self._retry_timer is None:
            return False
        self._retry_timer.cancel()
        for _ in range(self._cancel_count):
            task.uncancel()
        # A task that came to read later was made for that, and began with no cancellation.
        return task.cancelling() <= (self._cancelling_before if task is self._reader else 0)


class _Watch:
    """Looks once a second which of the replies of an event loop have gone on for too long.

    A timer for each would cost a tenth of a short reply.
    """

    __slots__ = ("_next", "loop", "running")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.running: set[Interruption] = set()
        self._next: asyncio.TimerHandle | None = None

    def add(self, reply: Interruption, seconds: float) -> None:
        reply.started_at = now = self.loop.time()
        reply.deadline = now + seconds
        self.running.add(reply)
        if seconds < _TICK_SECONDS:
            self.loop.call_later(seconds, self._look)
        elif self._next is None:
            self._next = self.loop.call_later(_TICK_SECONDS, self._tick)

    def _tick(self) -> None:
        self._look()
        self._next = self.loop.call_later(_TICK_SECONDS, self._tick) if self.running else None

    def _look(self) -> None:
        now = self.loop.time()
        for reply in [each for each in self.running if now >= each.deadline]:
            reply.request("exceed_max_seconds")


class _Here(threading.local):
    watch: _Watch | None = None


_thread_watch = _Here()


class _TrioInterruption(Interruption):
    """The same on trio."""

    def __init__(self) -> None:
        trio = running_trio()
        self._new_scope = trio.CancelScope  # anyio's costs twice as much, and there is one for each event
        self._now = trio.lowlevel.current_clock().current_time
        self.current_task = _no_task
        self._loop = trio.lowlevel.current_trio_token()
        self._scope: Any = None
        self._whole_scope: Any = None

    def request(self, reason: FinishedReason, message: str | None = None) -> None:
        if self.reason is None:
            self.message = message
            self.reason = reason
            self._loop.run_sync_soon(self._deliver)  # which wakes a loop that sleeps, where a signal handler asks

    def _deliver(self) -> None:
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
        return True  # whoever waits next is told anyway

    async def raise_pending_cancellation(self) -> None:
        await checkpoint_if_cancelled()

    async def run_interruptible(self, work: Callable[[], Awaitable[_T]]) -> _T:
        if self.reason is None:
            with self._new_scope() as scope:
                self._scope = self._whole_scope = scope
                try:
                    return await work()
                finally:
                    self._scope = self._whole_scope = None
        raise Interrupted

    def rearm(self) -> None:
        self._scope = self._whole_scope

    async def guard_steps(self, stream: AsyncGenerator[_T, None]) -> AsyncGenerator[_T, None]:
        new_scope, now, deadline, take_step = self._new_scope, self._now, self.deadline, stream.__anext__
        while now() < deadline:  # which a step that never waits would not notice
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


def _no_task() -> None:
    pass


def create_interruption(loop: asyncio.AbstractEventLoop | None) -> Interruption:
    """Return the means for asyncio's event loop, `None` for trio's."""
    return _TrioInterruption() if loop is None else Interruption(loop)
