"""The budget of a request: a body that costs more than its limits is refused at every route, and named."""

import asyncio
import gzip
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx2
import pytest

from agentrt import Agent
from agentrt.model import ScriptedChatModel
from agentrt.serving import Limits, create_app
from tests.runner.conftest import make_agent
from tests.serving.conftest import PATIENCE, open_socket, read_all, run_server

REPLIES = "/api/sessions/s1/replies"
ITEMS = 20
HEADERS = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream", "A2A-Version": "1.0"}


def user(content: Any, **fields: Any) -> dict[str, Any]:
    return {"role": "user", "content": content, **fields}


def parts(count: int) -> list[dict[str, Any]]:
    return [{"type": "text", "text": "a"}] * count


def rpc(method: str, params: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}


def a2a(**message: Any) -> dict[str, Any]:
    return rpc("SendMessage", {"message": {"messageId": "m", "role": "ROLE_USER", **message}})


@contextmanager
def small_server() -> Iterator[httpx2.Client]:
    agent = Agent("assistant", "", ScriptedChatModel(["Hello."] * 100))
    options: Any = {"timeout": PATIENCE, "headers": HEADERS}
    with run_server(create_app(agent, limits=Limits(items=ITEMS))) as url, httpx2.Client(base_url=url, **options) as it:
        yield it


TOO_MANY: list[tuple[str, Any]] = [
    (REPLIES, {"input": ["a"] * (ITEMS + 1)}),
    (REPLIES, {"input": [user(parts(2))] * 7}),
    (REPLIES, {"input": user(parts(ITEMS + 1))}),
    (REPLIES, {"answer": {"type": "USER_CONFIRM_RESULT", "reply_id": "r", "confirm_results": [{}] * (ITEMS + 1)}}),
    ("/v1/chat/completions", {"model": "assistant", "messages": [user("a")] * (ITEMS + 1)}),
    ("/v1/chat/completions", {"model": "assistant", "messages": [{"role": "assistant", "content": parts(ITEMS)}]}),
    ("/agui", {"threadId": "t", "runId": "r", "messages": [user("a", id="m")] * (ITEMS + 1)}),
    ("/agui", {"threadId": "t", "runId": "r", "messages": [], "resume": [{}] * (ITEMS + 1)}),
    ("/a2a", a2a(parts=[{"text": "a"}] * (ITEMS + 1))),
    ("/mcp", rpc("tools/call", {"name": "assistant", "arguments": {"message": ["a"] * (ITEMS + 1)}})),
    ("/api/inputs", {"agent_id": "1", "agent_name": "a", "schema": None, "problems": ["a"] * (ITEMS + 1)}),
]
ROUTES = (REPLIES, "/v1/chat/completions", "/agui", "/a2a", "/mcp", "/api/inputs", "/api/sessions/s1/fork")


def limit_of(response: httpx2.Response) -> tuple[int, str]:
    """Return the status, and the limit in the error as the protocol of the route has it."""
    error = response.json()["error"]
    if response.request.url.path == "/a2a":
        [info] = error["data"]
        assert error["code"] == -32600
        return response.status_code, info["metadata"]["limit"]
    if response.request.url.path == "/mcp":
        assert error["code"] == -32000
        return response.status_code, error["data"]["limit"]
    if response.request.url.path.startswith("/v1"):
        assert error["type"] == "invalid_request_error"
    assert error["code"] == "too_large"
    assert repr(error["limit"]) in error["message"]
    return response.status_code, error["limit"]


def test_too_many_items_are_refused_at_every_route():
    with small_server() as client:
        for path, body in TOO_MANY:
            assert limit_of(client.post(path, json=body)) == (413, "items"), body


def test_data_and_unused_fields_are_not_items():
    bodies: list[tuple[str, Any]] = [
        (REPLIES, {"input": ["a"] * ITEMS}),
        ("/v1/chat/completions", {"model": "assistant", "messages": [user(parts(4))] * 4}),
        ("/agui", {"threadId": "t", "runId": "r", "messages": [user("a")], "tools": [{}] * 99, "state": [1] * 99}),
        ("/a2a", a2a(parts=[{"text": "a"}, {"data": {"rows": [[1]] * 99}}])),
    ]
    with small_server() as client:
        for path, body in bodies:
            response = client.post(path, json=body)
            assert response.status_code in (200, 202), response.text
            assert '"error":{' not in response.text


def test_deep_and_crowded_bodies_are_refused_at_every_route():
    refused = [
        ('{"a":' + "[" * 100 + "]" * 100 + "}", "depth"),
        ('{"a":' * 200, "depth"),
        ("[" * 100_000, "values"),
        ('{"a":[' + "0," * 20 * ITEMS + "0]}", "values"),
        ("[" + '"",' * 200_000 + '""]', "values"),
    ]
    with small_server() as client:
        for path in ROUTES:
            client.post(REPLIES, json={"input": "There is a session to fork."})
            for text, limit in refused:
                assert limit_of(client.post(path, content=text)) == (413, limit), path


def test_brackets_in_text_are_no_structure():
    with small_server() as client:
        for text in (
            json.dumps({"input": '"[' + "," * 60_000 + "[{" * 200}),
            json.dumps({"input": "\\" + "{" * 200}),
            '{"input": "' + '\\"' * 60_000 + '[[["}',
        ):
            assert client.post(REPLIES, content=text).status_code == 200


def test_packed_body_is_refused_at_every_route():
    packed = gzip.compress(json.dumps({"input": "a" * 10_000_000}).encode())
    with small_server() as client:
        client.post(REPLIES, json={"input": "There is a session to fork."})
        for path in ROUTES:
            response = client.post(path, content=packed, headers={"Content-Encoding": "gzip"})
            assert response.status_code == 415
            assert "Content-Encoding" in json.dumps(response.json())


def test_other_encodings_than_utf8_are_refused():
    with small_server() as client:
        for text in ('{"input": "a"}'.encode("utf-16"), b'{"input": "\xed\xa0\x80"}'):
            response = client.post(REPLIES, content=text)
            assert (response.status_code, response.json()["error"]["code"]) == (400, "invalid_json")


def test_slow_body_is_given_up():
    with run_server(create_app(make_agent(), limits=Limits(body_seconds=0.2))) as url:
        with open_socket(url, f"POST {REPLIES} HTTP/1.1") as client:
            client.sendall(b'Content-Type: application/json\r\nContent-Length: 100\r\n\r\n{"input"')
            response = read_all(client)
        assert response.startswith(b"HTTP/1.1 408 ")
        assert b'"too_slow"' in response
        assert b'"limit":"body_seconds"' in response


def test_large_body_is_refused_while_it_comes():
    with run_server(create_app(make_agent(), limits=Limits(body_bytes=1000))) as url:
        with open_socket(url, f"POST {REPLIES} HTTP/1.1") as client:
            # No length is told, and the end never comes.
            client.sendall(b"Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n")
            client.sendall(b"400\r\n" + b" " * 1024 + b"\r\n")
            response = read_all(client)
        assert response.startswith(b"HTTP/1.1 413 ")
        assert b'"limit":"body_bytes"' in response


class WatchedAgent(Agent):
    """Knows how many turns the event loop has taken when it is given an input, since `count_turns`."""

    def __init__(self, name: str) -> None:
        super().__init__(name, "", ScriptedChatModel(["Hello."] * 9))
        self.turns: list[int] = []  # one list for all of its conversations
        self.turns_at_input: dict[int, int] = {}

    def check_input(self, inputs: Any = None, **options: Any) -> Any:
        self.turns_at_input[len(inputs)] = self.turns[0]
        return super().check_input(inputs, **options)

    def count_turns(self) -> None:
        self.turns.append(0)
        self._tick()

    def _tick(self) -> None:
        self.turns[0] += 1
        if self.turns[0] < 10_000:
            asyncio.get_running_loop().call_soon(self._tick)


def counted_from_the_body(app: Any, agent: WatchedAgent) -> Any:
    """Return the application, with turns counted from the moment at which a body has come."""

    async def counting_app(scope: Any, receive: Any, send: Any) -> None:
        async def counting_receive() -> Any:
            message = await receive()
            if message["type"] == "http.request" and not message.get("more_body") and not agent.turns:
                agent.count_turns()
            return message

        await app(scope, counting_receive, send)

    return counting_app


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (REPLIES, {"input": ["a"] * 1_000}),
        ("/v1/chat/completions", {"model": "assistant", "messages": [user("a")] * 1_000}),
        ("/agui", {"threadId": "t", "runId": "r", "messages": [user("a", id=str(number)) for number in range(1_000)]}),
    ],
)
def test_messages_are_read_50_in_a_turn_of_the_loop(path, body):
    agent = WatchedAgent("assistant")
    app = counted_from_the_body(create_app(agent), agent)
    with run_server(app) as url, httpx2.Client(base_url=url, timeout=PATIENCE) as client:
        assert client.post(path, json=body).status_code in (200, 202)
    assert agent.turns_at_input[1_000] >= 1_000 / 50
