"""One queue in front of some limits: first come, first served.

Only the head of the queue may ask whether it may begin. It does so when it has become the head, when the time that it
was told has passed, and when a call has ended; however it leaves the queue, it wakes the next one. Asking and taking is
one step without an `await`, so a waiter that is cancelled has taken nothing.

A limiter serves any number of event loops, in several threads or one after the other. Each waiter is woken on its own.
While the loop of the head is blocked, the calls of other loops go before those of that loop.
A call that was lost with its event loop is closed by the garbage collector: in any thread, in the middle of anything,
where no loop runs. So the lock lets its own thread in again, and what ends a call or leaves the queue needs no loop.
"""

from asyncio import AbstractEventLoop, _get_running_loop
from collections import deque
from collections.abc import Awaitable, Callable
from math import inf
from threading import RLock
from time import monotonic
from typing import Any

import anyio
from anyio.lowlevel import RunVar, current_token

from agentrt.errors import RateLimitTimeout
from agentrt_middleware.rate_limit.usage_window import Limits, Refusal, Usage

__all__ = ["TURN", "Lease", "Limiter", "Listener", "Waiter", "loop_time"]

_offset: RunVar[float] = RunVar("agentrt_clock_offset")
_GRACE = 0.25  # seconds for which the head may keep the others waiting after it should have looked
_PACE = 0.1  # seconds between two looks at a clock that may run differently from the event loop's
_NEWS = 1.0  # seconds by which a wait must be longer than was announced, to be announced again


def loop_time() -> float:
    """The clock of the event loop, as `time.monotonic` would show it, so that those of several can be compared.

    Where no loop runs it is `time.monotonic`.
    """
    loop = _get_running_loop()
    if loop is not None:
        return loop.time()
    try:
        now = anyio.current_time()
    except RuntimeError:  # no loop runs here
        return monotonic()
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

TURN = Refusal(0.0, "turn", inf)
"""It is the turn of another call; nothing else is known."""


class Lease:
    """The right to one call; `settle` it when the call is over."""

    __slots__ = ("_is_settled", "_limiter", "_tokens")

    def __init__(self, limiter: "Limiter", tokens: float) -> None:
        self._limiter = limiter
        self._tokens = tokens
        self._is_settled = False

    def is_due(self) -> bool:
        """Say whether the call is to be renewed, if it goes on."""
        return False

    async def renew(self) -> None:
        """Keep the place of the call for longer, where that is needed."""

    async def settle(self, tokens: float | None = None) -> None:
        """Let the next call begin, and count the tokens that this one took; `None` leaves it at the estimate.

        Only the first time counts.
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

    __slots__ = ("_bell", "_seen", "ahead", "due", "is_awake", "is_queued", "looks", "loop", "now", "number", "tokens")

    def __init__(self, tokens: float) -> None:
        self.tokens = tokens
        self.number = 0  # in the order in which they came
        self.looks = 0
        self.due = -inf  # when it is to look again
        self._seen: tuple[Waiter, int, float] | None = None
        self.loop: Any = None
        self.ahead = 0
        self.now = 0.0
        self.is_queued = False
        self.is_awake = False  # since it last looked
        self._bell: Any = None

    def sees_blocked(self, head: "Waiter") -> bool:
        """Say whether the head should have looked long ago, which only a waiter of another event loop can see."""
        if not head.is_awake and head.due > self.now:
            return False
        if self._seen is None or self._seen[:2] != (head, head.looks):
            self._seen = (head, head.looks, self.now)
        return self.now - self._seen[2] >= _GRACE

    def sleep(self, seconds: float) -> Awaitable[Any]:
        """Wait until it is woken, but no longer than this."""
        return self._ring() if seconds == inf else self._ring_within(seconds)

    async def _ring_within(self, seconds: float) -> None:
        with anyio.move_on_after(seconds):
            await self._ring()

    def _ring(self) -> Awaitable[Any]:
        # On asyncio this is what anyio's event is made of; alone, it takes a quarter off the way through the queue.
        if isinstance(self.loop, AbstractEventLoop):
            future = self._bell = self.loop.create_future()
            return future
        event = self._bell = anyio.Event()
        return event.wait()

    def wake(self) -> bool:
        """Have the waiter look again; `False` if its event loop has ended, or was stopped and may never go on."""
        loop, self.is_awake = self.loop, True
        if loop is _event_loop():
            self._wake()
            return True
        is_asyncio = isinstance(loop, AbstractEventLoop)
        try:
            (loop.call_soon_threadsafe if is_asyncio else loop.run_sync_soon)(self._wake)
        except RuntimeError:
            return False
        return not is_asyncio or bool(loop.is_running())

    def _wake(self) -> None:
        bell = self._bell
        if bell is None:
            return
        if not isinstance(self.loop, AbstractEventLoop):
            bell.set()
        elif not bell.done():  # it is when the wait is over, or being cancelled
            bell.set_result(None)


class Limiter:
    """Lets calls begin as its limits allow, in the order in which they ask."""

    def __init__(self, limits: Limits, clock: Callable[[], float] = loop_time) -> None:
        self.limits = limits
        self.clock = clock
        self.usage = Usage()
        self._queue: deque[Waiter] = deque()
        self._blocked: list[Waiter] = []  # of event loops that are blocked
        self._queued_tokens = 0.0
        self._calls_to_wake = self._last_number = 0
        self._lock = RLock()

    async def acquire(self, tokens: float = 0.0, *, max_wait: float | None = None, listener: Listener = _DEAF) -> Lease:
        """Wait until a call of about this many tokens may begin.

        Raises `RateLimitTimeout` as soon as it is known that this takes longer than `max_wait` seconds.
        """
        waiter = Waiter(tokens)
        answer = self._enter(waiter)
        if isinstance(answer, Lease):
            return answer
        try:
            patience = _Patience(self.clock, waiter.now, max_wait, listener)
            while True:
                if answer is not None:
                    patience.check(answer, waiter)
                    waiter.ahead = 0  # counted once; a later look need not be as close
                    seconds = min(answer.again, patience.left())
                    if seconds < inf and self.clock is not loop_time:
                        seconds = min(seconds, _PACE)
                    waiter.due = waiter.now + seconds
                    if not waiter.is_awake:
                        await waiter.sleep(seconds)
                waiter.is_awake = False
                waiter.looks += 1
                answer = self._look(waiter) or await self._look_elsewhere(waiter, listener)
                if isinstance(answer, Lease):
                    return answer
        finally:
            if waiter.is_queued or self._blocked:
                self._leave(waiter)

    def change(self, limits: Limits) -> None:
        """Have other limits from now on, also for those that wait."""
        with self._lock:
            self.limits = limits
            self._wake_head()

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
            return not self._queue and not self._blocked and self.usage.is_at_rest(self.limits, self.clock())

    def end(self, lease: Lease, difference: float) -> None:
        """Count the end of a call that took that many tokens more than it was counted with; let the next one look."""
        with self._lock:
            self.usage.end(lease, difference)
            self._wake_head()

    def _enter(self, waiter: Waiter) -> Lease | Refusal | None:
        """Take at once, or queue; `None` if the waiter is to look before it sleeps."""
        with self._lock:
            calls_to_wake = self._calls_to_wake
            if not self._queue:
                answer = self._take(waiter)
                if isinstance(answer, Lease):
                    return answer
            else:
                answer = self._refuse_last(waiter)
            self._join(waiter)
            # If the garbage collector has ended calls meanwhile, this waiter was not there yet to be woken.
            return answer if calls_to_wake == self._calls_to_wake else None

    def _refuse_last(self, waiter: Waiter) -> Refusal:
        """Return why a waiter that comes after all others must wait."""
        waiter.loop = _event_loop()
        waiter.ahead = len(self._queue)
        return self._in_turn(waiter, self._queued_tokens)

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
        else:  # it returns to its place
            place = (place for place, other in enumerate(self._queue) if other.number > waiter.number)
            self._queue.insert(next(place, len(self._queue)), waiter)
        self._queued_tokens += waiter.tokens
        if self._queue[0].loop is not waiter.loop:
            self._wake_head()  # to find out whether its event loop is still there

    def _look(self, waiter: Waiter) -> Lease | Refusal | None:
        """Take, or say why not; `None` if that is to be asked elsewhere."""
        with self._lock:
            if not self._is_head(waiter):
                return self._in_turn(waiter, 0.0)
            answer = self._take(waiter)
            if isinstance(answer, Lease):
                self._step_out(waiter)
            return answer

    async def _look_elsewhere(self, waiter: Waiter, listener: Listener) -> Lease | Refusal:
        raise NotImplementedError  # here every look is an answer

    def _is_head(self, waiter: Waiter) -> bool:
        if not waiter.is_queued:  # its event loop was stopped or blocked, and runs again
            blocked, self._blocked = self._blocked, []
            for other in blocked:
                (self._join if other.loop is waiter.loop else self._blocked.append)(other)
        if not waiter.is_queued:
            self._join(waiter)
        head = self._queue[0]
        if head.loop is not waiter.loop:
            waiter.now = self.clock()
            if waiter.sees_blocked(head):
                self._step_over(head.loop)
        return self._queue[0] is waiter

    def _step_over(self, loop: Any) -> None:
        """Let others go before the waiters of an event loop that is blocked; when it runs again, they come back."""
        waiters, self._queue = self._queue, deque()
        for waiter in waiters:
            if waiter.loop is not loop:
                self._queue.append(waiter)
                continue
            waiter.is_queued = False
            self._queued_tokens -= waiter.tokens
            if waiter.wake():
                self._blocked.append(waiter)
        self._wake_head()

    def _in_turn(self, waiter: Waiter, tokens_ahead: float) -> Refusal:
        """Return what can be said of a waiter that is not the head."""
        waiter.now = self.clock()
        again = inf if not self._queue or self._queue[0].loop is waiter.loop else _GRACE
        refusal = self.usage.wait(self.limits, waiter.now, waiter.tokens, waiter.ahead, tokens_ahead)
        if refusal is None or not refusal.seconds:
            return TURN if again == inf else Refusal(0.0, "turn", again)
        return Refusal(refusal.seconds, refusal.reason, again)

    def _leave(self, waiter: Waiter) -> None:
        with self._lock:
            if waiter in self._blocked:
                self._blocked.remove(waiter)
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
        self._calls_to_wake += 1
        while self._queue:
            head = self._queue[0]
            if head.wake():
                break
            self._remove(head)

    def _remove(self, waiter: Waiter) -> None:
        if not waiter.is_queued:
            return
        waiter.is_queued = False
        if self._queue[0] is waiter:
            self._queue.popleft()
        else:
            self._queue.remove(waiter)
        self._queued_tokens -= waiter.tokens


class _Patience:
    """How long one call is willing to wait, and what it has been told."""

    __slots__ = ("_clock", "_deadline", "_listener", "_max_wait", "_promised")

    def __init__(self, clock: Callable[[], float], now: float, max_wait: float | None, listener: Listener) -> None:
        self._clock = clock
        self._max_wait = max_wait
        self._deadline = inf if max_wait is None else now + max_wait
        self._listener = listener
        self._promised = -inf

    def left(self) -> float:
        """Return for how many seconds the call may still wait."""
        return inf if self._deadline == inf else max(0.0, self._deadline - self._clock())

    def check(self, refusal: Refusal, waiter: Waiter) -> None:
        """Raise `RateLimitTimeout` if that is too long to wait, or else tell whoever wants to know."""
        until, first = waiter.now + refusal.seconds, self._promised == -inf
        if until > self._deadline or (waiter.now >= self._deadline and not first):
            raise RateLimitTimeout(
                f"the rate limit ({refusal.reason}) allows this call in {refusal.seconds:.3g} s at the earliest, "
                f"but max_wait={self._max_wait:g}: wait longer, or call less",
                retry_after=refusal.seconds,
            )
        if first or (refusal.seconds > 0 and until > self._promised + _NEWS):
            self._promised = until
            self._listener.waits(refusal, waiter.ahead)
