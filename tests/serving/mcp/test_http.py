"""MCP over HTTP: owners, forms, lost connections, limits, by the SDK's own client and by plain requests."""

import json
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import anyio
import httpx2
import pytest
from hypercorn.config import Config
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.types import ElicitResult

from agentrt.serving import BearerTokens, Limits, Owner, create_app
from tests.runner.conftest import approved_pay, make_agent
from tests.serving.conftest import halfway_agent, run_server, serve

TOKENS = BearerTokens({"ann-token": "ann", "bob-token": "bob"})
JSON = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
HELLO = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}},
}


@asynccontextmanager
async def connect(url: str, mode: Any, owner: str = "ann", **options: Any) -> AsyncIterator[Client]:
    headers = {"Authorization": f"Bearer {owner}-token"}
    async with (
        httpx2.AsyncClient(headers=headers, timeout=60) as http,
        Client(streamable_http_client(url, http_client=http), mode=mode, **options) as client,
    ):
        yield client


@pytest.mark.parametrize("anyio_backend", ["asyncio"])  # of the client; the server has a thread of its own
@pytest.mark.parametrize("mode", ["legacy", "auto"])
async def test_owner_is_asked_and_nobody_else_finds_the_session(mode):
    async def approve(_: Any, __: Any) -> ElicitResult:
        return ElicitResult(action="accept", content={"approve": True})

    with run_server(create_app(make_agent(approved_pay()), auth=TOKENS)) as url:
        async with connect(f"{url}/mcp", mode, elicitation_callback=approve) as client:
            paid = await client.call_tool("ask", {"message": "call pay"})
            assert paid.content[0].text == "paid, as you said: call pay"
            session = {"session_id": paid.structured_content["session_id"]}
            assert Owner("ann").prefix not in repr(paid)
            async with connect(f"{url}/mcp", mode, "bob") as other:
                stolen = await other.call_tool("ask", {**session, "message": "Hi"})
            assert stolen.structured_content["error"]["code"] == "no_session"
            assert not (await client.call_tool("ask", {**session, "message": "Hi"})).is_error


# The SDK's client leaves generators to the garbage collector, of which trio warns.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.slow
@pytest.mark.parametrize("anyio_backend", ["trio"])
@pytest.mark.parametrize("mode", ["legacy", "auto"])
async def test_form_is_answered_over_a_server_on_trio(mode):
    from hypercorn.trio import serve as serve_on_trio

    async def approve(_: Any, __: Any) -> ElicitResult:
        return ElicitResult(action="accept", content={"approve": True})

    config, stop = Config(), anyio.Event()
    config.bind = ["127.0.0.1:0"]
    app: Any = create_app(make_agent(approved_pay()), auth=TOKENS)
    async with anyio.create_task_group() as group:
        [url] = await group.start(partial(serve_on_trio, app, config, shutdown_trigger=stop.wait))
        async with connect(f"{url}/mcp", mode, elicitation_callback=approve) as client:
            paid = await client.call_tool("ask", {"message": "call pay"})
        assert paid.content[0].text == "paid, as you said: call pay"
        stop.set()


def lines_of(stream: Any) -> Iterator[str]:
    """Return the messages of the progress of a call, as they come."""
    for line in stream.iter_lines():
        if line.startswith("data: ") and (text := line.removeprefix("data: ")):
            message = json.loads(text).get("params", {}).get("message")
            if message is not None:
                yield message


def open_session(http: httpx2.Client) -> dict[str, str]:
    """Shake hands as clients did up to 2025, and return the headers of the session."""
    opened = http.post("/mcp", json=HELLO, headers=JSON)
    session = {**JSON, "Mcp-Session-Id": opened.headers["mcp-session-id"], "Mcp-Protocol-Version": "2025-06-18"}
    http.post("/mcp", json={"jsonrpc": "2.0", "method": "notifications/initialized"}, headers=session)
    return session


def call_request(http: httpx2.Client, mode: str, **arguments: Any) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the body and the headers of a call."""
    params = {"name": "ask", "arguments": arguments, "_meta": {"progressToken": 1}}
    body = {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": params}
    if mode == "legacy":
        return body, open_session(http)
    prefix = "io.modelcontextprotocol/"
    params["_meta"] |= {f"{prefix}protocolVersion": "2026-07-28", f"{prefix}clientCapabilities": {}}
    return body, {**JSON, "Mcp-Protocol-Version": "2026-07-28", "Mcp-Method": "tools/call", "Mcp-Name": "ask"}


@pytest.mark.parametrize(("query", "reason"), [("", "completed"), ("?on_disconnect=interrupt", "interrupted")])
@pytest.mark.parametrize("mode", ["legacy", "auto"])
def test_reply_outlives_its_connection_unless_told_otherwise(mode, query, reason, tmp_path):
    async def wait() -> str:
        """Wait until there is a file."""
        while not (tmp_path / "go").exists():  # noqa: ASYNC110  # the test is in another thread
            await anyio.sleep(0.02)
        return "done"

    with run_server(create_app(make_agent(wait))) as url, httpx2.Client(base_url=url, timeout=60) as http:
        body, headers = call_request(http, mode, message="call wait")
        with http.stream("POST", f"/mcp{query}", json=body, headers=headers) as stream:
            told = lines_of(stream)
            session_id = next(told).removeprefix("session_id ")
            while next(told) != "calls wait":
                pass
        if reason == "completed":
            (tmp_path / "go").touch()
        body, headers = call_request(http, "auto", session_id=session_id)
        result = http.post("/mcp", json=body, headers=headers).text
        assert f'"finished_reason":"{reason}"' in result


def test_refusals_are_those_of_the_other_routes():
    """Each with the status and the code, in the form of JSON-RPC."""
    limits = Limits(body_bytes=1_000, streams_per_owner=1)
    ann = {**JSON, "Authorization": "Bearer ann-token"}
    app = create_app(make_agent(), auth=TOKENS, limits=limits)
    with run_server(app) as url, httpx2.Client(base_url=url, timeout=60) as client:
        refused: list[tuple[dict[str, str], Any, tuple[int, str]]] = [
            (JSON, HELLO, (401, "unauthenticated")),
            ({**ann, "Origin": "https://evil.example"}, HELLO, (403, "origin")),
            (ann, {**HELLO, "padding": "x" * 1_000}, (413, "too_large")),
            (ann, '{"id": 1, "id": 2}', (400, "invalid_json")),
        ]
        for headers, body, expected in refused:
            text = body if isinstance(body, str) else json.dumps(body)
            response = client.post("/mcp", content=text, headers=headers)
            error = response.json()["error"]
            assert (response.status_code, error.get("data", error)["code"]) == expected
        assert (client.post("/mcp?agent=nobody", json=HELLO, headers=ann)).status_code == 404
        assert (client.post("/mcp?on_disconnect=x", json=HELLO, headers=ann)).status_code == 400
        opened = client.post("/mcp", json=HELLO, headers=ann)
        session = {"Mcp-Session-Id": opened.headers["mcp-session-id"], "Mcp-Protocol-Version": "2025-06-18"}
        listed = {"jsonrpc": "2.0", "id": 2, "method": "tools/list"}
        # The session of the protocol is its owner's too: an answer to a form must not come from another one.
        bob = {**ann, **session, "Authorization": "Bearer bob-token"}
        assert (client.post("/mcp", json=listed, headers=bob)).status_code == 404
        assert '"name":"ask"' in (client.post("/mcp", json=listed, headers={**ann, **session})).text
        assert (client.delete("/mcp", headers={**ann, **session})).status_code == 200
        assert (client.post("/mcp", json=listed, headers={**ann, **session})).status_code == 404


def test_owner_has_only_so_many_sessions_of_the_protocol():
    app = create_app(make_agent(), auth=TOKENS, limits=Limits(connections_per_owner=2))
    with run_server(app) as url, httpx2.Client(base_url=url, timeout=60) as client:
        ann, bob = ({**JSON, "Authorization": f"Bearer {name}-token"} for name in ("ann", "bob"))
        opened = [client.post("/mcp", json=HELLO, headers=ann) for _ in range(3)]
        assert [response.status_code for response in opened] == [200, 200, 429]
        assert opened[2].json()["error"]["data"]["code"] == "too_many_connections"
        assert (client.post("/mcp", json=HELLO, headers=bob)).status_code == 200
        end = {**ann, "Mcp-Session-Id": opened[0].headers["mcp-session-id"]}
        client.delete("/mcp", headers=end)
        assert (client.post("/mcp", json=HELLO, headers=ann)).status_code == 200


async def test_without_the_extra_the_route_names_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "mcp", None)
    for name in [name for name in sys.modules if name.startswith("agentrt.serving.mcp.")]:
        monkeypatch.delitem(sys.modules, name)
    async with serve(make_agent()) as client:
        response = await client.post("/mcp", json=HELLO, headers=JSON)
        assert response.status_code == 501
        assert 'pip install "agentrt[mcp]"' in response.json()["error"]["message"]


def test_place_of_a_call_is_free_when_its_answer_has_ended():
    app = create_app(make_agent(), auth=TOKENS, limits=Limits(streams_per_owner=1))
    options: Any = {"timeout": 60, "headers": {"Authorization": "Bearer ann-token"}}
    stream: Any = {"json": {"input": "Hi"}, "headers": {"Accept": "text/event-stream"}}
    with run_server(app) as url, httpx2.Client(base_url=url, **options) as one, httpx2.Client(**options) as other:
        body, session = call_request(one, "legacy", message="Hi")
        for _ in range(8):
            assert one.post("/mcp", json=body, headers=session).status_code == 200
            assert other.post(f"{url}/api/sessions/s1/replies", **stream).status_code == 200


def test_refused_message_leaves_no_session_and_names_none():
    agent, gate = halfway_agent()
    app = create_app(agent, auth=TOKENS, limits=Limits(queued_per_owner=1))
    options: Any = {"timeout": 60, "headers": {"Authorization": "Bearer ann-token"}}
    main: Any = {"url": "/api/sessions/main/replies", "json": {"input": "Hi"}}
    with run_server(app) as url, httpx2.Client(base_url=url, **options) as ann:
        with ann.stream("POST", **main, headers={"Accept": "text/event-stream"}) as running:
            lines = running.iter_lines()
            assert next(lines).startswith("id: ")  # it runs, so the next one is what waits
            assert ann.post(**main).status_code == 202
            body, headers = call_request(ann, "auto", message="Hi")
            refused = ann.post("/mcp", json=body, headers=headers).text
            message = {"messageId": "m1", "role": "ROLE_USER", "parts": [{"text": "Hi"}]}
            call = {"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": {"message": message}}
            assert "too_many_queued" in ann.post("/a2a", json=call, headers={"A2A-Version": "1.0"}).text
            gate.set()
            list(lines)
        assert '"code":"too_many_queued"' in refused
        assert '"limit":"queued_per_owner"' in refused
        assert "session_id" not in refused
        assert [session["session_id"] for session in ann.get("/api/sessions").json()["sessions"]] == ["main"]


def test_call_is_refused_over_too_many_bytes():
    app = create_app(make_agent(), auth=TOKENS, limits=Limits(bytes_per_owner=10_000))
    options: Any = {"timeout": 60, "headers": {"Authorization": "Bearer ann-token"}}
    with run_server(app) as url, httpx2.Client(base_url=url, **options) as ann:
        body, headers = call_request(ann, "auto", message="x" * 10_000)
        assert "You said" in ann.post("/mcp", json=body, headers=headers).text
        [session] = ann.get("/api/sessions").json()["sessions"]
        session_id = session["session_id"]
        for arguments in ({"message": "Hi"}, {"message": "Hi", "session_id": session_id}):
            body, headers = call_request(ann, "auto", **arguments)
            refused = ann.post("/mcp", json=body, headers=headers).text
            assert '"code":"too_many_bytes"' in refused
            assert ("session_id" in refused) == ("session_id" in arguments)
        body, headers = call_request(ann, "auto", session_id=session_id)
        assert "You said: xxx" in ann.post("/mcp", json=body, headers=headers).text
