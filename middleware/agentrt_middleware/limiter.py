"""One queue in front of some limits: first come, first served.

Only the head of the queue may ask whether it may begin. It does so when it has become the head, when the time that it
was told has passed, and when a call has ended; however it leaves the queue, it wakes the next one. Asking and taking is
one step without an `await`, so a waiter that is cancelled has taken nothing.

A limiter serves any number of event loops, in several threads or one after the other. Each waiter is woken on its own.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from math import inf
from threading import Lock
from time import monotonic
from typing import Any

import anyio
from anyio.lowlevel import RunVar, current_token

from agentrt.errors import RateLimitTimeout
from agentrt_middleware.limits import Limits, Refusal, Usage

__all__ = ["Lease", "Limiter", "Listener", "Waiter", "loop_time"]

_offset: RunVar[float] = RunVar("agentrt_clock_offset")
_NEWS = 1.0  # seconds by which a wait must be longer than was announced, to be announced again


def loop_time() -> float:
    """The clock of the event loop, as `time.monotonic` would show it, so that those of several can be compared."""
    loop = asyncio._get_running_loop()
    if loop is not None:
        return loop.time()
    now = anyio.current_time()
    try:
        return now + _offset.get()
    except LookupError:
        _offset.set(monotonic() - now)
        return now + _offset.get()


class Listener:
    """Is told what becomes of one call; does nothing with it, unless a subclass says so."""

    def waits(self, refusal: Refusal, ahead: int) -> None:
        """The call waits, behind `ahead` others."""

    def store_changed(self, is_up: bool, policy: str) -> None:
        """The store that the limits are shared through has failed, or is back."""


_DEAF = Listener()
_TURN = Refusal(0.0, "turn", inf)


class Lease:
    """The right to one call; `settle` it when the call is over."""

    __slots__ = ("_is_settled", "_limiter", "_tokens")

    def __init__(self, limiter: "Limiter", tokens: float) -> None:
        self._limiter = limiter
        self._tokens = tokens
        self._is_settled = False

    async def settle(self, tokens: float | None = None) -> None:
        """Let the next call begin, and count the tokens that this one took; `None` leaves it at the estimate.

        Only the first time counts.
        """
        if not self._is_settled:
            self._is_settled = True
            self._limiter.end(0.0 if tokens is None else tokens - self._tokens)


def _event_loop() -> Any:
    return asyncio._get_running_loop() or current_token().native_token


class Waiter:
    """One call in the queue."""

    __slots__ = ("_event", "_is_awake", "ahead", "is_queued", "loop", "tokens")

    def __init__(self, tokens: float) -> None:
        self.tokens = tokens
        self.loop: Any = None
        self.ahead = 0
        self.is_queued = False
        self._event: anyio.Event | None = None
        self._is_awake = False

    async def sleep(self, seconds: float) -> None:
        """Wait until it is woken, but no longer than this; not at all if it was woken since the last time."""
        if not self._is_awake:
            self._event = anyio.Event()
            if seconds == inf:
                await self._event.wait()
            else:
                with anyio.move_on_after(seconds):
                    await self._event.wait()
            self._event = None
        self._is_awake = False

    def wake(self) -> bool:
        """Have the waiter look again; `False` if its event loop has ended."""
        if self.loop is _event_loop():
            self._wake()
            return True
        soon = getattr(self.loop, "call_soon_threadsafe", None) or self.loop.run_sync_soon
        try:
            soon(self._wake)
        except RuntimeError:
            return False
        return True

    def _wake(self) -> None:
        self._is_awake = True
        if self._event is not None:
            self._event.set()


class Limiter:
    """Lets calls begin as its limits allow, in the order in which they ask."""

    def __init__(self, limits: Limits, clock: Callable[[], float] = loop_time) -> None:
        self.limits = limits
        self.clock = clock
        self.usage = Usage()
        self._queue: deque[Waiter] = deque()
        self._queued_tokens = 0.0
        self._lock = Lock()

    async def acquire(self, tokens: float = 0.0, *, max_wait: float | None = None, listener: Listener = _DEAF) -> Lease:
        """Wait until a call of about this many tokens may begin.

        Raises `RateLimitTimeout` as soon as it is known that this takes longer than `max_wait` seconds.
        """
        waiter = Waiter(tokens)
        answer = self._enter(waiter)
        if isinstance(answer, Lease):
            return answer
        try:
            patience = _Patience(self.clock, max_wait, listener)
            while True:
                if answer is not None:
                    patience.check(answer, waiter.ahead)
                    waiter.ahead = 0  # counted once; a later look need not be as close
                    await waiter.sleep(min(answer.again, patience.left()))
                answer = await self._look(waiter, listener)
                if isinstance(answer, Lease):
                    return answer
        finally:
            self._leave(waiter)

    async def block(self, seconds: float) -> None:
        """Let nothing begin for so long."""
        with self._lock:
            self.usage.block(self.clock(), seconds)
            waiters = list(self._queue)
        for waiter in waiters:
            waiter.wake()

    def is_at_rest(self) -> bool:
        """Say whether nobody calls or waits, and nothing is used."""
        with self._lock:
            return not self._queue and self.usage.is_at_rest(self.limits, self.clock())

    def end(self, difference: float) -> None:
        """Count the end of a call, and let the next one look."""
        with self._lock:
            self.usage.end(self.limits, self.clock(), difference)
            self._wake_head()

    def _enter(self, waiter: Waiter) -> Lease | Refusal | None:
        """Take at once, or queue; `None` if the waiter is to look before it sleeps."""
        with self._lock:
            queue, usage = self._queue, self.usage
            if not queue:
                refusal = usage.take(self.limits, self.clock(), waiter.tokens)
                if refusal is None:
                    return Lease(self, waiter.tokens)
            else:
                waiter.ahead = len(queue)
                refusal = self._in_turn(waiter, self._queued_tokens)
            self._join(waiter)
            return refusal

    def _join(self, waiter: Waiter) -> None:
        waiter.loop = _event_loop()
        waiter.is_queued = True
        self._queue.append(waiter)
        self._queued_tokens += waiter.tokens
        if self._queue[0].loop is not waiter.loop:
            self._wake_head()  # to find out whether its event loop is still there

    async def _look(self, waiter: Waiter, listener: Listener) -> Lease | Refusal:
        with self._lock:
            if self._queue[0] is not waiter:
                return self._in_turn(waiter, 0.0)
            refusal = self.usage.take(self.limits, self.clock(), waiter.tokens)
            if refusal is None:
                self._step_out(waiter)
                return Lease(self, waiter.tokens)
            return refusal

    def _in_turn(self, waiter: Waiter, tokens_ahead: float) -> Refusal:
        """Return what can be said of a waiter that is not the head."""
        refusal = self.usage.wait(self.limits, self.clock(), waiter.tokens, waiter.ahead, tokens_ahead)
        if refusal is None or not refusal.seconds:
            return _TURN
        return Refusal(refusal.seconds, refusal.reason, inf)

    def _leave(self, waiter: Waiter) -> None:
        if waiter.is_queued:
            with self._lock:
                self._step_out(waiter)

    def _step_out(self, waiter: Waiter) -> None:
        if waiter.is_queued:
            was_head = self._queue[0] is waiter
            self._remove(waiter)
            if was_head and not self._is_full():
                self._wake_head()

    def _is_full(self) -> bool:
        """Say whether the next one may as well sleep on: the end of a call will wake it."""
        most = self.limits.max_concurrency
        return most is not None and self.usage.active >= most

    def _wake_head(self) -> None:
        while self._queue and not self._queue[0].wake():
            self._remove(self._queue[0])

    def _remove(self, waiter: Waiter) -> None:
        waiter.is_queued = False
        self._queue.remove(waiter)
        self._queued_tokens -= waiter.tokens


class _Patience:
    """How long one call is willing to wait, and what it has been told."""

    __slots__ = ("_clock", "_deadline", "_listener", "_max_wait", "_promised")

    def __init__(self, clock: Callable[[], float], max_wait: float | None, listener: Listener) -> None:
        self._clock = clock
        self._max_wait = max_wait
        self._deadline = inf if max_wait is None else clock() + max_wait
        self._listener = listener
        self._promised = -inf

    def left(self) -> float:
        """Return for how many seconds the call may still wait."""
        return inf if self._deadline == inf else max(0.0, self._deadline - self._clock())

    def check(self, refusal: Refusal, ahead: int) -> None:
        """Raise `RateLimitTimeout` if that is too long to wait, or else tell whoever wants to know."""
        first = self._promised == -inf
        if self._max_wait is None and not first and not refusal.seconds:
            return
        now = self._clock()
        if now + refusal.seconds > self._deadline or (now >= self._deadline and not first):
            raise RateLimitTimeout(
                f"the rate limit ({refusal.reason}) allows this call in {refusal.seconds:.3g} s at the earliest, "
                f"but max_wait={self._max_wait:g}: wait longer, or call less",
                retry_after=refusal.seconds,
            )
        if first or (refusal.seconds > 0 and now + refusal.seconds > self._promised + _NEWS):
            self._promised = now + refusal.seconds
            self._listener.waits(refusal, ahead)
