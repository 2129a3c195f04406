"""Interrupting a reply: it ends tidily, whichever task or thread asked, and other cancellations are left alone.

A reply that waits must be woken, and on both event loops only a cancellation does that. On asyncio the task that works
for the reply is cancelled, and that cancellation is taken back when it arrives. If the task still counts as cancelled
then, someone else has cancelled it as well, and the cancellation is raised. On trio a cancel scope is open while the
reply works (interrupt_trio.py). Between steps, while the reader holds an event, nothing is cancelled: the request is
found when the next step begins.
"""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Generator
from functools import partial
from threading import get_ident
from typing import TypeVar

import anyio
from anyio.lowlevel import checkpoint_if_cancelled

from agentrt._runtime.concurrency.coroutine_reader import Reading
from agentrt.types import FinishedReason

_Value = TypeVar("_Value")
_TICK_SECONDS = 1.0
_STUBBORN_SECONDS = 10.0


class InterruptResult(int):
    """Whether there was a reply to interrupt. It may be awaited, since `await agent.interrupt()` is what 1.x wrote."""

    __slots__ = ()

    def __await__(self) -> Generator[None, None, "InterruptResult"]:
        return self
        yield  # never reached, but it makes this method a generator

    def __repr__(self) -> str:
        return repr(bool(self))


class Interrupted(BaseException):
    """Leaves the core of a reply that was asked to stop."""


class Interruption:
    """Whether one reply was asked to stop, and the means to stop it, on asyncio.

    `reason` is how the reply ends, once it was asked to. A step works from `resume` to `suspend`, and can be
    interrupted except while the reader holds an event. Which task reads is noted where it waits: an event that comes
    without waiting costs no look at it.
    """

    # Defaults of the class: hardly any reply is interrupted.
    has_scopes = False
    """Whether a scope is open while a step works, which must be closed while the reader holds an event."""
    message: str | None = None
    deadline = float("inf")
    started_at = 0.0
    print_scope: anyio.CancelScope | None = None  # around the printing of an event, in the reader's task
    _watch: "_TimeWatch | None" = None
    _is_open = False  # between `resume` and `suspend`
    _reading: Reading | None = None  # None where nobody reads
    _reader: asyncio.Task[object] | None = None
    _cancelled: asyncio.Task[object] | None = None
    _retry_timer: asyncio.TimerHandle | None = None
    _cancelling_before = _cancel_count = 0

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        # Not on the class, since it is read after each event: of the instance it is found in a fifth of the time.
        self.reason: FinishedReason | None = None
        self._loop = loop
        self.current_task: Callable[[], asyncio.Task[object] | None] = partial(asyncio.current_task, loop)
        self._thread = get_ident()

    @property
    def is_in_step(self) -> bool:
        """Whether a step is at work, and no reader or layer outside of it has control."""
        return self._is_open and (self._reading is None or self._reading.is_running)

    def request(self, reason: FinishedReason, message: str | None = None) -> None:
        """Ask the reply to stop, from any thread or signal handler; only the first request counts."""
        if self.reason is not None:
            return
        # The message first: a reply in another thread that sees the reason ends, and reads the message.
        self.message = message
        self.reason = reason
        # A task cannot cancel itself: what it awaits next may be in another place altogether. And a signal handler runs
        # while no task does and the loop sleeps, which must be woken. So both are left to the loop.
        current_task = self.current_task() if get_ident() == self._thread else None
        if current_task not in (None, self._reader) and self._is_waiting:
            self._cancel()
        else:
            self._loop.call_soon_threadsafe(self._cancel)

    def _cancel(self) -> None:
        if self.print_scope is not None:
            self.print_scope.cancel()
        # The reader holds an event, or another task than the one that was cancelled works for the reply by now: both
        # find the request when the next step begins.
        task = self._reader
        if task is None or not self._is_waiting or self._cancelled not in (None, task):
            return
        self._cancelled = task
        self._cancel_count += 1
        task.cancel()
        # Code that swallowed that and waits again is cancelled again, but not before a clean-up has had its time.
        self._retry_timer = self._loop.call_later(_STUBBORN_SECONDS, self._cancel)

    @property
    def _is_waiting(self) -> bool:
        return self._is_open and (self._reading is None or self._reading.is_waiting)

    def begin(self, seconds: float) -> None:
        """Have the reply stopped when that many seconds of it have passed."""
        watch = _thread_state.watch
        if watch is None or watch.loop is not self._loop:
            watch = _thread_state.watch = _TimeWatch(self._loop)
        self._watch = watch
        watch.add(self, seconds)

    def elapsed(self) -> float:
        """Return how many seconds have passed since the reply, or this part of it, began."""
        return float(self._loop.time()) - self.started_at

    def end(self) -> None:
        """Stop watching: the reply is over."""
        self._is_open = False
        if self._watch is not None:
            self._watch.running.discard(self)
            self._watch = None
        if self._cancelled is not None:
            self._uncancel()

    def suspend(self, error: BaseException | None = None) -> None:
        """Let nothing be interrupted until `resume`; `error` is what has ended the step, if one has.

        Raises what remains of a group of errors without our own cancellation.
        """
        self._is_open = False

    def resume(self) -> None:
        """Let what the reader's task does for the reply from here on be interrupted."""
        self._is_open = True

    async def run_interruptible(self, work: Callable[[], Awaitable[_Value]]) -> _Value:
        """Await `work()`, which can be interrupted until it reads a stream of its own; raises `Interrupted`."""
        if self.reason is not None:
            raise Interrupted
        self.bind_reader()
        self._is_open = True
        try:
            return await work()
        except BaseException as error:
            if self.reason is None or not await self.is_interruption(error):
                raise
            raise Interrupted from None
        finally:
            self._is_open = False

    def rearm(self) -> None:
        """Make the work that `run_interruptible` awaits interruptible again, after it has read a stream of its own."""
        self._reading = None
        self._is_open = True

    def follow(self, reading: Reading) -> None:
        """Interrupt the task that reads, whichever that is by then."""
        self._reading = reading
        reading.on_wait = self.bind_reader

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
        await checkpoint_if_cancelled()  # first, since a scope of anyio takes no cancellation but its own for its own
        raise anyio.get_cancelled_exc_class()

    async def is_interruption(self, error: BaseException) -> bool:
        """Say whether the error is the interruption alone, without a cancellation by someone else as well.

        If a scope was cancelled as well, raises its cancellation.
        """
        self._is_open = False  # before the cancellation is withdrawn, lest the timer cancels again
        is_alone = self._uncancel()
        is_cancellation = isinstance(error, anyio.get_cancelled_exc_class())
        if is_cancellation and not is_alone:
            # Of two cancellations in one turn asyncio delivers one, which may be ours; a scope accepts only its own.
            await checkpoint_if_cancelled()
        return isinstance(error, Interrupted) or (is_alone and is_cancellation)

    def _uncancel(self) -> bool:
        """Take our cancellations of the task back; says whether there were any, and none by someone else."""
        task, self._cancelled = self._cancelled, None
        if task is None or self._retry_timer is None:
            return False
        self._retry_timer.cancel()  # first, or it could cancel a task that has nothing to do with this reply any more
        for _ in range(self._cancel_count):
            task.uncancel()
        # A task that came to read later was made for that, and began with no cancellation.
        return task.cancelling() <= (self._cancelling_before if task is self._reader else 0)


class _TimeWatch:
    """Looks once a second which of the replies of an event loop have taken too long.

    A timer for each would cost a tenth of a short reply.
    """

    __slots__ = ("_timer", "loop", "running")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.running: set[Interruption] = set()
        self._timer: asyncio.TimerHandle | None = None

    def add(self, reply: Interruption, seconds: float) -> None:
        reply.started_at = now = self.loop.time()
        reply.deadline = now + seconds
        self.running.add(reply)
        if seconds < _TICK_SECONDS:  # a look once a second would come too late
            self.loop.call_later(seconds, self._stop_late_replies)
        elif self._timer is None:
            self._timer = self.loop.call_later(_TICK_SECONDS, self._tick)

    def _tick(self) -> None:
        self._stop_late_replies()
        self._timer = self.loop.call_later(_TICK_SECONDS, self._tick) if self.running else None

    def _stop_late_replies(self) -> None:
        now = self.loop.time()
        # A list of its own: a reply that is asked to stop may leave the set at once.
        for reply in [reply for reply in self.running if now >= reply.deadline]:
            reply.request("exceed_max_seconds")


class _ThreadState(threading.local):
    """A thread runs one event loop at a time, and looking that up here costs less than in a table by loop."""

    watch: _TimeWatch | None = None


_thread_state = _ThreadState()
