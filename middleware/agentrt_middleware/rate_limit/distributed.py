"""A limiter whose limits are shared with other processes through a store, and what it does when the store fails."""

import logging
from collections.abc import Awaitable, Callable
from math import inf
from secrets import token_hex
from typing import Literal, Protocol, TypeVar, runtime_checkable

import anyio

from agentrt.errors import RateLimitTimeout
from agentrt_middleware.rate_limit.queue import TURN, Lease, Limiter, Listener, Waiter, loop_time
from agentrt_middleware.rate_limit.usage_window import Limits, Refusal

__all__ = ["LimitStore", "SharedLimiter", "StorePolicy"]

StorePolicy = Literal["local", "open", "closed"]

_T = TypeVar("_T")
_logger = logging.getLogger("agentrt")
_PATIENCE = 0.2  # seconds for an answer of the store; what to do without it is decided within a quarter of a second
_MOST_OWED = 10_000
_PAID_AT_ONCE = 8  # a call must not wait for all of them
_RENEWALS = 3  # in the time of a lease, so that one may fail
_REST = 2.0  # seconds for which a store that has failed is left alone
_WITHOUT = {
    "local": "until it is back, each process keeps the limits by itself",
    "open": "until it is back, calls are not limited",
    "closed": "until it is back, calls are refused",
}


@runtime_checkable
class LimitStore(Protocol):
    """Where the usage of a key is counted for all processes. Any error, or no answer in time, counts as a failure."""

    @property
    def lease_seconds(self) -> float:
        """How long a call has its place without being renewed."""

    async def take(self, key: str, limits: Limits, tokens: float, lease: str) -> Refusal | None:
        """Count a call that begins now under the name `lease`, or say why it must not."""

    async def renew(self, key: str, limits: Limits, lease: str) -> bool:
        """Count that call for `lease_seconds` more.

        `False` if it had lost its place; it has one again, if need be beyond the limit.
        """

    async def end(self, key: str, limits: Limits, lease: str, difference: float) -> bool:
        """Count the end of that call, which took that many tokens more than it was counted with.

        Does nothing the second time. `False` if it had lost its place.
        """

    async def block(self, key: str, limits: Limits, seconds: float) -> None:
        """Let nothing begin for so long."""


class SharedLimiter(Limiter):
    """Asks the store for every call, one call at a time, and counts along for the time when the store fails."""

    def __init__(
        self,
        limits: Limits,
        store: LimitStore,
        key: str,
        policy: StorePolicy = "local",
        clock: Callable[[], float] = loop_time,
    ) -> None:
        super().__init__(limits, clock)
        self.store = store
        self.key = key
        self.policy = policy
        self._down_until = -inf
        self._is_down = self._is_told_down = False
        # Calls that the store may still count though they are over, and the difference to tell it.
        self._owed: dict[str, float] = {}

    async def block(self, seconds: float) -> None:
        """Let nothing begin for so long, in any process."""
        await super().block(seconds)
        await self.ask(lambda: self.store.block(self.key, self.limits, seconds))

    async def ask(self, question: Callable[[], Awaitable[_T]]) -> tuple[_T] | None:
        """Return the store's answer in a tuple, or `None` when there is none."""
        if self.clock() < self._down_until:
            return None
        why = "no answer in time"
        # Whoever is cancelled meanwhile has to know what was taken, to give it back.
        with anyio.move_on_after(_PATIENCE, shield=True):
            try:
                answer = await question()
            except Exception as error:  # noqa: BLE001  # the boundary to the store: what to do then is our policy
                why = type(error).__name__
            else:
                self._note_up()
                return (answer,)
        self._note_down(why)
        return None

    def is_at_rest(self) -> bool:
        """Say whether nobody calls or waits, nothing is used, and the store knows of every end."""
        return not self._owed and super().is_at_rest()

    async def give_back(self, name: str, difference: float) -> tuple[bool] | None:
        """Tell the store of the end of a call, and return its answer: now, or else before its next question."""
        answer = None
        try:
            answer = await self.ask(lambda: self.store.end(self.key, self.limits, name, difference))
        finally:  # no answer, or a cancellation of asyncio's own, which no shield keeps out
            if answer is None:
                self.owe(name, difference)
        return answer

    def owe(self, name: str, difference: float) -> None:
        """Remember to tell the store of the end of a call."""
        with self._lock:
            self._owed.setdefault(name, difference)
            if len(self._owed) > _MOST_OWED:  # the store lets go of the oldest by itself
                del self._owed[next(iter(self._owed))]

    def warn_of_lost_place(self) -> None:
        """Say in the log that there may have been more calls at a time than are allowed."""
        if self.limits.max_concurrency is not None:
            _logger.warning(
                "a call under the rate limit %r was silent for longer than lease_seconds=%g and lost its place: "
                "another may have begun meanwhile",
                self.key,
                self.store.lease_seconds,
            )

    async def _pay(self) -> None:
        for _ in range(_PAID_AT_ONCE):
            with self._lock:
                if self.clock() < self._down_until or not self._owed:
                    return
                name, difference = self._owed.popitem()
            await self.give_back(name, difference)

    def _enter(self, waiter: Waiter) -> Lease | Refusal | None:
        with self._lock:
            waiter.now = self.clock()
            refusal = self._refuse_last(waiter) if self._queue else None
            self._join(waiter)
            return None if self._queue[0] is waiter else refusal

    def _look(self, waiter: Waiter) -> Lease | Refusal | None:
        with self._lock:
            return None if self._is_head(waiter) else self._in_turn(waiter, 0.0)

    async def _look_elsewhere(self, waiter: Waiter, listener: Listener) -> Lease | Refusal:
        await self._pay()
        name, answer = token_hex(8), None
        was_asked = self.clock() >= self._down_until
        try:
            answer = await self.ask(lambda: self.store.take(self.key, self.limits, waiter.tokens, name))
        finally:
            if answer is None and was_asked:
                self.owe(name, 0.0)  # it may have been taken all the same
        self._tell(listener)
        waiter.now = self.clock()
        if answer is None:
            return self._without_store(waiter)
        return answer[0] or self._counted(_SharedLease(self, waiter.tokens, name), waiter.tokens)

    def _is_full(self) -> bool:
        return False

    def _without_store(self, waiter: Waiter) -> Lease | Refusal:
        if self.policy == "closed":
            raise RateLimitTimeout(
                f"the store of the rate limit {self.key!r} does not answer, and on_store_error='closed' refuses calls "
                f"without it",
                retry_after=max(0.0, self._down_until - self.clock()),
            )
        if self.policy == "open":
            return self._counted(Lease(self, waiter.tokens), waiter.tokens)
        return super()._look(waiter) or TURN

    def _counted(self, lease: Lease, tokens: float) -> Lease:
        with self._lock:
            self.usage.charge(self.limits, self.clock(), tokens, lease)
        return lease

    def _note_down(self, why: str) -> None:
        self._down_until = self.clock() + _REST
        if not self._is_down:
            self._is_down = True
            _logger.warning("the store of the rate limit %r failed (%s): %s", self.key, why, _WITHOUT[self.policy])

    def _note_up(self) -> None:
        if self._is_down:
            self._is_down = False
            _logger.warning("the store of the rate limit %r is back", self.key)

    def _tell(self, listener: Listener) -> None:
        if self._is_told_down is not self._is_down:
            self._is_told_down = self._is_down
            listener.store_changed(not self._is_down, self.policy)


class _SharedLease(Lease):
    __slots__ = ("_due", "_is_in_doubt", "_name", "_shared")

    def __init__(self, limiter: SharedLimiter, tokens: float, name: str) -> None:
        super().__init__(limiter, tokens)
        self._shared = limiter
        self._name = name
        self._due = self._next() if limiter.limits.max_concurrency is not None else inf
        self._is_in_doubt = False

    def _next(self) -> float:
        return self._shared.clock() + self._shared.store.lease_seconds / _RENEWALS

    def is_due(self) -> bool:
        return self._shared.clock() >= self._due and not self._is_settled

    async def renew(self) -> None:
        shared, answer = self._shared, None
        self._due = self._next()
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
            answer = await shared.give_back(self._name, difference)
            if answer == (False,):
                shared.warn_of_lost_place()
        finally:
            if self._is_in_doubt:  # a renewal that got no answer may reach the store after the end
                shared.owe(self._name, 0.0)
            shared.end(self, difference)
