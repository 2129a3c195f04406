"""What a limit promises, compared with a count that forgets nothing: in this process, and in Redis."""

import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any, Protocol
from uuid import uuid4

import anyio
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from agentrt_middleware.rate_limit import redis
from agentrt_middleware.rate_limit.redis import RedisLimitStore
from agentrt_middleware.rate_limit.usage_window import RateLimits, Refusal, Usage
from tests.services import unavailable

_SCRIPT = redis._SCRIPT
_NEARLY = 1e-5  # seconds; clocks are read in millionths
_BEGIN = 1_700_000_000.0

names = (f"test-{uuid4().hex}-{number}" for number in count())


class Store(Protocol):
    """Counts the calls of one key, at a given time."""

    async def take(self, now: float, tokens: float, call: str) -> Refusal | None: ...

    async def end(self, now: float, call: str, difference: float) -> None: ...


class Local:
    def __init__(self, limits: RateLimits) -> None:
        self._limits, self._usage = limits, Usage()

    async def take(self, now: float, tokens: float, call: str) -> Refusal | None:
        return self._usage.take(self._limits, now, tokens, call)

    async def end(self, now: float, call: str, difference: float) -> None:
        self._usage.end(call, difference)


class Redis:
    """The script that runs in Redis, on a clock that the test sets."""

    def __init__(self, limits: RateLimits) -> None:
        self._limits, self._key, self._store = limits, next(names), RedisLimitStore(redis_url())

    async def renew(self, now: float, call: str) -> bool:
        with self._played(now):
            return await self._store.renew(self._key, self._limits, call)

    async def take(self, now: float, tokens: float, call: str) -> Refusal | None:
        with self._played(now):
            return await self._store.take(self._key, self._limits, tokens, call)

    async def end(self, now: float, call: str, difference: float) -> None:
        with self._played(now):
            await self._store.end(self._key, self._limits, call, difference)

    @contextmanager
    def _played(self, now: float) -> Iterator[None]:
        time = f"{{'{int(now)}', '{round(now % 1 * 1e6)}'}}"
        redis._SCRIPT = _SCRIPT.replace("redis.call('TIME')", time)
        try:
            yield
        finally:
            redis._SCRIPT = _SCRIPT


def redis_url() -> str:
    pytest.importorskip("coredis")
    if "REDIS_URL" in os.environ:
        return os.environ["REDIS_URL"]
    try:
        socket.create_connection(("127.0.0.1", 6379), 1).close()
    except OSError:
        unavailable("redis", "no server on port 6379, and no REDIS_URL")
    return "redis://127.0.0.1:6379/0"


class Ledger:
    """When each call began, and what is known of its tokens."""

    def __init__(self, limit: float) -> None:
        self.limit = limit
        self.calls: dict[str, tuple[float, float]] = {}

    def level(self, now: float) -> float:
        """Return the largest surplus of a stretch that ends now, over those that begin with a call."""
        level, taken = 0.0, 0.0
        for started, tokens in reversed(self.calls.values()):
            taken += tokens
            level = max(level, taken - self.limit / 60 * (now - started))
        return level

    def excess(self) -> float:
        """Return by how much the calls of any stretch exceed a limit's worth and what drained in it."""
        calls = [*self.calls.values()]
        stretches = (
            (sum(tokens for _, tokens in calls[first : last + 1]), end - begin)
            for first, (begin, _) in enumerate(calls)
            for last, (end, _) in enumerate(calls[first:], first)
        )
        return max((taken - self.limit - self.limit / 60 * seconds for taken, seconds in stretches), default=0.0)


STEPS = st.lists(
    st.tuples(
        st.sampled_from([0.0, 0.0, 0.001, 0.5, 3.0, 29.0, 60.0, 200.0]),  # seconds since the last step
        st.sampled_from(["begin", "begin", "begin, and wait for it", "end"]),
        st.sampled_from([0, 1, 30, 50, 100]),  # of a minute's worth in a hundred: what is expected, or taken
        st.integers(0, 5),  # which of the open calls ends
    ),
    max_size=40,
)
LIMIT = st.sampled_from([60, 100, 90_000])
FLOWED_OFF = [(0.0, "begin", 100, 0), (60.0, "begin", 100, 0), (0.0, "end", 0, 0), (0.0, "begin", 100, 0)]
WORKED_OFF = [(0.0, "begin", 1, 0), (60.0, "end", 50, 0), (0.0, "begin, and wait for it", 100, 0)]


async def follow(store: Store, ledger: Ledger, steps: list[Any], actual: Callable[[float, float], float]) -> None:
    """Run the steps, and check that a call begins if and only if the ledger allows it."""
    now, expected, rate = _BEGIN, dict[str, float](), ledger.limit / 60
    for number, (pause, kind, percent, which) in enumerate(steps):
        now, name = now + pause, f"call-{number}"
        tokens = ledger.limit * percent / 100
        if kind == "end":
            if expected:
                name = [*expected][which % len(expected)]
                estimate = expected.pop(name)
                taken = actual(estimate, tokens)
                await store.end(now, name, taken - estimate)
                ledger.calls[name] = (ledger.calls[name][0], taken)
            continue
        wait = (ledger.level(now) + tokens - ledger.limit) / rate
        refusal = await store.take(now, tokens, name)
        assert (0.0 if refusal is None else refusal.seconds) == pytest.approx(max(0.0, wait), abs=_NEARLY)
        if refusal is not None and kind == "begin, and wait for it":
            now += refusal.seconds + 1e-6
            refusal = await store.take(now, tokens, name)
            assert refusal is None
        if refusal is None:
            ledger.calls[name] = (now, tokens)
            expected[name] = tokens


def less(estimate: float, tokens: float) -> float:
    return min(estimate, tokens)


def more_or_less(estimate: float, tokens: float) -> float:
    return 3 * tokens


in_both_stores = pytest.mark.parametrize(("store", "backend"), [(Local, "asyncio"), (Redis, "trio")])


@in_both_stores
@settings(max_examples=40)
@example(steps=FLOWED_OFF, limit=60)
@given(steps=STEPS, limit=LIMIT)
def test_no_window_exceeds_a_minutes_worth_and_what_drained(
    store: Any, backend: str, steps: list[Any], limit: int
) -> None:
    ledger = Ledger(limit)
    anyio.run(follow, store(RateLimits(tokens_per_minute=limit)), ledger, steps, less, backend=backend)
    assert ledger.excess() <= limit / 60 * _NEARLY


@in_both_stores
@settings(max_examples=40)
@example(steps=WORKED_OFF, limit=60)
@given(steps=STEPS, limit=LIMIT)
def test_tokens_beyond_the_estimate_count_from_the_calls_start(
    store: Any, backend: str, steps: list[Any], limit: int
) -> None:
    anyio.run(follow, store(RateLimits(tokens_per_minute=limit)), Ledger(limit), steps, more_or_less, backend=backend)


async def test_setting_the_redis_clock_back_loses_no_place() -> None:
    redis, now = Redis(RateLimits(min_interval=20, max_concurrency=1)), _BEGIN
    assert await redis.take(now, 0, "first") is None
    now -= 3_600
    waits = [await redis.take(now + second, 0, "second") for second in range(19)]
    assert [round(refusal.seconds) for refusal in waits if refusal is not None] == [*range(20, 1, -1)]
    held = await redis.take(now + 21, 0, "second")
    assert held.reason == "max_concurrency"
    assert await redis.renew(now + 22, "first")
    assert await redis.take(now + 22 + 89, 0, "second") is not None
    assert await redis.take(now + 22 + 91, 0, "second") is None


@pytest.mark.parametrize(
    ("limits", "tokens", "is_over"),
    [
        (RateLimits(max_concurrency=2), 0, False),  # a call runs
        (RateLimits(requests_per_minute=1), 0, True),
        (RateLimits(tokens_per_minute=1), 60, True),
        (RateLimits(min_interval=30), 0, True),
    ],
)
def test_whatever_is_in_use_keeps_limits_from_being_idle(limits: RateLimits, tokens: float, is_over: bool) -> None:
    usage = Usage()
    assert usage.is_idle(limits, 0)
    assert usage.take(limits, 0, tokens, "call") is None
    if is_over:
        usage.end("call", 0)
    assert not usage.is_idle(limits, 1)
    usage.end("call", 0)
    assert usage.is_idle(limits, 10_000)
