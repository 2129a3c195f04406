"""Servers that are killed and connections that are cut: each listener rebuilds the message, and no tool runs twice."""

import json
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest

from tests.console.program import environment
from tests.postgres_server import PostgresServer
from tests.servers.aimock import free_port
from tests.serving.conftest import read_stream, rebuild

pytestmark = pytest.mark.slow

TOOLS = 4
CUT = 10  # events, after which a follower cuts its connection
APP = f"""
import os

import anyio

from agentrt import Agent
from agentrt.message import TextBlock, ToolCallBlock
from agentrt.model import ChatResponse, ScriptedChatModel
from agentrt.tool import ToolContext


async def note(number: int, context: ToolContext) -> str:
    \"\"\"Write down that this runs.\"\"\"
    with open("ran", "a") as file:
        file.write(f"{{context.idempotency_key}}\\n")
    while not os.path.exists(f"may-end-{{number}}"):
        await anyio.sleep(0.01)
    return f"noted {{number}}"


def answer(messages, tools):
    # By what is in the conversation alone, so that each process plays the same model.
    count = sum(len(message.get_content_blocks("tool_result")) for message in messages)
    words = " ".join(f"word{{count}}-{{number}}" for number in range(12))
    if count == {TOOLS}:
        return words
    return ChatResponse([TextBlock(words), ToolCallBlock(f"c{{count}}", "note", f'{{{{"number": {{count}}}}}}')])


agent = Agent("assistant", "", ScriptedChatModel([answer] * 10_000, stream=True), tools=[note])
"""


def let_end(folder: Path, count: int) -> None:
    """Let so many of the tools of each conversation come to their end."""
    for number in range(count):
        (folder / f"may-end-{number}").touch()


@contextmanager
def server(folder: Path, port: int, *options: str) -> Iterator["subprocess.Popen[str]"]:
    """Serve the agent until the block is left; the next one finds what it has saved."""
    chosen = options or ("--store", "sqlite:agent.db")
    command = [sys.executable, "-m", "agentrt", "serve", "killed_app:agent", "--port", str(port), *chosen]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment(), cwd=folder, text=True) as process:
        try:
            assert process.stdout.readline()
            yield process
        finally:
            process.kill()


class Follower(threading.Thread):
    """Follows a reply to its end; it cuts its own connection now and then, and comes back to the next server."""

    def __init__(self, url: str, session_id: str, reply_id: str) -> None:
        super().__init__()
        self.events: list[tuple[str, Any]] = []
        self.cuts = 0
        self._path = f"{url}/api/replies/{reply_id}/events?session={session_id}"
        self._more = threading.Condition()

    def run(self) -> None:
        until = time.monotonic() + 300
        while not (self.events and self.events[-1][0] == "done"):
            assert time.monotonic() < until
            # There may be no server at the moment.
            with suppress(httpx2.TransportError):
                self._read_some()
            time.sleep(0.01)

    def wait_for(self, count: int) -> None:
        """Wait until so many events have come."""
        with self._more:
            assert self._more.wait_for(lambda: len(self.events) >= count, 60)

    def _read_some(self) -> None:
        last = {"Last-Event-ID": self.events[-1][0]} if self.events else {}
        name, count = "", 0
        with httpx2.stream("GET", self._path, headers=last, timeout=20) as response:
            for line in response.iter_lines():
                field, _, value = line.partition(": ")
                if field in ("id", "event"):
                    name = value
                elif field == "data":
                    with self._more:
                        self.events.append((name, json.loads(value)))
                        self._more.notify()
                    count += 1
                    if count == CUT:
                        self.cuts += 1
                        return


def saved_content(url: str, session_id: str) -> Any:
    return httpx2.get(f"{url}/api/sessions/{session_id}", timeout=60).json()["messages"][-1]["content"]


def rebuilt_content(events: list[tuple[str, Any]]) -> Any:
    return json.loads(rebuild(events).to_json())["content"]


def test_two_followers_outlive_servers_that_are_killed(tmp_path):
    (tmp_path / "killed_app.py").write_text(APP)
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    followers = [Follower(url, "s1", "k1"), Follower(url, "s1", "k1")]
    # However long this process is kept waiting, none of the servers that are killed can have ended the reply.
    let_end(tmp_path, 1)
    with server(tmp_path, port) as process:
        body, key = {"input": "Go"}, {"Idempotency-Key": "k1"}
        httpx2.post(f"{url}/api/sessions/s1/replies", json=body, headers=key, timeout=60).raise_for_status()
        for follower in followers:
            follower.start()
        followers[0].wait_for(9)
        process.kill()
    for count in (2, 3):
        begun = len(followers[0].events)
        let_end(tmp_path, count)
        with server(tmp_path, port) as process:
            followers[0].wait_for(begun + 9)
            process.kill()
    let_end(tmp_path, TOOLS)
    with server(tmp_path, port):
        for follower in followers:
            follower.join(60)
        message = saved_content(url, "s1")
        for follower in followers:
            assert follower.events[-1] == ("done", {"reply_id": "k1", "status": "completed"})
            assert rebuilt_content(follower.events) == message
    results = [block for block in message if block["type"] == "tool_result"]
    assert [block["id"] for block in results] == [f"c{number}" for number in range(TOOLS)]
    # Each ran once, or, where the server was killed in the middle of it, at most once and has an "unknown" result.
    ran = Counter((tmp_path / "ran").read_text().splitlines())
    assert set(ran.values()) == {1}
    assert all(block["state"] in ("success", "unknown") for block in results)
    assert followers[0].cuts >= 1
    assert any(data.get("type") == "REPLY_RESUMED" for _, data in followers[0].events)


def test_two_hundred_users_at_once(tmp_path):
    (tmp_path / "killed_app.py").write_text(APP)
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    streams: dict[str, list[tuple[str, Any]]] = {}

    async def talk(client: httpx2.AsyncClient, name: str) -> None:
        path, accept = f"/api/sessions/{name}/replies", {"Accept": "text/event-stream"}
        response = await client.post(path, json={"input": "Go"}, headers=accept)
        streams[name] = read_stream(response.raise_for_status().text)

    async def talk_to_all() -> None:
        limits = httpx2.Limits(max_connections=None)
        client = httpx2.AsyncClient(base_url=url, limits=limits, timeout=600)
        async with client, anyio.create_task_group() as group:
            for number in range(200):
                group.start_soon(talk, client, f"user{number}")

    let_end(tmp_path, TOOLS)
    with server(tmp_path, port):
        anyio.run(talk_to_all)
        assert len(streams) == 200
        for name, events in streams.items():
            assert events[-1][1]["status"] == "completed"
            assert rebuilt_content(events) == saved_content(url, name)
    ran = Counter((tmp_path / "ran").read_text().splitlines())
    assert len(ran) == 200 * TOOLS
    assert set(ran.values()) == {1}


def test_reply_is_followed_where_it_does_not_run(tmp_path):
    (tmp_path / "killed_app.py").write_text(APP)
    ports = [free_port(), free_port()]
    other, here = (f"http://127.0.0.1:{port}" for port in ports)
    with closing(PostgresServer()) as postgres:
        options = ["--store", postgres.url]
        with server(tmp_path, ports[0], *options) as first, server(tmp_path, ports[1], *options):
            for number in range(6):
                # Either of them may run it; one dies in the middle of the work.
                body, key = {"input": "Go"}, {"Idempotency-Key": f"k{number}"}
                url = other if number < 3 else here
                httpx2.post(
                    f"{url}/api/sessions/s{number}/replies", json=body, headers=key, timeout=60
                ).raise_for_status()
            followers = [Follower(here, f"s{number}", f"k{number}") for number in range(6)]
            for follower in followers:
                follower.start()
            followers[0].wait_for(12)
            first.kill()
            let_end(tmp_path, TOOLS)
            for number, follower in enumerate(followers):
                follower.join(60)
                assert rebuilt_content(follower.events) == saved_content(here, f"s{number}")
    assert set(Counter((tmp_path / "ran").read_text().splitlines()).values()) == {1}
