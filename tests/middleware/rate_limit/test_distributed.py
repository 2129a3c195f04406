"""A shared limit loses no place if the store fails while a call begins or ends."""

import asyncio

import anyio
import pytest

from agentrt_middleware.rate_limit.distributed import SharedLimiter
from agentrt_middleware.rate_limit.usage_window import RateLimits, Refusal
from tests.middleware.fake_time import in_jumping_time

PATIENCE = 10.0  # seconds; only a failure waits that long


class Store:
    """Counts the calls of one key; can fail and can answer late."""

    lease_seconds = 90.0

    def __init__(self):
        self.leases = set()
        self.ended = []
        self.renewed = []
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
        self.ended.append(lease)
        was_held = lease in self.leases
        self.leases.discard(lease)
        return was_held

    async def renew(self, key, limits, lease):
        self._fail()
        was_held = lease in self.leases
        self.leases.add(lease)
        self.renewed.append(lease)
        return was_held

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
    return store, SharedLimiter(RateLimits(max_concurrency=1), store, "key", clock=time), time


async def test_an_end_the_store_missed_is_reported_later(parts):
    store, limiter, time = parts
    lease = await limiter.acquire()
    store.is_down = True
    await lease.settle()
    assert not limiter.is_idle()
    store.is_down = False
    time.now += 5.0
    with anyio.fail_after(PATIENCE):
        await (await limiter.acquire()).settle()
    assert store.leases == set()
    assert limiter._unreported == {}


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
async def test_an_asyncio_task_cancel_loses_no_place(parts, ends, anyio_backend):
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


async def test_a_continuing_call_is_renewed_three_times_per_lease(parts):
    store, limiter, time = parts
    lease = await limiter.acquire()
    due = []
    for _ in range(18):
        time.now += 10.0
        if lease.needs_renewal():
            due.append(time.now)
            await lease.renew()
    assert due == [30, 60, 90, 120, 150, 180]
    assert store.renewed == [*store.leases] * 6
    await lease.settle()
    time.now += 30.0
    assert not lease.needs_renewal()


async def test_no_lease_is_renewed_without_max_concurrency(parts):
    store, _, time = parts
    limiter = SharedLimiter(RateLimits(min_interval=1), store, "key", clock=time)
    store.take = take_always
    lease = await limiter.acquire()
    time.now += 1_000.0
    assert not lease.needs_renewal()


async def take_always(key, limits, tokens, lease):
    return None


async def test_a_renewal_that_arrives_after_the_end_holds_no_place(parts):
    store, limiter, time = parts
    lease = await limiter.acquire()
    (name,) = store.leases
    store.is_down = True
    await lease.renew()
    store.is_down = False
    time.now += 5.0
    await lease.settle()
    store.leases.add(name)  # now it arrives
    with anyio.fail_after(PATIENCE):
        await (await limiter.acquire()).settle()
    assert store.leases == set()


@pytest.mark.parametrize("ends", [False, True], ids=["going on", "ending"])
async def test_a_call_that_lost_its_place_is_logged(parts, ends, caplog):
    store, limiter, _ = parts
    lease = await limiter.acquire()
    store.leases.clear()
    await (lease.settle() if ends else lease.renew())
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "'key' was silent for longer than lease_seconds=90" in caplog.text
    assert len(store.leases) == (not ends)


async def test_a_call_does_not_wait_until_all_ends_are_reported(parts):
    store, limiter, _ = parts
    for number in range(100):
        limiter.report_later(f"lease-{number}", 0.0)
    await limiter.acquire()
    assert 0 < len(store.ended) < 10


async def test_an_end_reported_by_another_thread_is_reported_once(parts):
    store, limiter, _ = parts

    class OthersPay(Time):
        def __call__(self):
            limiter._unreported.clear()  # as another thread might at this point
            return self.now

    limiter.report_later("lease", 0.0)
    limiter._guard._clock = OthersPay()
    await limiter._report_ends()
    assert store.ended == []


@in_jumping_time
async def test_the_store_error_policy_applies_within_250_ms():
    store = Store()
    store.gate = anyio.Event()  # never set: the store hangs
    limiter = SharedLimiter(RateLimits(max_concurrency=1), store, "key")
    start = anyio.current_time()
    lease = await limiter.acquire()
    waited = anyio.current_time() - start
    store.gate.set()
    await lease.settle()
    assert 0 < waited <= 0.25
