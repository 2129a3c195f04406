"""Call the model no faster than is allowed."""

import logging
from collections.abc import AsyncIterator, Callable, Hashable
from typing import Any

from agentrt.errors import MiddlewareConfigError, RateLimited, RateLimitTimeout
from agentrt.event import CustomEvent
from agentrt.hooks import MiddlewareBase, ModelCallValues, NextModelCall
from agentrt.model import ChatModelBase, ChatResponse, ModelResult
from agentrt_middleware.attempts import close, is_readable
from agentrt_middleware.rate_limit.call_tokens import AnswerLengths, CallTokens
from agentrt_middleware.rate_limit.distributed import LimitStore, SharedLimiter, StorePolicy
from agentrt_middleware.rate_limit.queue import Lease, Limiter, Listener, loop_time
from agentrt_middleware.rate_limit.usage_window import Limits, Refusal
from agentrt_middleware.validation import check_number, retry_after_of

__all__ = ["RateLimitMiddleware"]

_MINUTES_OF_A_DAY = 1_440
_MOST = 1e12  # of anything; far from where numbers become infinite
_MOST_KEPT = 1_000  # limiters of keys, before those that are at rest are dropped; models with known answers

_logger = logging.getLogger("agentrt")
_limiters: dict[Hashable, Limiter] = {}


class RateLimitMiddleware(MiddlewareBase):
    """Lets a call of the model wait until the limits allow it: first come, first served.

    `requests_per_minute` and `tokens_per_minute` may be used at once and then come back evenly; `min_interval` is in
    seconds from one start to the next, and 1.0 if no limit is given. A call counts with an estimate of its tokens until
    it is over. From then on it counts with those that it took, as if they had been known when it began, or with what
    was seen of its answer if it is left or broken off. Each model has an estimate of its own from its last answers,
    never above its `max_tokens`. A call holds its place of `max_concurrency` until its stream is closed. When the
    provider asks to slow down (`RateLimited.retry_after`), all calls wait for so long, a day at most.

    A call that waits is announced by a `CustomEvent` "rate_limit_wait". With `max_wait`, in seconds, one that would
    have to wait longer raises `RateLimitTimeout` as soon as that is known.

    Limits are shared by all middlewares of the process that have the same `key`; the newest of them says what they are.
    Without a key they are shared by those with equal limits that call the same model of the same account, or where the
    model does not know its account, by the users of this one middleware.

    `store`, a `RedisStore` say, shares them with other processes. When it fails, `on_store_error` decides: "local" goes
    on with the limits for each process by itself, "open" without any, "closed" raises `RateLimitTimeout`; a
    `CustomEvent` "rate_limit_store" tells of it once.

    `clock` is in seconds and must never go back; by default it is that of the event loop. All that share a limit must
    have the same clock; another one is refused.
    """

    emits = True
    wrapped_by = ("TracingMiddleware", "ModelFallbackMiddleware", "RetryMiddleware", "CircuitBreakerMiddleware")

    def __init__(
        self,
        min_interval: float | None = None,
        *,
        requests_per_minute: float | None = None,
        tokens_per_minute: float | None = None,
        max_concurrency: int | None = None,
        max_wait: float | None = None,
        key: str | None = None,
        store: LimitStore | None = None,
        on_store_error: StorePolicy = "local",
        clock: Callable[[], float] = loop_time,
    ) -> None:
        if min_interval is None:
            given = (requests_per_minute, tokens_per_minute, max_concurrency)
            min_interval = 1.0 if given == (None, None, None) else 0.0
        _check("min_interval", min_interval, least=0)
        _check("requests_per_minute", requests_per_minute)
        _check("tokens_per_minute", tokens_per_minute)
        _check("max_concurrency", max_concurrency, least=1, whole=True)
        _check("max_wait", max_wait, least=0)
        if on_store_error not in ("local", "open", "closed"):
            raise MiddlewareConfigError(
                f'RateLimitMiddleware(on_store_error=...) is "local", "open" or "closed", not {on_store_error!r}'
            )
        if store is not None and not isinstance(store, LimitStore):
            raise MiddlewareConfigError(
                f"RateLimitMiddleware(store=...) is a RedisStore, or has lease_seconds, take, renew, end and block as "
                f"one does, not a {type(store).__name__}"  # not shown: a URL may hold a password
            )
        self._limits = Limits(min_interval, requests_per_minute, tokens_per_minute, max_concurrency)
        self._max_wait = max_wait
        self._name = key
        self._store = store
        self._policy: StorePolicy = "local" if store is None else on_store_error
        self._clock = clock
        self._own: dict[Hashable, Limiter] = {}
        self._lengths: dict[Hashable, AnswerLengths] = {}
        if key is not None:
            self._adopt(key)

    async def on_model_call(
        self, agent: Any, input_kwargs: ModelCallValues, next_handler: NextModelCall
    ) -> ModelResult:
        limiter = self._limiter_for(input_kwargs["current_model"])
        tokens = self._tokens_of(input_kwargs)
        expected = 0.0 if tokens is None else tokens.expected
        lease = await limiter.acquire(expected, max_wait=self._max_wait, listener=_Announcer(agent))
        call = _Call(limiter, lease, tokens)
        try:
            result = await next_handler(**input_kwargs)
            call.has_answer = True
            if isinstance(result, ChatResponse):
                if tokens is not None and is_readable(result):
                    tokens.see(result)
                await call.end()
                return result
        except BaseException as error:  # whatever it is, an answer that cannot be counted too: the next one may begin
            await call.end(error)
            raise
        return _LeasedStream(result, call)  # type: ignore[return-value]  # as good as an async generator

    def _tokens_of(self, values: ModelCallValues) -> CallTokens | None:
        if self._limits.tokens_per_minute is None:
            return None
        model = values["current_model"]
        name = (model.account, model.model)
        lengths = self._lengths.get(name)
        if lengths is None:
            if len(self._lengths) >= _MOST_KEPT:
                self._lengths.clear()
            lengths = self._lengths[name] = AnswerLengths()
        return CallTokens(values, lengths)

    def _limiter_for(self, model: ChatModelBase) -> Limiter:
        if self._name is not None:
            limiter = _limiters.get((self._name, self._store)) or self._adopt(self._name)
        else:
            kept = self._own if model.account is None else _limiters
            key = (model.account, model.model, self._limits, self._store, self._policy)
            limiter = kept.get(key) or self._keep(kept, key, _name_of(model, self._limits))
        if limiter.clock is not self._clock:
            self._check_clock(limiter, self._name or model.model)
        return limiter

    def _check_clock(self, limiter: Limiter, name: str) -> None:
        if limiter.clock != self._clock:  # not `is not`: each access makes a new bound method
            raise MiddlewareConfigError(
                f"RateLimitMiddleware(clock=...): the limit of {name!r} is shared, and goes by another clock already: "
                f"give the same clock to all that share it, or another `key` to this one"
            )

    def _adopt(self, name: str) -> Limiter:
        """Return the limiter of this name, with this middleware's limits."""
        found = _limiters.get((name, self._store))
        if found is not None and found.clock != self._clock and found.is_at_rest():
            del _limiters[name, self._store]
            found = None
        if found is None:
            return self._keep(_limiters, (name, self._store), name)
        self._check_clock(found, name)
        if found.limits != self._limits:
            _logger.warning("the rate limit %r is now %r, no longer %r", name, self._limits, found.limits)
            found.change(self._limits)
        if isinstance(found, SharedLimiter) and found.policy != self._policy:
            _logger.warning(
                "the rate limit %r now has on_store_error=%r, no longer %r", name, self._policy, found.policy
            )
            found.policy = self._policy
        return found

    def _keep(self, kept: dict[Hashable, Limiter], key: Hashable, name: str) -> Limiter:
        if len(kept) >= _MOST_KEPT:
            _drop_those_at_rest(kept)
        if self._store is None:
            return kept.setdefault(key, Limiter(self._limits, self._clock))
        return kept.setdefault(key, SharedLimiter(self._limits, self._store, name, self._policy, self._clock))


class _Call:
    """One call of the model, from its admission to its end."""

    __slots__ = ("_limiter", "has_answer", "lease", "tokens")

    def __init__(self, limiter: Limiter, lease: Lease, tokens: CallTokens | None) -> None:
        self._limiter = limiter
        self.lease = lease
        self.tokens = tokens
        self.has_answer = False  # or the beginning of one

    async def end(self, error: BaseException | None = None) -> None:
        """Settle with what is known; only the first time counts."""
        tokens, self.tokens = self.tokens, None
        try:
            if isinstance(error, RateLimited) and not isinstance(error, RateLimitTimeout):
                seconds = retry_after_of(error)
                if seconds:
                    await self._limiter.block(seconds)
        finally:
            most = self._limiter.limits.tokens_per_minute
            if tokens is None or most is None or not self.has_answer:
                await self.lease.settle()
            else:
                await self.lease.settle(tokens.count(most * _MINUTES_OF_A_DAY))


class _LeasedStream:
    """A stream that ends its call when it is exhausted, fails or is closed, also if it was never iterated."""

    __slots__ = ("_call", "_stream")

    def __init__(self, stream: AsyncIterator[ChatResponse], call: _Call) -> None:
        self._stream = stream
        self._call = call

    def __aiter__(self) -> "_LeasedStream":
        return self

    async def __anext__(self) -> ChatResponse:
        lease = self._call.lease
        if lease.is_due():
            await lease.renew()
        try:
            response = await anext(self._stream)
        except BaseException as error:  # the end of the stream included
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
    """Tells the user why a call waits."""

    def __init__(self, agent: Any) -> None:
        self._agent = agent

    def waits(self, refusal: Refusal, ahead: int) -> None:
        value = {"wait_seconds": refusal.seconds, "reason": refusal.reason, "ahead": ahead}
        self._agent.run.emit(CustomEvent("rate_limit_wait", value))

    def store_changed(self, is_up: bool, policy: str) -> None:
        value = {"state": "up"} if is_up else {"state": "down", "policy": policy}
        self._agent.run.emit(CustomEvent("rate_limit_store", value))


def _check(option: str, value: Any, *, least: float | None = None, whole: bool = False) -> None:
    if value is None:
        return
    option = f"RateLimitMiddleware({option}=...)"
    check_number(option, value, least=least, whole=whole)
    if value > _MOST:
        raise MiddlewareConfigError(f"{option} is at most {_MOST:g}, not {value!r:.200}: leave it out for no limit")


def _name_of(model: ChatModelBase, limits: Limits) -> str:
    # The same in every process.
    most = (limits.min_interval, limits.requests_per_minute, limits.tokens_per_minute, limits.max_concurrency)
    return f"{model.account or type(model).__name__}/{model.model}/{'-'.join(map(str, most))}"


def _drop_those_at_rest(kept: dict[Hashable, Limiter]) -> None:
    # One that is at rest is no different from a new one.
    for name, limiter in list(kept.items()):  # to which another thread may add
        if limiter.is_at_rest():
            kept.pop(name, None)
