"""Rate limits that are shared through a real Redis: that of the machine, or one that the tests start."""

import gc
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import closing, suppress
from itertools import count, repeat
from pathlib import Path
from time import monotonic
from typing import Any
from uuid import uuid4

import anyio
import pytest

from agentrt import Agent, AgentState
from agentrt.errors import ConfigError, RateLimitTimeout
from agentrt.event import CustomEvent
from agentrt.middleware import RateLimitMiddleware, RedisLimitStore
from agentrt.model import ScriptedChatModel
from agentrt_middleware.rate_limit.distributed import SharedLimiter
from agentrt_middleware.rate_limit.usage_window import RateLimits
from agentrt_middleware.stores import guard
from tests.middleware.redis_server import RedisServer, when_redis_fails

coredis = pytest.importorskip("coredis")

CHILD = Path(__file__).with_name("rate_limit_child.py")
HOLDER = Path(__file__).with_name("rate_limit_holder.py")
LEASE = 1.5  # seconds; a third of it is more than a busy machine keeps a reader from its next piece
PATIENCE = 20.0  # seconds; only a failure waits that long
keys = (f"test-{uuid4().hex}-{number}" for number in count())

# On a busy machine a connection may take longer than a call waits for it, and that is a failure too.
pytestmark = when_redis_fails


@pytest.fixture(scope="module", autouse=True)
def leftovers_of_coredis_are_collected() -> Iterator[None]:
    """Collect them here, where their warnings are ignored, and not in a test of something else."""
    yield
    gc.collect()


@pytest.fixture
def server() -> Iterator[RedisServer]:
    server = RedisServer()
    yield server
    server.close()


@pytest.fixture
def patient_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait longer for Redis than a call should, so that it fails only where the test has it fail."""
    monkeypatch.setattr(guard, "_TIMEOUT", 1.0)


@pytest.fixture
async def redis(url: str) -> AsyncIterator[Any]:
    async with coredis.Redis.from_url(url, decode_responses=True) as client:
        yield client


@pytest.mark.parametrize(
    ("limits", "taken", "seconds"),
    [
        (RateLimits(min_interval=30), [0], 30),
        (RateLimits(requests_per_minute=2), [0, 0], 30),
        (RateLimits(tokens_per_minute=600), [400, 150], 10),
        (RateLimits(tokens_per_minute=600), [1_200], 75),
        (RateLimits(0.01, 3, 600), [1_200], 75),
        (RateLimits(max_concurrency=2), [0, 0], 0),
    ],
    ids=str,
)
async def test_one_process_does_not_get_what_another_has_used(
    url: str, limits: RateLimits, taken: list[float], seconds: float
) -> None:
    key, one, other = next(keys), RedisLimitStore(url), RedisLimitStore(url)
    for number, tokens in enumerate(taken):
        assert await one.take(key, limits, tokens, f"lease-{number}") is None
    refusal = await other.take(key, limits, 150, "other")
    assert refusal.seconds == pytest.approx(seconds, abs=1.5)
    assert refusal.reason == [name for name in RateLimits.__slots__ if getattr(limits, name)][-1]
    assert await other.take(next(keys), limits, 150, "other") is None


async def test_tokens_are_refunded_and_owed_across_processes(url: str) -> None:
    key, limits, store = next(keys), RateLimits(tokens_per_minute=600), RedisLimitStore(url)
    assert await store.take(key, limits, 600, "first") is None
    await store.end(key, limits, "first", -500)
    assert await store.take(key, limits, 400, "second") is None
    await store.end(key, limits, "second", 1_000)
    refusal = await store.take(key, limits, 100, "third")
    assert refusal.seconds == pytest.approx(100, abs=2)


@pytest.mark.parametrize("limits", [RateLimits(tokens_per_minute=60), RateLimits(0.01, 3, 60, 4)], ids=str)
async def test_an_open_calls_tokens_are_known_until_they_have_drained(url: str, redis: Any, limits: RateLimits) -> None:
    key, store = next(keys), RedisLimitStore(url)
    assert await store.take(key, limits, 6_000, "first") is None
    assert await store.take(key, limits, 30, "second") is not None
    async for name in redis.scan_iter(f"agentrt:limit:{{{key}}}:*"):
        assert await redis.pttl(name) >= 6_000 * 1_000, name


async def test_a_retry_after_holds_the_calls_of_all_processes(url: str) -> None:
    key, limits = next(keys), RateLimits(max_concurrency=3)
    await RedisLimitStore(url).block(key, limits, 40)
    refusal = await RedisLimitStore(url).take(key, limits, 0, "other")
    assert (refusal.reason, round(refusal.seconds)) == ("retry_after", 40)


async def test_a_place_comes_back_at_the_end_or_when_the_lease_expires(url: str) -> None:
    key, limits = next(keys), RateLimits(max_concurrency=1)
    patient, hasty = RedisLimitStore(url), RedisLimitStore(url, lease_seconds=0.03)
    assert await patient.take(key, limits, 0, "first") is None
    assert await hasty.take(key, limits, 0, "second") is not None
    await patient.end(key, limits, "first", 0)
    assert await hasty.take(key, limits, 0, "second") is None
    await anyio.sleep(0.04)
    assert await patient.take(key, limits, 0, "third") is None


@pytest.mark.slow
async def test_a_call_that_is_renewed_keeps_its_place(url: str) -> None:
    key, limits = next(keys), RateLimits(max_concurrency=1)
    hasty, patient = RedisLimitStore(url, lease_seconds=2), RedisLimitStore(url)
    assert await hasty.take(key, limits, 0, "first") is None
    assert await patient.renew(key, limits, "first")
    await anyio.sleep(2.1)
    assert await patient.take(key, limits, 0, "second") is not None
    assert await patient.end(key, limits, "first", 0)
    assert await patient.take(key, limits, 0, "second") is None


async def test_a_call_that_lost_its_place_counts_again_over_the_limit(url: str) -> None:
    key, limits = next(keys), RateLimits(max_concurrency=1)
    hasty, patient = RedisLimitStore(url, lease_seconds=0.03), RedisLimitStore(url)
    assert await hasty.take(key, limits, 0, "first") is None
    await anyio.sleep(0.04)
    assert await patient.take(key, limits, 0, "second") is None
    assert not await patient.renew(key, limits, "first")
    assert await patient.end(key, limits, "second", 0)
    assert await patient.take(key, limits, 0, "third") is not None


async def test_a_long_lease_outlives_a_short_one_of_the_same_limit(url: str) -> None:
    key, limits = next(keys), RateLimits(max_concurrency=2)
    hasty, patient = RedisLimitStore(url, lease_seconds=0.03), RedisLimitStore(url)
    assert await patient.take(key, limits, 0, "first") is None
    assert await hasty.take(key, limits, 0, "second") is None
    await anyio.sleep(0.04)
    assert await patient.take(key, limits, 0, "third") is None
    assert await patient.take(key, limits, 0, "fourth") is not None


async def test_a_call_that_outlives_its_lease_counts_its_tokens_once(url: str) -> None:
    # So few that none come back while a busy machine takes its time.
    key, limits, store = next(keys), RateLimits(tokens_per_minute=6), RedisLimitStore(url, lease_seconds=0.03)
    assert await store.take(key, limits, 6, "first") is None
    await anyio.sleep(0.04)
    assert await store.take(key, limits, 1, "second") is not None
    for _ in range(2):
        assert not await store.end(key, limits, "first", -3)
    assert await store.take(key, limits, 2.5, "third") is None
    assert await store.take(key, limits, 2.5, "fourth") is not None


async def test_setting_the_server_clock_back_prolongs_no_lease(url: str, redis: Any) -> None:
    key, limits, store = next(keys), RateLimits(max_concurrency=2), RedisLimitStore(url)
    assert await store.take(key, limits, 0, "first") is None
    usage, leases = (f"agentrt:limit:{{{key}}}:{name}" for name in ("usage", "leases"))
    await redis.hincrbyfloat(usage, "at", 3600)
    await redis.zincrby(leases, "first", 3600)
    assert await store.take(key, limits, 0, "second") is None
    first, second = [await redis.zscore(leases, name) for name in ("first", "second")]
    assert first == pytest.approx(second, abs=5)


@pytest.mark.parametrize(
    "options", [{"requests_per_minute": 1e-20}, {"min_interval": 1e12}, {"tokens_per_minute": 1e12}]
)
async def test_the_longest_and_the_largest_limits_are_kept_as_well(url: str, options: Any, redis: Any) -> None:
    key, limits, store = next(keys), RateLimits(**options), RedisLimitStore(url, lease_seconds=0.001)
    assert await store.take(key, limits, 1e12, "first") is None
    usage = f"agentrt:limit:{{{key}}}:usage"
    try:
        assert await redis.ttl(usage) > 0
        assert await store.take(key, limits, 1e12, "second") is not None
    finally:
        await redis.delete([usage])  # it would stay for decades


async def test_setting_the_server_clock_back_keeps_no_call_waiting(url: str, redis: Any) -> None:
    key, limits, store = next(keys), RateLimits(min_interval=20, requests_per_minute=100), RedisLimitStore(url)
    assert await store.take(key, limits, 0, "first") is None
    usage = f"agentrt:limit:{{{key}}}:usage"
    for name in ("at", "next_start", "blocked_until"):
        await redis.hincrbyfloat(usage, name, 3600)
    refusal = await store.take(key, limits, 0, "second")
    assert refusal.seconds == pytest.approx(20, abs=1.5)


async def test_keys_expire_when_nothing_is_in_use_any_more(url: str, redis: Any) -> None:
    key, limits, store = next(keys), RateLimits(0.1, requests_per_minute=60), RedisLimitStore(url)
    await store.take(key, limits, 0, "first")
    usage, leases = (f"agentrt:limit:{{{key}}}:{name}" for name in ("usage", "leases"))
    assert 740 < await redis.ttl(leases) <= 750  # its end may come ten minutes after its lease
    assert 740 < await redis.ttl(usage) <= 750
    await store.end(key, limits, "first", 0)
    assert not await redis.exists([leases])
    assert 55 < await redis.ttl(usage) < 65


async def test_one_process_asks_for_one_call_at_a_time(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asking, most, questions = 0, 0, 0
    take = RedisLimitStore.take

    async def counted(self: RedisLimitStore, *arguments: Any) -> Any:
        nonlocal asking, most, questions
        asking += 1
        most, questions = max(most, asking), questions + 1
        try:
            return await take(self, *arguments)
        finally:
            asking -= 1

    monkeypatch.setattr(RedisLimitStore, "take", counted)
    limiter = SharedLimiter(RateLimits(min_interval=0.02), RedisLimitStore(url), next(keys))
    async with anyio.create_task_group() as group:
        for _ in range(10):
            group.start_soon(limiter.acquire)
    assert most == 1
    assert questions <= 30  # each once or twice, and not all of them all the time


async def test_a_cancelled_waiter_loses_no_place(url: str) -> None:
    limiter = SharedLimiter(RateLimits(max_concurrency=1), RedisLimitStore(url), next(keys))
    for checkpoints in range(0, 40, 3):
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as group:

                async def call() -> None:
                    lease = await limiter.acquire()
                    try:
                        await anyio.lowlevel.checkpoint()
                    finally:
                        await lease.settle()

                group.start_soon(call)
                for _ in range(checkpoints):
                    await anyio.lowlevel.checkpoint()
                scope.cancel()
    await limiter.acquire(max_wait=0)


@pytest.mark.slow
async def test_a_place_an_idle_process_could_not_return_expires(server: RedisServer) -> None:
    key, limits, store = next(keys), RateLimits(max_concurrency=1), RedisLimitStore(server.url, lease_seconds=LEASE)
    limiter = SharedLimiter(limits, store, key)
    lease = await limiter.acquire()
    server.send(signal.SIGSTOP)
    await lease.settle()
    server.send(signal.SIGCONT)
    assert not limiter.is_idle()
    await granted(store, key, "other")


async def granted(store: RedisLimitStore, key: str, lease: str) -> None:
    while await store.take(key, RateLimits(max_concurrency=1), 0, lease) is not None:  # noqa: ASYNC110  # Redis tells nobody
        await anyio.sleep(0.02)


class Holder:
    """A process that holds the only place of a key for as long as it runs."""

    def __init__(self, backend: str, url: str, key: str) -> None:
        command = [sys.executable, str(HOLDER), backend, url, key, str(LEASE)]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    def send(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def read_pieces_for(self, seconds: float) -> None:
        assert self._line() == "piece\n"  # it has begun only now
        begin = monotonic()
        while monotonic() - begin < seconds:
            assert self._line() == "piece\n"

    def read_until_logged(self, text: str) -> None:
        # On a busy machine Redis may answer too late, which is logged as well.
        begin = monotonic()
        while text not in self._line():
            assert monotonic() - begin < PATIENCE

    def _line(self) -> str:
        return self._process.stdout.readline()

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


@pytest.mark.slow
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize(("backend", "fault"), [("asyncio", signal.SIGKILL), ("trio", signal.SIGSTOP)])
async def test_a_reading_process_keeps_its_place_a_stopped_does_not(
    url: str, backend: str, fault: signal.Signals, anyio_backend: str
) -> None:
    key, store, one = next(keys), RedisLimitStore(url), RateLimits(max_concurrency=1)
    with closing(Holder(backend, url, key)) as holder:
        await anyio.to_thread.run_sync(holder.read_pieces_for, 2 * LEASE)
        assert await store.take(key, one, 0, "other") is not None
        holder.send(fault)
        await granted(store, key, "other")
        if fault == signal.SIGSTOP:
            holder.send(signal.SIGCONT)
            await anyio.to_thread.run_sync(holder.read_until_logged, "lost its place")
            await store.end(key, one, "other", 0)
            assert await store.take(key, one, 0, "next") is not None  # it counts again


def messages_in(caplog: pytest.LogCaptureFixture) -> list[str]:
    # coredis has a logger of its own, and says more.
    return [record.message for record in caplog.records if record.name == "agentrt"]


def agent_on(url: str, policy: Any, **options: Any) -> Agent:
    layer = RateLimitMiddleware(key=next(keys), store=RedisLimitStore(url), on_store_error=policy, **options)
    return Agent("a", model=ScriptedChatModel(repeat("Hello.")), middlewares=[layer])


async def ask(agent: Agent, found: list[Any]) -> None:
    async with agent.with_state(AgentState()).reply_stream("go") as stream:
        found += [(event.name, event.value) async for event in stream if isinstance(event, CustomEvent)]


@pytest.mark.slow
@pytest.mark.parametrize("fault", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
@pytest.mark.parametrize("policy", ["local", "open", "closed"])
async def test_when_redis_fails_the_policy_applies_and_is_said_once(
    server: RedisServer, fault: signal.Signals, policy: str, patient_limits: None, caplog: pytest.LogCaptureFixture
) -> None:
    found: list[Any] = []
    agent = agent_on(server.url, policy, requests_per_minute=2, max_wait=5)
    await ask(agent, found)
    assert not found
    server.send(fault)
    if policy == "closed":
        for _ in range(3):
            with pytest.raises(RateLimitTimeout, match="on_store_error='closed'") as caught:
                await ask(agent, found)
        assert caught.value.retry_after is not None
    else:
        await ask(agent, found)
        assert found == [("rate_limit_store", {"state": "down", "policy": policy})]
    if policy == "open":
        await ask(agent, found)
    elif policy == "local":
        with pytest.raises(RateLimitTimeout, match="requests_per_minute"):
            await ask(agent, found)
    assert len(found) <= 1
    assert len(messages_in(caplog)) == 1


@pytest.mark.slow
async def test_when_redis_is_back_the_limits_are_shared_again(
    server: RedisServer, patient_limits: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(guard, "_REST", 0.0)
    found: list[Any] = []
    agent = agent_on(server.url, "open", requests_per_minute=4, max_wait=1)
    await ask(agent, found)
    server.send(signal.SIGSTOP)
    await ask(agent, found)
    server.send(signal.SIGCONT)
    await ask(agent, found)
    assert [value["state"] for _, value in found] == ["down", "up"]
    assert [message.rpartition(" ")[2] for message in messages_in(caplog)] == ["limited", "back"]


def test_a_password_in_the_url_is_not_shown() -> None:
    store = RedisLimitStore("redis://:canary@127.0.0.1:1/0")
    assert "canary" not in repr(store)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("http://:canary@host:6379/0?password=canary",), "not .host:6379/0."),
        ((6379,), "redis://"),
        *((("redis://x", seconds), "above 0") for seconds in (0, -1, float("nan"), float("inf"), "90", True)),
    ],
)
def test_an_invalid_store_is_refused_at_construction(arguments: Any, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem) as caught:
        RedisLimitStore(*arguments)
    assert "canary" not in str(caught.value)


def test_without_coredis_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "coredis", None)
    with pytest.raises(ConfigError, match=r"agentrt\[redis\]"):
        RedisLimitStore("redis://127.0.0.1")


@pytest.mark.slow
def test_four_processes_together_stay_within_the_limit(url: str) -> None:
    arrivals: list[float] = []
    listener = socket.create_server(("127.0.0.1", 0), backlog=64)

    def serve() -> None:
        with suppress(OSError):
            while True:
                connection, _ = listener.accept()
                with connection:
                    arrivals.append(float(connection.recv(100)))
                    connection.sendall(b"ok")

    thread = threading.Thread(target=serve)
    thread.start()
    key, port = next(keys), str(listener.getsockname()[1])
    children = [
        subprocess.Popen([sys.executable, CHILD, backend, port, url, key]) for backend in ("asyncio", "trio") * 2
    ]
    try:
        assert [child.wait(60) for child in children] == [0, 0, 0, 0]
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join()
    arrivals.sort()
    took = arrivals[-1] - arrivals[0]
    assert 30 <= len(arrivals) <= 30 + 0.5 * took + 1
    late = 0.5  # seconds by which one call may begin later than another after it was let through
    for first, start in enumerate(arrivals):
        for last, end in enumerate(arrivals[first:], first):
            assert last - first + 1 <= 1 + (end - start + late) / 0.04
