"""A worker that fails starts again, after longer and longer waits, and loses nothing."""

import logging
from collections.abc import Callable
from typing import Any

import anyio
import pytest

from agentrt.errors import ConfigError
from agentrt.runner import Runner, supervisor
from agentrt.runner.sqlite.queue import SQLiteQueue
from tests.runner.conftest import Waiting, make_agent, work

SECRET = "hunter2"


@pytest.fixture
def fail_claims(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """A function that makes the next so many claims fail."""
    claim, left = SQLiteQueue.claim, 0

    async def claim_or_fail(queue: SQLiteQueue, worker: str) -> Any:
        nonlocal left
        if left:
            left -= 1
            raise RecursionError(f"the password is {SECRET}")
        return await claim(queue, worker)

    def fail(times: int) -> None:
        nonlocal left
        left = times

    monkeypatch.setattr(SQLiteQueue, "claim", claim_or_fail)
    return fail


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The seconds that the supervisor has waited, which take no time."""
    seconds: list[float] = []

    async def wait(delay: float, stopping: anyio.Event) -> None:
        seconds.append(delay)

    monkeypatch.setattr(supervisor, "_wait", wait)
    return seconds


async def test_a_failing_worker_starts_again_and_loses_nothing(store, fail_claims, waits, caplog):
    waiting = Waiting()
    async with work(Runner(make_agent(waiting.wait), store)) as runner:
        running = await runner.submit("s", "call wait")
        await waiting.begun.wait()
        fail_claims(8)
        handles = [await runner.submit(name, "Hi!") for name in ("s", "t")]
        waiting.release.set()
        messages = [await handle.result() for handle in (running, *handles)]
        assert runner.worker_failure is None
    assert [message.finished_reason for message in messages] == ["completed"] * 3
    assert waits == [1, 2, 4, 8, 16, 32, 60, 60]
    failures = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert len(failures) == 8
    assert all("RecursionError at tests.runner.test_supervisor:" in text and SECRET not in text for text in failures)


async def test_a_failed_worker_says_so_and_stops_when_told(sqlite, fail_claims, monkeypatch):
    is_waiting = anyio.Event()
    wait = supervisor._wait

    async def note_and_wait(delay: float, stopping: anyio.Event) -> None:
        is_waiting.set()
        await wait(float("inf"), stopping)

    monkeypatch.setattr(supervisor, "_wait", note_and_wait)
    fail_claims(1)
    async with work(Runner(make_agent(), sqlite)) as runner:
        handle = await runner.submit("s", "Hi!")
        await is_waiting.wait()
        assert runner.worker_failure == "the worker failed: RecursionError"
    async with work(runner):  # what was stored meanwhile
        assert (await handle.result()).finished_reason == "completed"


async def test_a_mistake_of_the_program_is_raised(sqlite, monkeypatch, waits):
    async def claim(queue: SQLiteQueue, worker: str) -> Any:
        raise ConfigError("choose another name")

    monkeypatch.setattr(SQLiteQueue, "claim", claim)
    async with Runner(make_agent(), sqlite) as runner:
        with pytest.raises(ExceptionGroup) as raised:
            await runner.work()
        assert raised.group_contains(ConfigError, match="choose another name")
        assert (waits, runner.worker_failure) == ([], "the worker failed: ConfigError")


@pytest.mark.parametrize(("seconds", "expected"), [(59.0, [1, 2, 4]), (61.0, [1, 1, 1])])
async def test_waits_begin_again_after_a_minute_of_work(waits, monkeypatch, seconds, expected):
    now, attempts = 0.0, 0

    async def work() -> None:
        nonlocal now, attempts
        attempts += 1
        if attempts <= 3:
            now += seconds
            raise RecursionError

    monkeypatch.setattr(supervisor, "monotonic", lambda: now)
    await supervisor.Supervisor().run("worker", work, anyio.Event())
    assert (attempts, waits) == (4, expected)
