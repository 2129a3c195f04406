"""Rate limits: makes a model call wait until the limits allow it."""

import logging
from collections.abc import AsyncIterator, Callable, Hashable
from copy import copy
from typing import ClassVar, Self

from agentrt.agent import AgentBase
from agentrt.errors import MiddlewareConfigError, RateLimited, RateLimitTimeout
from agentrt.event import CustomEvent
from agentrt.hooks import MiddlewareBase, ModelCallValues, NextModelCall
from agentrt.model import ChatModelBase, ChatResponse, ModelResult
from agentrt_middleware.attempts import close, is_readable
from agentrt_middleware.clock import loop_time
from agentrt_middleware.rate_limit.call_tokens import AnswerLengths, CallTokens
from agentrt_middleware.rate_limit.distributed import LimitStore, SharedLimiter, StorePolicy
from agentrt_middleware.rate_limit.queue import Lease, Limiter, Listener
from agentrt_middleware.rate_limit.usage_window import RateLimits, Refusal
from agentrt_middleware.validation import check_choice, check_flag, check_number, check_store_option, retry_after_of

_MINUTES_PER_DAY = 1_440
_MAX_LIMIT = 1e12  # of anything; far from where floats become infinite
_MAX_KEPT = 1_000  # limiters of keys, before idle ones are dropped; models with known answers

_logger = logging.getLogger("agentrt")
# Global, since the limit of an account applies to the whole process.
_limiters: dict[Hashable, Limiter] = {}


class RateLimitMiddleware(MiddlewareBase):
    """Makes a model call wait until the limits allow it: first come, first served.

    A minute's worth of `requests_per_minute` and `tokens_per_minute` may be used at once; it then comes back evenly.
    `min_interval` is in seconds from one start to the next, and 1.0 if no limit is given. A call holds its place of
    `max_concurrency` until its stream is closed. When the provider asks to slow down (`RateLimited.retry_after`), all
    calls wait that long, at most a day.

    Until it is over, a call counts with an estimate of its tokens, which is based on the model's last
    answers and never above its `max_tokens`; with `reserve=True`, that is the estimate of the answer.
    Then the call counts with its used tokens, as if they had been known at its start, or with the part
    seen of its answer if it is abandoned or breaks off.

    A `CustomEvent` "rate_limit_wait" announces a waiting call. A call that would have to wait longer than `max_wait`
    seconds raises `RateLimitTimeout` as soon as that is known.

    All middlewares of the process with the same `key` share their limits, which the newest of them sets. Without a
    key, limits are shared by middlewares with equal limits that call the same model of the same account. If the model
    does not know its account, they are shared by the users of this one middleware.

    `store`, such as a `RedisLimitStore`, shares the limits with other processes. When it fails, `on_store_error`
    decides: "local" keeps the limits in each process by itself, "open" keeps none, "closed" raises `RateLimitTimeout`.
    A `CustomEvent` "rate_limit_store" announces this once.

    `clock` is in seconds and must never go back; by default it is that of the event loop. All middlewares that share a
    limit must have the same clock; another one is refused.
    """

    inherited = True

    emits = True
    wraps: ClassVar = {"TimeoutMiddleware": "waiting for a turn is not the model's time"}

    def __init__(
        self,
        min_interval: float | None = None,
        *,
        requests_per_minute: float | None = None,
        tokens_per_minute: float | None = None,
        max_concurrency: int | None = None,
        reserve: bool = False,
        max_wait: float | None = None,
        key: str | None = None,
        store: LimitStore | None = None,
        on_store_error: StorePolicy = "local",
        clock: Callable[[], float] = loop_time,
    ) -> None:
        if min_interval is None:
            other_limits = (requests_per_minute, tokens_per_minute, max_concurrency)
            min_interval = 1.0 if other_limits == (None, None, None) else 0.0
        _check_limit("min_interval", min_interval, least=0)
        _check_limit("requests_per_minute", requests_per_minute)
        _check_limit("tokens_per_minute", tokens_per_minute)
        _check_limit("max_concurrency", max_concurrency, least=1, whole=True)
        _check_limit("max_wait", max_wait, least=0)
        check_flag("RateLimitMiddleware(reserve=...)", reserve)
        if reserve and tokens_per_minute is None:
            raise MiddlewareConfigError(
                "RateLimitMiddleware(reserve=True) is for a limit of tokens, and there is none: give tokens_per_minute"
            )
        check_choice("RateLimitMiddleware(on_store_error=...)", on_store_error, ("local", "open", "closed"))
        methods = "a RedisLimitStore, or have its lease_seconds, take, renew, end and block"
        check_store_option("RateLimitMiddleware(store=...)", store, LimitStore, methods)
        name: object = key
        if not (name is None or (isinstance(name, str) and name)):
            raise MiddlewareConfigError(
                f"RateLimitMiddleware(key=...) must be a str that is not empty, not {key!r:.200}"
            )
        # For `repr`, which finds options by name; no interval need not be shown.
        self.min_interval = min_interval or None
        self.requests_per_minute, self.tokens_per_minute = requests_per_minute, tokens_per_minute
        self.max_concurrency, self.reserve = max_concurrency, reserve
        self._limits = RateLimits(min_interval, requests_per_minute, tokens_per_minute, max_concurrency)
        self._max_wait = max_wait
        self._key = key
        self._store = store
        self._policy: StorePolicy = "local" if store is None else on_store_error
        self._clock = clock
        self._own: dict[Hashable, Limiter] = {}
        self._lengths: dict[Hashable, AnswerLengths] = {}
        if key is not None:
            self._adopt(key)

    def __deepcopy__(self, memo: dict[int, object]) -> Self:
        return copy(self)  # with the same limiters: copies of an agent must not get more requests

    async def on_model_call(
        self, agent: AgentBase, input_kwargs: ModelCallValues, next_handler: NextModelCall
    ) -> ModelResult:
        if agent.run.is_replay:  # no request is sent, so there is nothing to wait for
            return await next_handler(**input_kwargs)
        limiter = self._limiter_for(input_kwargs["current_model"])
        tokens, expected = None, 0.0
        if self._limits.tokens_per_minute is not None:
            model = input_kwargs["current_model"]
            request = agent.run.estimate_tokens(input_kwargs["messages"], input_kwargs["tools"], model=model)
            tokens = self._tokens_of(model, request)
            expected = tokens.expected
        lease = await limiter.acquire(expected, max_wait=self._max_wait, listener=_Announcer(agent))
        call = _LeasedCall(limiter, lease, tokens)
        try:
            result = await next_handler(**input_kwargs)
            call.has_answer = True
            if isinstance(result, ChatResponse):
                if tokens is not None and is_readable(result):
                    tokens.see(result)
                await call.end()
                return result
        except BaseException as error:  # of the call, or of counting its answer: the next call may start in any case
            await call.end(error)
            raise
        return _LeasedStream(result, call)  # type: ignore[return-value]  # as good as an async generator

    def _tokens_of(self, model: ChatModelBase, request: int) -> CallTokens:
        name = (model.account, model.model)
        lengths = self._lengths.get(name)
        if lengths is None:
            if len(self._lengths) >= _MAX_KEPT:
                self._lengths.clear()  # only estimates are lost
            lengths = self._lengths[name] = AnswerLengths()
        return CallTokens(model, request, lengths, reserve=self.reserve)

    def _limiter_for(self, model: ChatModelBase) -> Limiter:
        if self._key is not None:
            limiter = _limiters.get((self._key, self._store)) or self._adopt(self._key)
        else:
            limiters = self._own if model.account is None else _limiters
            key = (model.account, model.model, self._limits, self._store, self._policy)
            limiter = limiters.get(key) or self._add_limiter(limiters, key, self._name_without_key(model))
        if limiter.clock is not self._clock:
            self._check_clock(limiter, self._key or model.model)
        return limiter

    def _name_without_key(self, model: ChatModelBase) -> str:
        """Return the name of the limit, which is the same in every process."""
        limits = self._limits
        numbers = (limits.min_interval, limits.requests_per_minute, limits.tokens_per_minute, limits.max_concurrency)
        return f"{model.account or type(model).__name__}/{model.model}/{'-'.join(map(str, numbers))}"

    def _check_clock(self, limiter: Limiter, name: str) -> None:
        if limiter.clock != self._clock:  # not `is not`: each access to a method makes a new object
            raise MiddlewareConfigError(
                f"RateLimitMiddleware(clock=...): the limit of {name!r} is shared, and already has another clock: "
                f"give the same clock to all middlewares that share it, or another `key` to this one"
            )

    def _adopt(self, key: str) -> Limiter:
        """Return the limiter of this key, with this middleware's limits."""
        limiter = _limiters.get((key, self._store))
        if limiter is not None and limiter.clock != self._clock and limiter.is_idle():
            del _limiters[key, self._store]
            limiter = None
        if limiter is None:
            return self._add_limiter(_limiters, (key, self._store), key)
        self._check_clock(limiter, key)
        if limiter.limits != self._limits:
            _logger.warning("the rate limit %r is now %r, no longer %r", key, self._limits, limiter.limits)
            limiter.change(self._limits)
        if isinstance(limiter, SharedLimiter) and limiter.policy != self._policy:
            _logger.warning(
                "the rate limit %r now has on_store_error=%r, no longer %r", key, self._policy, limiter.policy
            )
            limiter.use_policy(self._policy)
        return limiter

    def _add_limiter(self, limiters: dict[Hashable, Limiter], key: Hashable, name: str) -> Limiter:
        if len(limiters) >= _MAX_KEPT:
            # A new limiter is as good as an idle one. Over a copy, since another thread may add to the dict.
            for other_key, limiter in list(limiters.items()):
                if limiter.is_idle():
                    limiters.pop(other_key, None)
        # `setdefault` is one step: of two threads that add at the same time, both get the same limiter.
        if self._store is None:
            return limiters.setdefault(key, Limiter(self._limits, self._clock))
        return limiters.setdefault(key, SharedLimiter(self._limits, self._store, name, self._policy, self._clock))


class _LeasedCall:
    """One call of the model, from its admission to its end."""

    __slots__ = ("_limiter", "has_answer", "lease", "tokens")

    def __init__(self, limiter: Limiter, lease: Lease, tokens: CallTokens | None) -> None:
        self._limiter = limiter
        self.lease = lease
        self.tokens = tokens
        self.has_answer = False  # or the start of one; without it, only the estimate can be counted

    async def end(self, error: BaseException | None = None) -> None:
        """Settle with the known usage; only the first call has an effect."""
        tokens, self.tokens = self.tokens, None
        try:
            if isinstance(error, RateLimited) and not isinstance(error, RateLimitTimeout):
                seconds = retry_after_of(error)
                if seconds:
                    await self._limiter.block(seconds)
        finally:
            rate = self._limiter.limits.tokens_per_minute
            if tokens is None or rate is None or not self.has_answer:
                await self.lease.settle()
            else:
                await self.lease.settle(tokens.count(rate * _MINUTES_PER_DAY))


class _LeasedStream:
    """A stream that ends its call when it is exhausted, fails or is closed.

    A class, since a generator that is closed before its first item runs none of its code and would hold its place.
    """

    __slots__ = ("_call", "_stream")

    def __init__(self, stream: AsyncIterator[ChatResponse], call: _LeasedCall) -> None:
        self._stream = stream
        self._call = call

    def __aiter__(self) -> "_LeasedStream":
        return self

    async def __anext__(self) -> ChatResponse:
        lease = self._call.lease
        if lease.needs_renewal():
            await lease.renew()
        try:
            response = await anext(self._stream)
        except BaseException as error:  # including the end of the stream
            tokens = self._call.tokens
            if tokens is not None and isinstance(error, StopAsyncIteration):
                tokens.finish()
            await self._call.end(error)
            raise
        tokens = self._call.tokens
        if tokens is not None and is_readable(response):
            tokens.see(response)
        return response

    async def aclose(self) -> None:
        try:
            await close(self._stream)
        finally:
            await self._call.end()


class _Announcer(Listener):
    """Emits an event when a call has to wait, and when the store fails or recovers."""

    def __init__(self, agent: AgentBase) -> None:
        self._agent = agent

    def on_wait(self, refusal: Refusal, ahead: int) -> None:
        value = {"wait_seconds": refusal.seconds, "reason": refusal.reason, "ahead": ahead}
        self._agent.run.emit(CustomEvent("rate_limit_wait", value))

    def on_store_change(self, is_up: bool, policy: str) -> None:
        value = {"state": "up"} if is_up else {"state": "down", "policy": policy}
        self._agent.run.emit(CustomEvent("rate_limit_store", value))


def _check_limit(option: str, value: float | None, *, least: float | None = None, whole: bool = False) -> None:
    if value is None:
        return
    option = f"RateLimitMiddleware({option}=...)"
    check_number(option, value, least=least, whole=whole)
    if value > _MAX_LIMIT:
        raise MiddlewareConfigError(
            f"{option} must be at most {_MAX_LIMIT:g}, not {value!r:.200}: leave it out for no limit"
        )
