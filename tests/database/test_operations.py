"""Blocking work keeps its order per key, however much of it waits."""

import threading
from collections.abc import Coroutine, Generator
from functools import partial
from types import coroutine
from typing import Any

import anyio
import pytest

from agentrt import Agent
from agentrt._runtime.database import operations
from agentrt._runtime.database.operations import OperationQueue
from agentrt.errors import SessionIOError
from agentrt.model import ScriptedChatModel
from agentrt.runner import Runner
from agentrt.state import AgentState, FileStateStore, SQLiteStore


async def test_thousands_of_waiting_operations_run_in_order():
    queue, may_begin = OperationQueue(1), threading.Event()
    submitted: list[int] = []
    order: list[int] = []

    async def submit(number: int) -> None:
        submitted.append(number)
        await queue.run("key", lambda deadline: order.append(number), shield=True)

    async with anyio.create_task_group() as group:
        group.start_soon(partial(queue.run, "key", lambda deadline: may_begin.wait(30), shield=True))
        await anyio.wait_all_tasks_blocked()
        for number in range(3_000):
            group.start_soon(submit, number)
        await anyio.wait_all_tasks_blocked()
        may_begin.set()
    assert (len(order), order) == (3_000, submitted)
    assert (queue._lines, queue._count) == ({}, 0)


async def test_operations_of_callers_that_left_are_skipped():
    queue, has_begun, may_end, ran = OperationQueue(2), threading.Event(), threading.Event(), []

    def work(deadline: float) -> None:
        has_begun.set()
        may_end.wait(30)

    async with anyio.create_task_group() as group:
        group.start_soon(partial(queue.run, "key", work, shield=True))
        await anyio.to_thread.run_sync(has_begun.wait)
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as leaving:
                for _ in range(2_000):
                    leaving.start_soon(partial(queue.run, "key", lambda deadline: ran.append("left"), shield=False))
                await anyio.wait_all_tasks_blocked()
                scope.cancel()
        assert queue._count == 1
        group.start_soon(partial(queue.run, "key", lambda deadline: ran.append("next"), shield=True))
        await anyio.wait_all_tasks_blocked()
        may_end.set()
    assert ran == ["next"]
    assert queue._lines == {}


@coroutine
def one_turn_late(work: Coroutine[Any, Any, object]) -> Generator[Any, None, None]:
    """Await the work, but resume it a turn of the event loop later, as what drives a coroutine may."""
    for awaited in work.__await__():
        yield awaited
        yield


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_no_thread_waits_for_an_operation_that_needs_it(anyio_backend):
    queue, order = OperationQueue(1, seconds=5), []

    async def run(number: int) -> None:
        await queue.run("key", lambda deadline: order.append(number), shield=True)

    async def run_late(number: int) -> None:
        await one_turn_late(run(number))

    async with anyio.create_task_group() as group:
        group.start_soon(run_late, 1)
        group.start_soon(run, 2)
    assert order == [1, 2]


async def test_keys_do_not_wait_for_each_other():
    queue, may_end = OperationQueue(2), threading.Event()
    async with anyio.create_task_group() as group:
        group.start_soon(partial(queue.run, "slow", lambda deadline: may_end.wait(30), shield=True))
        assert await queue.run("other", lambda deadline: "done", shield=True) == "done"
        may_end.set()


async def test_more_operations_than_may_wait_are_refused_as_busy(monkeypatch):
    monkeypatch.setattr(operations, "MAX_OPERATIONS", 2)
    queue, has_begun, may_end = OperationQueue(1), threading.Event(), threading.Event()

    def work(deadline: float) -> None:
        has_begun.set()
        may_end.wait(30)

    async with anyio.create_task_group() as group:
        for _ in range(2):
            group.start_soon(partial(queue.run, "key", work, shield=True))
        await anyio.to_thread.run_sync(has_begun.wait)
        with pytest.raises(TimeoutError, match="it is busy: 2 operations wait, so try again later"):
            await queue.run("other", lambda deadline: None, shield=True)
        may_end.set()
    assert await queue.run("other", lambda deadline: "done", shield=True) == "done"


async def test_busy_store_says_so_and_has_changed_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(operations, "MAX_OPERATIONS", 0)
    for store in (FileStateStore(tmp_path), SQLiteStore(tmp_path / "agent.db")):
        with pytest.raises(SessionIOError, match=r"could not save session 's' in .*: it is busy"):
            await store.save(AgentState(session_id="s"))


@pytest.mark.slow
async def test_fifteen_hundred_submits_at_once_are_all_queued(tmp_path, monkeypatch):
    monkeypatch.setattr(operations, "MAX_WAIT", 100.0)  # how long each waits for the others is the machine's affair
    agent = Agent("a", model=ScriptedChatModel(["Hi"] * 1_500))
    async with Runner(agent, SQLiteStore(tmp_path / "agent.db"), max_queued=2_000) as runner:
        handles = []

        async def submit(number: int) -> None:
            handles.append(await runner.submit(f"s{number}", "Go"))

        async with anyio.create_task_group() as group:
            for number in range(1_500):
                group.start_soon(submit, number)
    assert len(handles) == 1_500


async def test_an_operation_that_gets_no_turn_was_not_done(monkeypatch):
    monkeypatch.setattr(operations, "_EXTRA_WAIT", 0.0)
    queue, has_begun, may_end, ran = OperationQueue(1, seconds=0.05), threading.Event(), threading.Event(), []

    def work(deadline: float) -> None:
        has_begun.set()
        may_end.wait(30)

    async with anyio.create_task_group() as group:
        group.start_soon(partial(queue.run, "slow", work, shield=True, extra_seconds=30))
        await anyio.to_thread.run_sync(has_begun.wait)
        with pytest.raises(TimeoutError, match=r"it had no turn for 0\.05 seconds, so nothing was done"):
            await queue.run("other", lambda deadline: ran.append("other"), shield=True)
        may_end.set()
    assert ran == []
