"""A shared limit loses no place, whatever happens to the store while a call begins or ends."""

import asyncio

import anyio
import pytest

from agentrt_middleware.limits import Limits, Refusal
from agentrt_middleware.shared_limiter import SharedLimiter

PATIENCE = 10.0  # seconds; only a failure waits that long


class Store:
    """Counts the calls of one key, fails when it is told to, and can answer late."""

    def __init__(self):
        self.leases = set()
        self.is_down = False
        self.gate = None

    async def take(self, key, limits, tokens, lease):
        self._fail()
        if len(self.leases) >= limits.max_concurrency:
            return Refusal(0.0, "max_concurrency", 0.1)
        self.leases.add(lease)
        await self._wait()
        return None

    async def end(self, key, limits, lease, difference):
        self._fail()
        await self._wait()
        self.leases.discard(lease)

    async def block(self, key, limits, seconds):
        self._fail()

    def _fail(self):
        if self.is_down:
            raise OSError("the store is away")

    async def _wait(self):
        if self.gate is not None:
            await self.gate.wait()


class Time:
    now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def parts():
    store, time = Store(), Time()
    return store, SharedLimiter(Limits(max_concurrency=1), store, "key", clock=time), time


async def test_a_call_that_ends_while_the_store_is_away_gives_its_place_back_later(parts):
    store, limiter, time = parts
    lease = await limiter.acquire()
    store.is_down = True
    await lease.settle()
    assert not limiter.is_at_rest()
    store.is_down = False
    time.now += 5.0
    with anyio.fail_after(PATIENCE):
        await (await limiter.acquire()).settle()
    assert store.leases == set()
    assert limiter._owed == {}


async def test_a_place_whose_grant_came_too_late_is_given_back(parts):
    store, limiter, time = parts
    store.gate = anyio.Event()
    lease = await limiter.acquire()  # by this process alone, since no answer came in time
    await lease.settle()
    assert store.leases
    store.gate.set()
    time.now += 5.0
    with anyio.fail_after(PATIENCE):
        await (await limiter.acquire()).settle()
    assert store.leases == set()


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize("ends", [False, True], ids=["beginning", "ending"])
async def test_a_cancellation_of_asyncios_own_loses_no_place(parts, ends, anyio_backend):
    store, limiter, _ = parts
    lease = await limiter.acquire() if ends else None
    store.gate = anyio.Event()
    task = asyncio.ensure_future(lease.settle() if lease else limiter.acquire())
    await anyio.wait_all_tasks_blocked()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    store.gate.set()
    with anyio.fail_after(PATIENCE):
        await (await limiter.acquire()).settle()
    assert store.leases == set()
