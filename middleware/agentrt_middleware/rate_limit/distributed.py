"""A limiter that shares its limits with other processes through a store, with a fallback for failures."""

import logging
from collections.abc import Awaitable, Callable
from math import inf
from secrets import token_hex
from typing import Literal, Protocol, TypeVar, runtime_checkable

import anyio

from agentrt.errors import RateLimitTimeout
from agentrt_middleware.clock import loop_time
from agentrt_middleware.rate_limit.queue import NOT_YOUR_TURN, Lease, Limiter, Listener, Waiter
from agentrt_middleware.rate_limit.usage_window import RateLimits, Refusal
from agentrt_middleware.stores.guard import StoreGuard

StorePolicy = Literal["local", "open", "closed"]

_Answer = TypeVar("_Answer")
_logger = logging.getLogger("agentrt")
_MAX_UNREPORTED = 10_000
_REPORTED_AT_ONCE = 8  # so that a call does not wait for all reports
_RENEWALS_PER_LEASE = 3  # so that one may fail
_CONSEQUENCES = {
    "local": "each process keeps the limits by itself",
    "open": "calls are not limited",
    "closed": "calls are refused",
}


@runtime_checkable
class LimitStore(Protocol):
    """Counts the usage of a key for all processes. An error, or no answer in time, counts as a failure."""

    @property
    def lease_seconds(self) -> float:
        """The time that a call keeps its place without a renewal."""

    async def take(self, key: str, limits: RateLimits, tokens: float, lease: str) -> Refusal | None:
        """Count a call that starts now under the name `lease`, or return the reason for refusing it."""

    async def renew(self, key: str, limits: RateLimits, lease: str) -> bool:
        """Count that call for `lease_seconds` more.

        Returns `False` if it had lost its place; it gets a new one, even beyond the limit.
        """

    async def end(self, key: str, limits: RateLimits, lease: str, difference: float) -> bool:
        """Count the end of that call, which used `difference` tokens more than counted.

        Only the first call has an effect. Returns `False` if it had lost its place.
        """

    async def block(self, key: str, limits: RateLimits, seconds: float) -> None:
        """Block all calls for that many seconds."""


class SharedLimiter(Limiter):
    """Asks the store for every call, one at a time, and also counts locally, in case the store fails."""

    def __init__(
        self,
        limits: RateLimits,
        store: LimitStore,
        key: str,
        policy: StorePolicy = "local",
        clock: Callable[[], float] = loop_time,
    ) -> None:
        super().__init__(limits, clock)
        self.store = store
        self.key = key
        self._guard = StoreGuard(f"the store of the rate limit {key!r}", "", clock)
        self.use_policy(policy)
        self._is_announced_down = False
        # Ended calls that the store may still count, with the difference to report.
        self._unreported: dict[str, float] = {}

    def use_policy(self, policy: StorePolicy) -> None:
        """Set what happens to calls while the store is down."""
        self.policy = policy
        self._guard.consequence = _CONSEQUENCES[policy]

    async def block(self, seconds: float) -> None:
        """Block all calls for that many seconds, in all processes."""
        await super().block(seconds)
        await self.ask(lambda: self.store.block(self.key, self.limits, seconds))

    async def ask(self, question: Callable[[], Awaitable[_Answer]]) -> tuple[_Answer] | None:
        """Return the store's answer in a tuple, or or `None`."""
        # Shielded, since a cancelled caller has to know what was taken, to return it.
        with anyio.CancelScope(shield=True):
            return await self._guard.ask(question)
        raise AssertionError("nobody cancels the scope")

    def is_idle(self) -> bool:
        """Say whether no call runs or waits, nothing is in use, and the store knows of every end."""
        return not self._unreported and super().is_idle()

    async def report_end(self, name: str, difference: float) -> tuple[bool] | None:
        """Report the end of a call to the store and return its answer; without one, repeat it before the next call."""
        answer = None
        try:
            answer = await self.ask(lambda: self.store.end(self.key, self.limits, name, difference))
        finally:  # no answer, or asyncio's `task.cancel()`, which ignores anyio's shields
            if answer is None:
                self.report_later(name, difference)
        return answer

    def report_later(self, name: str, difference: float) -> None:
        """Schedule the report of a call's end to the store."""
        with self._lock:
            self._unreported.setdefault(name, difference)
            if len(self._unreported) > _MAX_UNREPORTED:  # the oldest lease expires by itself
                del self._unreported[next(iter(self._unreported))]

    def warn_of_lost_place(self) -> None:
        """Log that the concurrency limit may have been exceeded."""
        if self.limits.max_concurrency is not None:
            _logger.warning(
                "a call under the rate limit %r was silent for longer than lease_seconds=%g and lost its place: "
                "another may have started meanwhile",
                self.key,
                self.store.lease_seconds,
            )

    async def _report_ends(self) -> None:
        for _ in range(_REPORTED_AT_ONCE):
            with self._lock:
                if self._guard.is_resting or not self._unreported:
                    return
                name, difference = self._unreported.popitem()
            await self.report_end(name, difference)

    def _take_or_queue(self, waiter: Waiter) -> Lease | Refusal | None:
        # Always through the queue, so that the store gets one request at a time, in order.
        with self._lock:
            waiter.now = self.clock()
            refusal = self._refuse_newcomer(waiter) if self._queue else None
            self._join(waiter)
            return None if self._queue[0] is waiter else refusal

    def _try(self, waiter: Waiter) -> Lease | Refusal | None:
        with self._lock:
            return None if self._is_head(waiter) else self._refuse_until_turn(waiter, 0.0)

    async def _take_from_store(self, waiter: Waiter, listener: Listener) -> Lease | Refusal:
        await self._report_ends()
        name, answer = token_hex(8), None
        was_asked = not self._guard.is_resting
        try:
            answer = await self.ask(lambda: self.store.take(self.key, self.limits, waiter.tokens, name))
        finally:
            if answer is None and was_asked:
                self.report_later(name, 0.0)  # the store may have counted the call anyway
        if self._is_announced_down is not self._guard.is_down:
            self._is_announced_down = self._guard.is_down
            listener.on_store_change(not self._guard.is_down, self.policy)
        waiter.now = self.clock()
        if answer is None:
            return self._take_without_store(waiter)
        return answer[0] or self._charge(_SharedLease(self, waiter.tokens, name), waiter.tokens)

    def _is_full(self) -> bool:
        return False  # only the store knows: its places are shared with other processes

    def _take_without_store(self, waiter: Waiter) -> Lease | Refusal:
        if self.policy == "closed":
            raise RateLimitTimeout(
                f"the store of the rate limit {self.key!r} does not answer, and on_store_error='closed' refuses calls "
                f"without it",
                retry_after=self._guard.rest,
            )
        if self.policy == "open":
            return self._charge(Lease(self, waiter.tokens), waiter.tokens)
        return super()._try(waiter) or NOT_YOUR_TURN

    def _charge(self, lease: Lease, tokens: float) -> Lease:
        """Count the call locally too, for the time when the store fails."""
        with self._lock:
            self.usage.charge(self.limits, self.clock(), tokens, lease)
        return lease


class _SharedLease(Lease):
    """The permit for one call, by its name in the store."""

    __slots__ = ("_is_in_doubt", "_name", "_renewal_due", "_shared")

    def __init__(self, limiter: SharedLimiter, tokens: float, name: str) -> None:
        super().__init__(limiter, tokens)
        self._shared = limiter
        self._name = name
        self._renewal_due = self._next_renewal() if limiter.limits.max_concurrency is not None else inf
        self._is_in_doubt = False

    def _next_renewal(self) -> float:
        return self._shared.clock() + self._shared.store.lease_seconds / _RENEWALS_PER_LEASE

    def needs_renewal(self) -> bool:
        return self._shared.clock() >= self._renewal_due and not self._is_settled

    async def renew(self) -> None:
        shared, answer = self._shared, None
        self._renewal_due = self._next_renewal()
        try:
            answer = await shared.ask(lambda: shared.store.renew(shared.key, shared.limits, self._name))
        finally:
            if answer is None:
                self._is_in_doubt = True
        if answer == (False,):
            shared.warn_of_lost_place()

    async def settle(self, tokens: float | None = None) -> None:
        if self._is_settled:
            return
        self._is_settled = True
        shared, difference = self._shared, 0.0 if tokens is None else tokens - self._tokens
        try:
            answer = await shared.report_end(self._name, difference)
            if answer == (False,):
                shared.warn_of_lost_place()
        finally:
            if self._is_in_doubt:  # an unanswered renewal may reach the store after the end, so end it again
                shared.report_later(self._name, 0.0)
            shared.end(self, difference)
