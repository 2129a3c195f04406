"""What a server lets nobody do: one attack, and one limit, at a time."""

import json
import threading
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import anyio
import httpx2
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

from agentrt import Agent
from agentrt.model import ScriptedChatModel
from agentrt.runner import Runner
from agentrt.serving import BearerTokens, Limits, create_app
from agentrt.state import InMemoryStateStore
from tests.runner.conftest import approved_pay, make_agent
from tests.serving.conftest import open_client, open_socket, read_all, read_stream, rebuild, run_server, serve

REPLIES = "/api/sessions/s1/replies"
SSE = {"Accept": "text/event-stream"}


def code_of(response: Any) -> tuple[int, str]:
    return response.status_code, response.json()["error"]["code"]


class Gate:
    """A tool that waits until the test opens it."""

    def __init__(self) -> None:
        self.begun = anyio.Event()
        self._is_open = anyio.Event()

    def open(self) -> None:
        self._is_open.set()

    async def wait(self) -> str:
        self.begun.set()
        await self._is_open.wait()
        return "open"


@asynccontextmanager
async def serve_waiting(limits: Limits, **options: Any) -> Any:
    """Serve an agent, one reply of which waits, with a stream that is open."""
    gate = Gate()
    tokens = BearerTokens({"ann-token": "ann", "bob-token": "bob"})
    async with serve(make_agent(gate.wait), auth=tokens, limits=limits, **options) as client:
        ann = {"Authorization": "Bearer ann-token"}
        async with anyio.create_task_group() as group:
            body = {"input": "call wait"}
            group.start_soon(lambda: client.post(REPLIES, json=body, headers={**ann, **SSE}))
            await gate.begun.wait()
            try:
                yield client, ann
            finally:
                gate.open()


async def test_owner_has_only_so_many_streams():
    async with serve_waiting(Limits(streams_per_owner=1)) as (client, ann):
        [session] = (await client.get("/api/sessions", headers=ann)).json()["sessions"]
        assert session["status"] == "running"
        paths: list[tuple[str, Any]] = [
            ("/api/sessions/s2/replies", {"input": "Hi"}),
            ("/agui", {"threadId": "s2", "runId": "r", "messages": [{"id": "m", "role": "user", "content": "Hi"}]}),
            ("/v1/chat/completions", {"model": "assistant", "messages": [{"role": "user", "content": "Hi"}]}),
        ]
        for path, body in paths:
            refused = await client.post(path, json=body, headers={**ann, **SSE})
            assert code_of(refused) == (429, "too_many_streams")
            assert refused.headers["retry-after"] == "1"
        # What was refused has stored nothing, and another owner has streams of its own.
        assert len((await client.get("/api/sessions", headers=ann)).json()["sessions"]) == 1
        bob = {"Authorization": "Bearer bob-token", **SSE}
        assert (await client.post("/api/sessions/s3/replies", json={"input": "Hi"}, headers=bob)).status_code == 200


async def test_server_takes_only_so_many_requests():
    async with serve_waiting(Limits(connections=1)) as (client, ann):
        refused = await client.get("/api/sessions", headers=ann)
        assert code_of(refused) == (503, "busy")
        assert refused.json()["error"]["limit"] == "connections"
        assert refused.headers["retry-after"] == "1"


async def test_full_queue_says_when_to_come_back():
    gate = Gate()
    agent = make_agent(gate.wait)
    runner = Runner(agent, InMemoryStateStore(), max_queued_per_session=1)
    async with serve(agent, runner=runner) as client:
        await client.post(REPLIES, json={"input": "call wait"})
        await gate.begun.wait()
        assert (await client.post(REPLIES, json={"input": "next"})).status_code == 202
        chat = {"model": "assistant", "session_id": "s1", "messages": [{"role": "user", "content": "a"}]}
        for path, body in ((REPLIES, {"input": "one too many"}), ("/v1/chat/completions", chat)):
            refused = await client.post(path, json=body)
            assert code_of(refused) == (503, "queue_full")
            assert int(refused.headers["retry-after"]) >= 1
        gate.open()


@pytest.mark.parametrize("breaker", ["%0d%0aX-Evil:%201", "%0a", "%00", "%e2%80%a8"])
async def test_ids_cannot_add_headers_or_lines(breaker):
    async with serve(make_agent()) as client:
        thread = httpx2.URL(f"http://a/{breaker}").path
        run = {"threadId": f"t{thread}", "runId": "r", "messages": [{"id": "m", "role": "user", "content": "Hi"}]}
        responses = [
            await client.post(f"/api/sessions/a{breaker}/replies", json={"input": "Hi"}),
            await client.get(f"/api/replies/a{breaker}/events"),
            await client.get(f"/api/sessions?agent=a{breaker}"),
            await client.post("/agui", json=run),
        ]
        for response in responses:
            assert response.status_code in (400, 404)
            assert "x-evil" not in response.headers


async def test_id_in_a_path_is_quoted():
    async with serve(make_agent()) as client:
        begun = await client.post("/api/sessions/%C3%BC%22%3C%26a=b/replies", json={"input": "Hi"})
        assert begun.headers["location"] == begun.json()["events"]
        assert begun.json()["events"].endswith("?session=%C3%BC%22%3C%26a%3Db")
        assert read_stream((await client.get(begun.headers["location"])).text)[-1][1]["status"] == "completed"


async def test_deleted_session_leaves_nothing_to_the_next_owner():
    tokens = BearerTokens({"ann-token": "ann", "bob-token": "bob"})
    begun = {}
    async with serve(make_agent(), auth=tokens) as client:
        for name in ("ann", "bob"):
            headers = {"Authorization": f"Bearer {name}-token", "Idempotency-Key": "k1"}
            stream = await client.post(REPLIES, json={"input": "Hi"}, headers={**headers, **SSE})
            events = read_stream(stream.text)
            assert events[-1][1]["status"] == "completed"
            begun[name] = events[0][1]["created_at"]
            assert len((await client.get("/api/sessions/s1", headers=headers)).json()["messages"]) == 2
            assert (await client.delete("/api/sessions/s1", headers=headers)).status_code == 204
    assert begun["ann"] != begun["bob"]


async def test_foreign_page_is_refused_with_a_token_too():
    tokens = BearerTokens({"ann-token": "ann"})
    async with serve(make_agent(), auth=tokens) as client:
        headers = {"Authorization": "Bearer ann-token", "Origin": "https://evil.example"}
        for path in ("/api/sessions", "/v1/models"):
            assert code_of(await client.get(path, headers=headers)) == (403, "origin")
        for malformed in ("null", "http://[", "//", "http://localhost@evil.example"):
            refused = await client.get("/api/sessions", headers={**headers, "Origin": malformed})
            assert code_of(refused) == (403, "origin")
        # A server with authentication has a name of its own, which this one does not know.
        headers = {"Authorization": "Bearer ann-token", "Host": "chat.example", "Origin": "https://chat.example"}
        assert (await client.get("/api/sessions", headers=headers)).status_code == 200


async def test_application_is_mounted_in_another():
    app = create_app(make_agent(approved_pay()))

    @asynccontextmanager
    async def lifespan(_: Starlette) -> Any:
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(app.router.lifespan_context(app))
            yield

    whole = Starlette(routes=[Mount("/agents", app)], lifespan=lifespan)
    async with open_client(whole) as client:
        begun = await client.post(f"/agents{REPLIES}", json={"input": "Hi"})
        assert begun.headers["location"].startswith("/agents/api/replies/")
        assert read_stream((await client.get(begun.headers["location"])).text)[-1][1]["status"] == "completed"
        chat = {"model": "assistant", "messages": [{"role": "user", "content": "call pay"}]}
        asked = (await client.post("/agents/v1/chat/completions", json=chat)).json()["choices"][0]["message"]["content"]
        assert "Answer at http://localhost/agents/studio#agent=assistant&session=chat%2F" in asked
        assert code_of(await client.get("/agents/api/sessions", headers={"Host": "evil.example"})) == (403, "host")
    # Without the lifespan nothing works, and a request says so.
    async with open_client(Starlette(routes=[Mount("/agents", create_app(make_agent()))])) as client:
        refused = await client.get("/agents/api/sessions")
        assert code_of(refused) == (503, "not_open")
        assert refused.headers["retry-after"] == "1"


async def test_token_is_in_no_log(caplog):
    caplog.set_level("DEBUG")
    tokens = BearerTokens({"ann-token-4711": "ann"})
    async with serve(make_agent(), auth=tokens) as client:
        for token in ("ann-token-4711", "wrong-token-4711"):
            headers = {"Authorization": f"Bearer {token}"}
            await client.post(REPLIES, json={"input": "Hi"}, headers=headers)
            await client.post("/v1/chat/completions", json={"model": "none"}, headers=headers)
    assert "4711" not in caplog.text
    assert "4711" not in repr(tokens)


def test_reader_that_stalls_is_cut_and_may_come_back(caplog):
    caplog.set_level("INFO", "agentrt")
    words = ["x" * 20_000 for _ in range(300)]
    agent = Agent("assistant", "", ScriptedChatModel([" ".join(words)], stream=True))
    app = create_app(agent, limits=Limits(stall_seconds=0.5))
    with run_server(app) as url, httpx2.Client(base_url=url, timeout=30) as plain:
        assert plain.post(REPLIES, json={"input": "Hi"}, headers={"Idempotency-Key": "k1"}).status_code == 202
        with open_socket(url, "GET /api/replies/k1/events HTTP/1.1") as client:
            client.sendall(b"\r\n")
            # It reads nothing until the server has given it up.
            cut = threading.Event()
            while not cut.wait(0.01):
                if "it took nothing for too long" in caplog.text:
                    cut.set()
            beginning = read_all(client)
        assert b"event: done" not in beginning
        events = read_chunks(beginning)
        rest = plain.get("/api/replies/k1/events", headers={"Last-Event-ID": events[-1][0]})
        assert rebuild([*events, *read_stream(rest.text)]).get_text_content() == " ".join(words)


def read_chunks(response: bytes) -> list[tuple[str, Any]]:
    """Return the events that have come whole, of a response in chunks that is cut somewhere."""
    _, _, rest = response.partition(b"\r\n\r\n")
    body = b""
    while rest:
        size, _, rest = rest.partition(b"\r\n")
        chunk, rest = rest[: int(size, 16)], rest[int(size, 16) + 2 :]
        body += chunk
    whole, _, _ = body.decode().rpartition("\n\n")
    events = read_stream(whole)
    assert json.dumps(events)
    return events
