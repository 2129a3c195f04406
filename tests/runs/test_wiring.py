"""Runs are written, expire and are deleted with what they belong to."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

from agentrt import Agent
from agentrt.model import ScriptedChatModel
from agentrt.runner import Runner
from agentrt.runs import RunStore
from agentrt.runs import writer as writer_module
from agentrt.serving import create_app
from agentrt.state import AgentState, InMemoryStateStore, SQLiteStore
from tests.runs.conftest import call, make_agent
from tests.serving.conftest import open_client


@pytest.fixture
def slow_writer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines are written when they are waited for, or in an hour."""
    monkeypatch.setattr(writer_module, "_BATCH_INTERVAL", 3_600.0)
    monkeypatch.setattr(writer_module, "_LINGER_SECONDS", 3_600.0)


def is_written(store: InMemoryStateStore | SQLiteStore, session_id: str) -> bool:
    rows = store.runs._rows.of_session(session_id)
    return bool(rows) and rows[-1].status != "running"


async def test_leaving_an_agent_writes_what_is_queued(store: InMemoryStateStore, slow_writer: None, caplog: Any):
    """Also for a conversation and a sub-agent of it; a reply itself waits for nothing."""
    parent = Agent("parent", "", ScriptedChatModel(["Hi"]), [make_agent(store).as_tool("Finds.")])
    agent = make_agent(store, script=["one", "two"])
    for opened in (agent, parent):
        async with opened:
            conversation = agent.with_state(AgentState())
            await conversation.reply("Go")
            assert not is_written(store, conversation.state.session_id)
        assert is_written(store, conversation.state.session_id)
    assert not caplog.records


async def test_a_worker_that_leaves_a_reply_has_written_its_run(store: InMemoryStateStore, slow_writer: None):
    """Before another worker may take it: the recorder writes to another store than that of the sessions."""
    begun = anyio.Event()

    async def wait() -> None:
        begun.set()
        await anyio.sleep_forever()

    agent = make_agent(store, script=[[call("c1", "wait", "{}")]], tools=[wait])
    agent.state_store = None
    async with (
        Runner(agent, InMemoryStateStore(), drain_seconds=0.01) as runner,
        anyio.create_task_group() as group,
    ):
        await runner.submit("s1", "Go", reply_id="r1")
        group.start_soon(runner.work)
        await begun.wait()
        await runner.drain()
        group.cancel_scope.cancel()
    assert is_written(store, "s1")


@pytest.mark.parametrize("make", [lambda folder: InMemoryStateStore(), lambda folder: SQLiteStore(folder / "a.db")])
async def test_a_store_left_by_a_cancellation_is_closed(
    make: Callable[[Path], InMemoryStateStore | SQLiteStore], tmp_path: Path, slow_writer: None
):
    with anyio.CancelScope() as scope:
        async with make(tmp_path) as store:
            agent = make_agent(store, script=["one"])
            agent.state_store = None
            await agent.reply("Hi")
            scope.cancel()
    assert not [thread for thread in threading.enumerate() if thread.name == "agentrt runs"]
    assert not list(tmp_path.glob("*-wal")), "SQLite has this file as long as a connection is open"
    assert is_written(store, agent.state.session_id)
    await store.aclose()  # which has been opened again to be read


async def test_a_server_expires_and_deletes_runs(store: InMemoryStateStore, monkeypatch: pytest.MonkeyPatch):
    is_expired, expire = anyio.Event(), RunStore.expire

    async def note(runs: RunStore) -> int:
        is_expired.set()
        return await expire(runs)

    monkeypatch.setattr(RunStore, "expire", note)
    agent = make_agent(store, script=["one"])
    agent.state_store = None
    async with open_client(create_app(agent, store=InMemoryStateStore())) as client:
        await is_expired.wait()
        await client.post("/api/sessions/s1/replies", json={"input": "Hi"}, headers={"Accept": "text/event-stream"})
        assert (await store.runs.load("s1")).status == "completed"
        assert (await client.delete("/api/sessions/s1")).status_code == 204
        assert not (await store.runs.list(session_id="s1")).runs
