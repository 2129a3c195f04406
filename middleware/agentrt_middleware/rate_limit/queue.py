"""One queue in front of some limits: first come, first served.

Only the head of the queue may try to start. It tries when it becomes the head, when its assigned wait is over, and when
a call has ended; when it leaves the queue, in any way, it wakes the next waiter. Checking and taking is one step
without an `await`, so a cancelled waiter has taken nothing.

A limiter serves any number of event loops, in several threads or one after the other. Each waiter is woken on its own.
While the event loop of the head is blocked, calls of other loops overtake those of that loop.

A call that was lost with its event loop is closed by the garbage collector: in any thread, in the middle of anything,
where no loop runs. So the lock is reentrant, and neither ending a call nor leaving the queue needs an event loop.
"""

from asyncio import AbstractEventLoop, _get_running_loop
from collections import deque
from collections.abc import Awaitable, Callable
from math import inf
from threading import RLock
from typing import Any

import anyio
from anyio.lowlevel import current_token

from agentrt.errors import RateLimitTimeout
from agentrt_middleware.clock import loop_time
from agentrt_middleware.rate_limit.usage_window import RateLimits, Refusal, Usage

_HEAD_GRACE = 0.25  # seconds that the head may delay the others after it should have tried
_CLOCK_POLL = 0.1  # seconds between two readings of a clock that may differ from the event loop's
_NOTABLE = 1.0  # seconds by which a wait must exceed the announced one to be announced again


class Listener:
    """Observes one call; this class ignores everything."""

    def on_wait(self, refusal: Refusal, ahead: int) -> None:
        """The call has to wait, behind `ahead` others."""

    def on_store_change(self, is_up: bool, policy: str) -> None:
        """The store that shares the limits has failed, or recovered."""


_NO_LISTENER = Listener()

NOT_YOUR_TURN = Refusal(0.0, "turn", inf)
"""It is another call's turn; the wait is unknown."""


class Lease:
    """The permit for one call; `settle` it when the call is over."""

    __slots__ = ("_is_settled", "_limiter", "_tokens")

    def __init__(self, limiter: "Limiter", tokens: float) -> None:
        self._limiter = limiter
        self._tokens = tokens
        self._is_settled = False

    def needs_renewal(self) -> bool:
        """Say whether the lease needs a renewal, if the call continues."""
        return False

    async def renew(self) -> None:
        """Keep the place of the call for longer."""

    async def settle(self, tokens: float | None = None) -> None:
        """Let the next call start, and count the used tokens of this one; `None` keeps the estimate.

        Only the first call has an effect.
        """
        if not self._is_settled:
            self._is_settled = True
            self._limiter.end(self, 0.0 if tokens is None else tokens - self._tokens)


def _event_loop() -> Any:
    loop = _get_running_loop()
    if loop is not None:
        return loop
    try:
        return current_token().native_token
    except RuntimeError:  # no loop runs here
        return None


class Waiter:
    """One call in the queue."""

    __slots__ = (
        "_alarm",
        "_watched_head",
        "ahead",
        "due",
        "is_awake",
        "is_queued",
        "loop",
        "now",
        "number",
        "tokens",
        "tries",
    )

    def __init__(self, tokens: float) -> None:
        self.tokens = tokens
        self.number = 0  # in the order of arrival
        self.tries = 0
        self.due = -inf  # when it should try again
        self._watched_head: tuple[Waiter, int, float] | None = None  # the head, its number of tries, and since when
        self.loop: Any = None
        self.ahead = 0
        self.now = 0.0
        self.is_queued = False
        self.is_awake = False  # since its last try
        self._alarm: Any = None

    def finds_blocked(self, head: "Waiter") -> bool:
        """Say whether the head's try is overdue, as seen by a waiter of another event loop."""
        if not head.is_awake and head.due > self.now:
            return False
        if self._watched_head is None or self._watched_head[:2] != (head, head.tries):
            self._watched_head = (head, head.tries, self.now)
        return self.now - self._watched_head[2] >= _HEAD_GRACE

    def sleep(self, seconds: float) -> Awaitable[object]:
        """Wait until it is woken, but no longer than `seconds`."""
        return self._alarmed() if seconds == inf else self._alarmed_within(seconds)

    async def _alarmed_within(self, seconds: float) -> None:
        with anyio.move_on_after(seconds):
            await self._alarmed()

    def _alarmed(self) -> Awaitable[object]:
        # On asyncio a bare future, the core of anyio's event: without the event, the way through the
        # queue takes a quarter less time.
        if isinstance(self.loop, AbstractEventLoop):
            future = self._alarm = self.loop.create_future()
            return future
        event = self._alarm = anyio.Event()
        return event.wait()

    def wake(self) -> bool:
        """Make the waiter try again; returns `False` if its event loop has ended or stopped, perhaps for good."""
        loop, self.is_awake = self.loop, True
        if loop is _event_loop():
            self._raise_alarm()
            return True
        is_asyncio = isinstance(loop, AbstractEventLoop)
        try:
            (loop.call_soon_threadsafe if is_asyncio else loop.run_sync_soon)(self._raise_alarm)
        except RuntimeError:  # the loop is closed
            return False
        return not is_asyncio or bool(loop.is_running())

    def _raise_alarm(self) -> None:
        alarm = self._alarm
        if alarm is None:
            return
        if not isinstance(self.loop, AbstractEventLoop):
            alarm.set()
        elif not alarm.done():  # done if the wait is over, or cancelled
            alarm.set_result(None)


class Limiter:
    """Admits calls as its limits allow, in order of arrival."""

    def __init__(self, limits: RateLimits, clock: Callable[[], float] = loop_time) -> None:
        self.limits = limits
        self.clock = clock
        self.usage = Usage()
        self._queue: deque[Waiter] = deque()
        self._set_aside: list[Waiter] = []  # whose event loops are blocked
        self._queued_tokens = 0.0
        self._calls_to_wake = self._last_number = 0
        self._lock = RLock()

    async def acquire(
        self, tokens: float = 0.0, *, max_wait: float | None = None, listener: Listener = _NO_LISTENER
    ) -> Lease:
        """Wait until a call of about this many tokens may start.

        Raises `RateLimitTimeout` as soon as it is known that this takes longer than `max_wait` seconds.
        """
        waiter = Waiter(tokens)
        answer = self._take_or_queue(waiter)
        if isinstance(answer, Lease):
            return answer
        try:
            wait = _LimitedWait(self.clock, waiter.now, max_wait, listener)
            while True:
                if answer is not None:
                    wait.check(answer, waiter)
                    waiter.ahead = 0  # counted once; later estimates may be less exact
                    seconds = min(answer.again, wait.remaining())
                    if seconds < inf and self.clock is not loop_time:
                        seconds = min(seconds, _CLOCK_POLL)
                    waiter.due = waiter.now + seconds
                    # It may have been woken meanwhile by another thread or the garbage collector.
                    if not waiter.is_awake:
                        await waiter.sleep(seconds)
                waiter.is_awake = False
                waiter.tries += 1
                answer = self._try(waiter) or await self._take_from_store(waiter, listener)
                if isinstance(answer, Lease):
                    return answer
        finally:
            # Whatever the outcome, it must not stay at the head. Only `_try` removes it from the queue by itself.
            if waiter.is_queued or self._set_aside:
                self._withdraw(waiter)

    def change(self, limits: RateLimits) -> None:
        """Change the limits, for waiting calls too."""
        with self._lock:
            self.limits = limits
            self._wake_head()

    async def block(self, seconds: float) -> None:
        """Block all calls for that many seconds."""
        with self._lock:
            self.usage.block(self.clock(), seconds)
            waiters = list(self._queue)
        # All of them, since a call with a `max_wait` may now have to wait too long.
        for waiter in waiters:
            waiter.wake()

    def is_idle(self) -> bool:
        """Say whether no call runs or waits, and nothing is in use."""
        with self._lock:
            return not self._queue and not self._set_aside and self.usage.is_idle(self.limits, self.clock())

    def end(self, lease: Lease, difference: float) -> None:
        """Count the end of a call that used `difference` tokens more than counted; wake the next one."""
        with self._lock:
            self.usage.end(lease, difference)
            self._wake_head()

    def _take_or_queue(self, waiter: Waiter) -> Lease | Refusal | None:
        """Take at once, or queue; returns `None` if the waiter should try before it sleeps."""
        with self._lock:
            calls_to_wake = self._calls_to_wake
            if not self._queue:
                answer = self._take(waiter)
                if isinstance(answer, Lease):
                    return answer
            else:
                answer = self._refuse_newcomer(waiter)
            self._join(waiter)
            # If the garbage collector has ended calls meanwhile, this waiter could not be woken yet.
            return answer if calls_to_wake == self._calls_to_wake else None

    def _refuse_newcomer(self, waiter: Waiter) -> Refusal:
        """Return the reason why a waiter behind all others must wait."""
        waiter.loop = _event_loop()
        waiter.ahead = len(self._queue)
        return self._refuse_until_turn(waiter, self._queued_tokens)

    def _take(self, waiter: Waiter) -> Lease | Refusal:
        waiter.now = self.clock()
        lease = Lease(self, waiter.tokens)
        return self.usage.take(self.limits, waiter.now, waiter.tokens, lease) or lease

    def _join(self, waiter: Waiter) -> None:
        waiter.loop = waiter.loop or _event_loop()
        waiter.is_queued = True
        if not waiter.number:
            self._last_number += 1
            waiter.number = self._last_number
            self._queue.append(waiter)
        else:  # it was set aside, and returns to its place
            later = (place for place, queued in enumerate(self._queue) if queued.number > waiter.number)
            self._queue.insert(next(later, len(self._queue)), waiter)
        self._queued_tokens += waiter.tokens
        if self._queue[0].loop is not waiter.loop:
            self._wake_head()  # to check whether its event loop still exists

    def _try(self, waiter: Waiter) -> Lease | Refusal | None:
        """Take, or return the reason for refusing; `None` if the store has to be asked."""
        with self._lock:
            if not self._is_head(waiter):
                return self._refuse_until_turn(waiter, 0.0)
            answer = self._take(waiter)
            if isinstance(answer, Lease):
                self._leave(waiter)
            return answer

    async def _take_from_store(self, waiter: Waiter, listener: Listener) -> Lease | Refusal:
        raise NotImplementedError  # without a store, `_try` always has an answer

    def _is_head(self, waiter: Waiter) -> bool:
        """Say whether it is this waiter's turn, after updating the queue for blocked event loops."""
        if not waiter.is_queued:  # its event loop was stopped or blocked, and runs again
            set_aside, self._set_aside = self._set_aside, []
            for other in set_aside:
                (self._join if other.loop is waiter.loop else self._set_aside.append)(other)
        if not waiter.is_queued:
            self._join(waiter)
        head = self._queue[0]
        if head.loop is not waiter.loop:
            waiter.now = self.clock()
            if waiter.finds_blocked(head):
                self._set_loop_aside(head.loop)
        return self._queue[0] is waiter

    def _set_loop_aside(self, loop: object) -> None:
        """Let others overtake the waiters of a blocked event loop; these come back when it runs again."""
        waiters, self._queue = self._queue, deque()
        for waiter in waiters:
            if waiter.loop is not loop:
                self._queue.append(waiter)
                continue
            waiter.is_queued = False
            self._queued_tokens -= waiter.tokens
            if waiter.wake():  # otherwise its loop has ended, and the waiter with it
                self._set_aside.append(waiter)
        self._wake_head()

    def _refuse_until_turn(self, waiter: Waiter, tokens_ahead: float) -> Refusal:
        """Return the minimum wait of a waiter that is not the head."""
        waiter.now = self.clock()
        # The head wakes the next one, unless its event loop is blocked, which the others have to check.
        again = inf if not self._queue or self._queue[0].loop is waiter.loop else _HEAD_GRACE
        refusal = self.usage.wait(self.limits, waiter.now, waiter.tokens, waiter.ahead, tokens_ahead)
        if refusal is None or not refusal.seconds:
            return NOT_YOUR_TURN if again == inf else Refusal(0.0, "turn", again)
        return Refusal(refusal.seconds, refusal.reason, again)

    def _withdraw(self, waiter: Waiter) -> None:
        """Leave the queue for good, even when set aside."""
        with self._lock:
            if waiter in self._set_aside:
                self._set_aside.remove(waiter)
            self._leave(waiter)

    def _leave(self, waiter: Waiter) -> None:
        if waiter.is_queued:
            was_head = self._queue[0] is waiter
            self._remove(waiter)
            if was_head and not self._is_full():
                self._wake_head()

    def _is_full(self) -> bool:
        """Say whether the next waiter need not be woken, since the end of a call will do so."""
        limit = self.limits.max_concurrency
        return limit is not None and self.usage.active >= limit

    def _wake_head(self) -> None:
        self._calls_to_wake += 1
        while self._queue:
            head = self._queue[0]
            if head.wake():
                break
            self._remove(head)  # its event loop has ended, so it cannot leave by itself

    def _remove(self, waiter: Waiter) -> None:
        if not waiter.is_queued:
            return
        waiter.is_queued = False
        if self._queue[0] is waiter:
            self._queue.popleft()
        else:
            self._queue.remove(waiter)
        self._queued_tokens -= waiter.tokens


class _LimitedWait:
    """The patience of one call, and the announcements of its wait."""

    __slots__ = ("_announced", "_clock", "_deadline", "_listener", "_max_wait")

    def __init__(self, clock: Callable[[], float], now: float, max_wait: float | None, listener: Listener) -> None:
        self._clock = clock
        self._max_wait = max_wait
        self._deadline = inf if max_wait is None else now + max_wait
        self._listener = listener
        self._announced = -inf  # until when

    def remaining(self) -> float:
        """Return the seconds that the call may still wait."""
        return inf if self._deadline == inf else max(0.0, self._deadline - self._clock())

    def check(self, refusal: Refusal, waiter: Waiter) -> None:
        """Raise `RateLimitTimeout` if the wait is too long; otherwise announce it, if it is new."""
        until, is_first = waiter.now + refusal.seconds, self._announced == -inf
        # With `max_wait=0`, a call that only waits for its turn is not refused before its first try.
        if until > self._deadline or (waiter.now >= self._deadline and not is_first):
            raise RateLimitTimeout(
                f"the rate limit ({refusal.reason}) allows this call in {refusal.seconds:.3g} s at the earliest, "
                f"but max_wait={self._max_wait:g}: wait longer, or call less",
                retry_after=refusal.seconds,
            )
        if is_first or (refusal.seconds > 0 and until > self._announced + _NOTABLE):
            self._announced = until
            self._listener.on_wait(refusal, waiter.ahead)
