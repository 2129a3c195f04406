"""A server on a port: cut and continue, two followers, large bodies."""

import json
import threading
import time
from collections.abc import Callable
from contextlib import aclosing, suppress
from typing import Any

import anyio
import httpx2
import pytest
import trio

from agentrt import Agent
from agentrt.errors import ConfigError
from agentrt.message import ToolCallBlock
from agentrt.model import ScriptedChatModel
from agentrt.runner import Runner, supervisor
from agentrt.runner.sqlite.queue import SQLiteQueue
from agentrt.serving import Limits, create_app
from agentrt.state import InMemoryStateStore, SQLiteStore
from tests.runner.conftest import work
from tests.serving.conftest import PATIENCE, WORDS, halfway_agent, read_stream, rebuild, run_server, serve


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.mark.parametrize("is_durable", [False, True])
def test_reply_survives_its_connections_while_it_runs(is_durable, tmp_path):
    agent, gate = halfway_agent()
    runner = Runner(agent, SQLiteStore(tmp_path / "agent.db")) if is_durable else None
    app = create_app(agent, runner=runner, limits=Limits(body_bytes=500))
    with run_server(app) as url, httpx2.Client(base_url=url, timeout=PATIENCE) as client:
        key = {"Idempotency-Key": "k1"}
        assert client.post("/api/sessions/s1/replies", json={"input": "Hi"}, headers=key).status_code == 202
        # Each cut is long after the last save, up to the one at which the model may continue.
        events, cuts = read_in_parts(client, "/api/replies/k1/events", 10, lambda cuts: cuts > 2 and gate.set())
        whole = read_stream(client.get("/api/replies/k1/events").text)
        assert cuts > 5
        assert events == whole
        assert rebuild(events).get_text_content() == "".join(WORDS)
        large = client.post("/api/sessions/s1/replies", json={"input": "a" * 1000})
        assert (large.status_code, large.json()["error"]["code"]) == (413, "too_large")


def test_app_that_was_made_in_another_event_loop_serves():
    async def make() -> Any:
        return create_app(Agent("assistant", "", ScriptedChatModel(["Hello."])))

    with run_server(trio.run(make)) as url, httpx2.Client(base_url=url, timeout=PATIENCE) as client:
        headers = {"Accept": "text/event-stream"}
        reply = client.post("/api/sessions/s1/replies", json={"input": "Hi"}, headers=headers)
        assert read_stream(reply.text)[-1][1]["status"] == "completed"


async def test_reader_continues_where_the_reply_does_not_run(tmp_path):
    agent, gate = halfway_agent()
    async with work(Runner(agent, SQLiteStore(tmp_path / "agent.db"))) as worker:
        handle = await worker.submit("s1", "Hi", reply_id="k1")
        async with aclosing(handle.events()) as events:
            number = [(await anext(events)).seq for _ in range(20)][-1]
        async with (
            Runner(agent, SQLiteStore(tmp_path / "agent.db")) as other,
            serve(agent, runner=other) as client,
            anyio.create_task_group() as group,
        ):
            answers = []

            async def follow() -> None:
                answers.append(await client.get(f"/api/replies/k1/events?after={number}"))

            state = await other.store.load("s1")
            assert number > state.sequence
            group.start_soon(follow)
            gate.set()
        [answer] = answers
        assert (answer.status_code, read_stream(answer.text)[-1][1]["status"]) == (200, "completed")
        assert rebuild(read_stream(answer.text)).get_text_content() == "".join(WORDS)


def test_server_says_that_a_worker_failed_until_it_works_again(monkeypatch, caplog):
    claim, has_failed, may_continue = SQLiteQueue.claim, threading.Event(), threading.Event()
    delays: list[float] = []

    async def fail_until_told(queue: SQLiteQueue, worker: str) -> Any:
        if may_continue.is_set():
            return await claim(queue, worker)
        raise RecursionError("the password is hunter2")

    async def wait(delay: float, stopping: anyio.Event) -> None:
        delays.append(delay)
        if len(delays) == 3:
            has_failed.set()
            await anyio.to_thread.run_sync(may_continue.wait, PATIENCE, abandon_on_cancel=True)

    monkeypatch.setattr(SQLiteQueue, "claim", fail_until_told)
    monkeypatch.setattr(supervisor, "_wait", wait)
    app = create_app(Agent("assistant", "", ScriptedChatModel(["Hello."])))
    with run_server(app) as url, httpx2.Client(base_url=url, timeout=PATIENCE) as client:
        assert has_failed.wait(PATIENCE)
        unready = client.get("/readyz")
        assert (unready.status_code, client.get("/healthz").status_code) == (503, 200)
        assert unready.json() == {"status": "no_worker", "reason": "the worker failed: RecursionError"}
        begun = client.post("/api/sessions/s1/replies", json={"input": "Hi"})  # which is stored
        assert begun.status_code == 202
        may_continue.set()
        assert read_stream(client.get(begun.json()["events"]).text)[-1][1]["status"] == "completed"
        assert (client.get("/readyz").status_code, delays) == (200, [1, 2, 4])
    assert "hunter2" not in caplog.text


def test_application_outlives_a_worker_that_cannot_be_mended(monkeypatch, caplog):
    async def refuse(queue: SQLiteQueue, worker: str) -> Any:
        raise ConfigError("choose another name")

    async def expire(store: InMemoryStateStore) -> int:
        if delays:
            is_expired.set()
            return 0
        raise OSError("the password is hunter2")

    async def wait(delay: float, stopping: anyio.Event) -> None:
        delays.append(delay)

    is_expired, delays = threading.Event(), list[float]()
    monkeypatch.setattr(SQLiteQueue, "claim", refuse)
    monkeypatch.setattr(InMemoryStateStore, "expire", expire)
    monkeypatch.setattr(supervisor, "_wait", wait)
    app = create_app(Agent("assistant", "", ScriptedChatModel(["Hello."])))
    with run_server(app) as url, httpx2.Client(base_url=url, timeout=PATIENCE) as client:
        assert is_expired.wait(PATIENCE)
        assert client.get("/api/sessions").status_code == 200
        while (readiness := client.get("/readyz")).status_code == 200:
            time.sleep(0.01)
        assert readiness.json()["reason"] == "the worker failed: ConfigError"
    assert "hunter2" not in caplog.text


SAYS = {"role": "user", "content": "Hi"}
CHAT = {"model": "assistant", "messages": [SAYS], "stream": True}


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/api/sessions/s1/replies", {"input": "Hi"}, "running"),
        ("/api/sessions/s1/replies?on_disconnect=interrupt", {"input": "Hi"}, "idle"),
        ("/agui", {"threadId": "s1", "runId": "r", "messages": [SAYS]}, "running"),
        ("/agui?on_disconnect=interrupt", {"threadId": "s1", "runId": "r", "messages": [SAYS]}, "idle"),
        ("/v1/chat/completions", {"model": "assistant", "messages": [SAYS], "stream": True}, None),
        (
            "/v1/chat/completions",
            {"model": "assistant", "messages": [SAYS], "session_id": "s1", "stream": True},
            "running",
        ),
    ],
)
@pytest.mark.slow
def test_reply_continues_without_its_reader_unless_told(path, body, status):
    began, may_end = threading.Event(), threading.Event()

    def wait() -> str:
        began.set()
        return str(may_end.wait(PATIENCE))

    model = ScriptedChatModel([[ToolCallBlock("1", "wait", "{}")], "Done."], stream=True)
    app = create_app(Agent("assistant", "", model, tools=[wait]))
    with run_server(app) as url, httpx2.Client(base_url=url, timeout=PATIENCE) as client:
        headers = {"Accept": "text/event-stream"}
        # A whole answer has not begun when its reader gives up.
        reading = client.stream("POST", path, json=body, headers=headers, timeout=1)
        with suppress(httpx2.ReadTimeout), reading as response:
            lines = response.iter_lines()  # which leaves when it is forgotten
            next(lines)
            assert began.wait(PATIENCE)
        assert began.wait(PATIENCE)
        try:
            # What is interrupted ends while its tool still waits.
            until = time.monotonic() + (PATIENCE if status != "running" else 0.3)
            while status_of(client) != status or (status == "running" and time.monotonic() < until):
                assert time.monotonic() < until
                time.sleep(0.02)
        finally:
            may_end.set()


def status_of(client: httpx2.Client) -> str | None:
    """Return the status of the one session that there is."""
    sessions = client.get("/api/sessions").json()["sessions"]
    return sessions[0]["status"] if sessions else None


def read_in_parts(
    client: httpx2.Client, path: str, size: int, on_cut: Callable[[int], object]
) -> tuple[list[tuple[str, Any]], int]:
    """Read a stream, and cut the connection after each so many events."""
    events: list[tuple[str, Any]] = []
    for cuts in range(100):
        on_cut(cuts)
        last = {"Last-Event-ID": events[-1][0]} if events else {}
        count, name = 0, ""
        with client.stream("GET", path, headers=last) as response:
            assert response.status_code == 200
            for line in response.iter_lines():
                field, _, value = line.partition(": ")
                if field in ("id", "event"):
                    name = value
                elif field == "data":
                    events.append((name, json.loads(value)))
                    count += 1
                    if name == "done":
                        return events, cuts
                    if count == size:
                        break
    raise AssertionError("the stream has no end")
