"""Owners of one server, over sockets: each has session ids of its own, and takes nobody's place."""

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest

from agentrt import Agent, AgentState
from agentrt.errors import ConfigError
from agentrt.message import ToolCallBlock
from agentrt.model import ScriptedChatModel
from agentrt.runner import Runner
from agentrt.serving import BearerTokens, Limits, RemoteUserInput, create_app
from agentrt.serving.owners.owner import Owner
from agentrt.state import InMemoryStateStore, SQLiteStore
from tests.runner.conftest import approved_pay, make_agent
from tests.serving.conftest import PATIENCE, halfway_agent, read_stream, run_server, serve

TOKENS = BearerTokens({"ann-token": "ann", "bob-token": "bob"})
SSE = {"Accept": "text/event-stream"}
MAIN = "/api/sessions/main/replies"


class Client(httpx2.Client):
    """A client of one owner, which no answer shows a stored id."""

    def __init__(self, url: str, name: str) -> None:
        super().__init__(base_url=url, headers={"Authorization": f"Bearer {name}-token"}, timeout=PATIENCE)

    def send(self, *args: Any, **options: Any) -> httpx2.Response:
        response = super().send(*args, **options)
        if not options.get("stream"):
            shown = f"{response.headers} {response.text}"
            assert not any(Owner(name).prefix in shown for name in ("ann", "bob"))
        return response


@contextmanager
def serve_owners(agent: Agent, path: Path | None = None, **options: Any) -> Iterator[tuple[Client, Client]]:
    if path is not None:
        options["store"] = SQLiteStore(path, durability="process")
    with (
        run_server(create_app(agent, auth=TOKENS, **options)) as url,
        Client(url, "ann") as ann,
        Client(url, "bob") as bob,
    ):
        yield ann, bob


def save(path: Path, *states: AgentState) -> None:
    async def save_all() -> None:
        async with SQLiteStore(path, durability="process") as store:
            for state in states:
                await store.save(state)

    anyio.run(save_all)


def stored(path: Path) -> dict[str, int]:
    """Return the numbers of messages by the stored ids."""

    async def read() -> dict[str, int]:
        async with SQLiteStore(path) as store:
            return {info.session_id: info.messages for info in (await store.list()).sessions}

    return anyio.run(read)


def code_of(response: httpx2.Response) -> tuple[int, str]:
    return response.status_code, response.json()["error"]["code"]


def wait_until(holds: Callable[[], bool], patience: float = PATIENCE) -> None:
    until = time.monotonic() + patience
    while not holds():
        assert time.monotonic() < until
        time.sleep(0.02)


def a2a(method: str, **params: Any) -> dict[str, Any]:
    return {
        "url": "/a2a",
        "json": {"jsonrpc": "2.0", "id": 1, "method": method, "params": params},
        "headers": {"A2A-Version": "1.0"},
    }


def requests_about_main() -> Iterator[dict[str, Any]]:
    """Each begins a reply in the session "main", by one protocol after the other."""
    yield {"url": MAIN, "json": {"input": "help"}, "headers": SSE}
    says = [{"role": "user", "content": "Hi"}]
    yield {"url": "/v1/chat/completions", "json": {"model": "assistant", "session_id": "main", "messages": says}}
    yield {"url": "/agui", "json": {"threadId": "main", "runId": "r1", "messages": [{"id": "m1", **says[0]}]}}
    message = {"messageId": "m2", "contextId": "main", "role": "ROLE_USER", "parts": [{"text": "Hi"}]}
    yield a2a("SendMessage", message=message)


def delegating_agent() -> Agent:
    """Return an agent that asks another one where the user says "help"."""

    def answer(messages: Any, _: Any) -> Any:
        is_asked = messages[-1].role == "user" and messages[-1].get_text_content() == "help"
        return [ToolCallBlock("1", "helper", '{"query": "Help."}')] if is_asked else "Hello."

    helper = Agent("helper", "", ScriptedChatModel(["I help."] * 9, stream=True))
    return make_agent(helper.as_tool("Helps."), model=ScriptedChatModel([answer] * 99, stream=True))


def test_two_owners_have_one_id_on_all_routes_and_after_restarts(tmp_path):
    path = tmp_path / "agent.db"
    for restart in (1, 2):
        with serve_owners(delegating_agent(), path) as clients:
            for client in clients:
                for request in requests_about_main():
                    body = {**request["json"], "runId": f"r{restart}"} if request["url"] == "/agui" else request["json"]
                    text = json.dumps(body).replace('"m2"', f'"m2-{restart}"').replace('"m1"', f'"m1-{restart}"')
                    response = client.post(**{**request, "json": json.loads(text)})
                    assert response.status_code == 200, response.text
                    if request["url"] == MAIN:
                        events = [data for _, data in read_stream(response.text)]
                        named = [
                            data["session_id"] for data in events if data.get("type") in ("REPLY_START", "REPLY_END")
                        ]
                        assert named[0] == named[-1] == "main"
                        [child] = {data["child_session_id"] for data in events if "child_session_id" in data}
                        assert child.startswith("main.")
                [listed] = client.get("/api/sessions").json()["sessions"]
                assert (listed["session_id"], listed["messages"]) == ("main", 8 * restart)
                assert client.get("/api/sessions/main").json()["session_id"] == "main"
    assert stored(path) == {Owner(name).session_id("main"): 16 for name in ("ann", "bob")}


def test_ids_are_public_in_pages_forks_and_places_of_events(tmp_path):
    path = tmp_path / "agent.db"
    save(path, *(AgentState(session_id=name, labels={"owner": "ann"}) for name in ("a/old", "b/old", "c")))
    with serve_owners(make_agent(), path) as (ann, bob):
        for name in ("a/1", "a/2", "a/3", "b/1"):
            begun = ann.post(f"/api/sessions/{name}/replies", json={"input": "Hi"}).json()
            assert begun["session_id"] == name
            assert read_stream(ann.get(begun["events"]).text)[-1][1]["status"] == "completed"
        forked = ann.post("/api/sessions/a/1/fork", json={"session_id": "a/4"})
        assert (forked.status_code, forked.json()["session_id"]) == (201, "a/4")
        assert code_of(ann.post("/api/sessions/a/1/fork", json={"session_id": "a/old"})) == (409, "exists")
        assert ann.post("/api/sessions/a/1/fork", json={}).json()["session_id"]
        for limit in (1, 2, 100):
            found: list[str] = []
            cursor = ""
            while cursor is not None:
                page = ann.get("/api/sessions", params={"prefix": "a/", "limit": limit, "cursor": cursor}).json()
                found += [info["session_id"] for info in page["sessions"]]
                cursor = page["cursor"]
            assert found == ["a/1", "a/2", "a/3", "a/4", "a/old"]
        assert len(ann.get("/api/sessions").json()["sessions"]) == 9
        assert bob.get("/api/sessions", params={"prefix": "a/"}).json()["sessions"] == []
        # The beginning of a digest is a prefix like any other.
        assert ann.get("/api/sessions", params={"prefix": Owner("ann").prefix[:6]}).json()["sessions"] == []
        assert code_of(ann.get("/api/sessions", params={"cursor": "main"})) == (400, "cursor")
        for _ in range(2):
            assert ann.delete("/api/sessions/a/1").status_code in (204, 404)
        longest = "x" * (500 - len(Owner("ann").prefix))
        assert ann.post(f"/api/sessions/{longest}/replies", json={"input": "Hi"}).status_code == 202
        assert code_of(ann.post(f"/api/sessions/{longest}x/replies", json={"input": "Hi"})) == (400, "session_id")


def test_session_of_before_keeps_its_id_for_its_owner(tmp_path):
    path = tmp_path / "agent.db"
    save(path, AgentState(session_id="main", labels={"owner": "ann"}))
    with serve_owners(make_agent(approved_pay()), path) as (ann, bob):
        for client in (ann, bob):
            asked = read_stream(client.post(MAIN, json={"input": "call pay"}, headers=SSE).text)
            assert asked[-1][1]["status"] == "waiting"
            [waiting] = client.get("/api/waiting").json()["waiting"]
            assert waiting["session_id"] == "main"
    # Both are answered by the next process.
    with serve_owners(make_agent(approved_pay()), path) as (ann, bob):
        for client in (ann, bob):
            [waiting] = client.get("/api/waiting").json()["waiting"]
            question = waiting["question"]
            results = [{"confirmed": True, "tool_call": call} for call in question["tool_calls"]]
            answer = {
                "type": "USER_CONFIRM_RESULT",
                "reply_id": question["reply_id"],
                "session_id": "main",
                "confirm_results": results,
            }
            answered = read_stream(client.post(MAIN, json={"answer": answer}, headers=SSE).text)
            assert answered[-1][1]["status"] == "completed"
    assert stored(path) == {"main": 2, Owner("bob").session_id("main"): 2}


def test_stored_id_of_another_owner_leads_nowhere(tmp_path):
    path = tmp_path / "agent.db"
    with serve_owners(make_agent(), path) as (ann, bob):
        assert bob.post(MAIN, json={"input": "Hi"}, headers={**SSE, "Idempotency-Key": "k1"}).status_code == 200
        assert ann.post("/api/sessions/mine/replies", json={"input": "Hi"}, headers=SSE).status_code == 200
        for stored_id in (Owner("bob").session_id("main"), Owner("ann").session_id("mine")):
            for response in (
                httpx2.Client.send(ann, ann.build_request("GET", f"/api/sessions/{stored_id}")),
                httpx2.Client.send(ann, ann.build_request("DELETE", f"/api/sessions/{stored_id}")),
                httpx2.Client.send(ann, ann.build_request("GET", f"/api/replies/k1/events?session={stored_id}")),
            ):
                assert code_of(response) == (404, "no_session")
        assert code_of(ann.get("/api/replies/k1/events")) == (404, "no_reply")
        # It is an id like any other, of a session that she begins.
        forged = Owner("bob").session_id("main")
        begun = httpx2.Client.send(
            ann, ann.build_request("POST", f"/api/sessions/{forged}/replies", json={"input": "Hi"})
        )
        assert begun.status_code == 202
        assert len(bob.get("/api/sessions/main").json()["messages"]) == 2
    assert Owner("ann").session_id(forged) in stored(path)


def test_digests_of_names_that_look_alike_differ():
    names = ["ann", "Ann", "ann ", "a", "b", "a.b", "é", "e\u0301"]
    assert len({Owner(name).prefix for name in names}) == len(names)
    assert Owner("a").session_id("b.c") != Owner("a.b").session_id("c")
    assert Owner(None).session_id("main") == "main"
    for wrong in ("", "x" * 501, 5, "a\0b", "\ud800"):
        with pytest.raises(ConfigError, match="an owner must be"):
            Owner(wrong)  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match="the owner of token 1 of BearerTokens must be"):
            BearerTokens({"token": wrong})  # type: ignore[dict-item]


def test_queue_of_an_owner_is_full_and_that_of_another_is_next(tmp_path):
    agent, gate = halfway_agent()
    store = SQLiteStore(tmp_path / "agent.db", durability="process")
    runner = Runner(agent, store, max_concurrency=1)
    with serve_owners(agent, runner=runner, limits=Limits(queued_per_owner=3)) as (ann, bob):
        running = ann.post("/api/sessions/a0/replies", json={"input": "Hi"}).json()
        wait_until(lambda: ann.get("/api/sessions/a0").json()["status"] == "running")
        queued = [ann.post(f"/api/sessions/a{number}/replies", json={"input": "Hi"}) for number in (1, 2, 3)]
        assert [response.status_code for response in queued] == [202] * 3
        chat = {"model": "assistant", "session_id": "a9", "messages": [{"role": "user", "content": "Hi"}]}
        for path, body in ((MAIN, {"input": "Hi"}), ("/v1/chat/completions", chat)):
            refused = ann.post(path, json=body)
            assert code_of(refused) == (429, "too_many_queued")
            assert int(refused.headers["retry-after"]) >= 1
        theirs = bob.post(MAIN, json={"input": "Hi"}).json()
        gate.set()
        ends = {
            client.get(begun["events"]).text
            and client.get(f"/api/sessions/{begun['session_id']}").json()["updated_at"]: (begun["session_id"])
            for client, begun in ((ann, running), (bob, theirs), *((ann, response.json()) for response in queued))
        }
    assert [ends[moment] for moment in sorted(ends)] == ["a0", "main", "a1", "a2", "a3"]


def open_half(client: Client, count: int) -> list[socket.socket]:
    """Send the head of a request, and a body that never comes whole."""
    host, port = str(client.base_url).removeprefix("http://").rstrip("/").split(":")
    lines = [
        f"POST {MAIN} HTTP/1.1",
        f"Host: {host}:{port}",
        f"Authorization: {client.headers['Authorization']}",
        "Content-Type: application/json",
        "Content-Length: 100",
    ]
    opened = []
    for _ in range(count):
        opened.append(socket.create_connection((host, int(port)), timeout=PATIENCE))
        opened[-1].sendall(("\r\n".join(lines) + '\r\n\r\n{"input"').encode())
    return opened


def is_refused(client: Client) -> bool:
    response = client.get("/api/sessions")
    assert response.status_code in (200, 429)
    if response.status_code == 429:
        assert code_of(response) == (429, "too_many_connections")
        assert response.json()["error"]["limit"] == "connections_per_owner"
        assert response.headers["retry-after"] == "1"
    return response.status_code == 429


def test_waits_bodies_and_streams_count_until_clients_leave():
    agent, gate = halfway_agent()
    limits = Limits(connections_per_owner=2, body_seconds=PATIENCE)
    with serve_owners(agent, limits=limits) as (ann, bob):
        asked = ann.post("/api/inputs", json={"agent_id": "1", "agent_name": "user"}).json()["input_id"]
        assert code_of(ann.post("/api/inputs", json={"agent_id": "2", "agent_name": "user"})) == (
            429,
            "too_many_inputs",
        )
        begun = ann.post(MAIN, json={"input": "Hi"}).json()
        with ann.stream("GET", begun["events"]), ann.stream("GET", begun["events"]):
            assert is_refused(ann)
            assert not is_refused(bob)
        wait_until(lambda: not is_refused(ann))
        bodies = open_half(ann, 2)
        wait_until(lambda: is_refused(ann))
        assert not is_refused(bob)
        for opened in bodies:
            opened.close()
        wait_until(lambda: not is_refused(ann))
        waits = open_waits(ann, asked, 2)
        wait_until(lambda: is_refused(ann))
        for opened in waits:
            opened.close()
        wait_until(lambda: not is_refused(ann), patience=15)  # before the waits would have ended by themselves
        # A question that is withdrawn gives its place back.
        assert ann.delete(f"/api/inputs/{asked}").status_code == 204
        assert ann.post("/api/inputs", json={"agent_id": "2", "agent_name": "user"}).status_code == 201
        gate.set()


def test_user_agent_without_a_place_asks_once_there_is_one():
    app = create_app(make_agent(), auth=TOKENS, limits=Limits(connections_per_owner=3))
    is_refused = threading.Event()

    async def noting_app(scope: Any, receive: Any, send: Any) -> None:
        async def note(message: Any) -> None:
            if message.get("status") == 429:
                is_refused.set()
            await send(message)

        await app(scope, receive, note)

    with run_server(noting_app) as url, Client(url, "ann") as ann, ThreadPoolExecutor(1) as pool:
        first = ann.post("/api/inputs", json={"agent_id": "1", "agent_name": "user"}).json()["input_id"]
        asking = pool.submit(anyio.run, partial(RemoteUserInput(url, token="ann-token"), "2", "other"))
        assert is_refused.wait(PATIENCE)
        ann.delete(f"/api/inputs/{first}")
        wait_until(lambda: asking.done() or ann.get("/api/inputs").json()["inputs"] != [])
        [question] = ann.get("/api/inputs").json()["inputs"]
        ann.post(f"/api/inputs/{question['input_id']}", json={"text": "Yes."})
        assert asking.result(PATIENCE).blocks_input[0].text == "Yes."


def open_waits(client: Client, input_id: str, count: int) -> list[socket.socket]:
    host, port = str(client.base_url).removeprefix("http://").rstrip("/").split(":")
    head = f"GET /api/inputs/{input_id}/answer?wait=25 HTTP/1.1\r\nHost: {host}:{port}\r\n"
    opened = []
    for _ in range(count):
        opened.append(socket.create_connection((host, int(port)), timeout=PATIENCE))
        opened[-1].sendall(f"{head}Authorization: {client.headers['Authorization']}\r\n\r\n".encode())
    return opened


def test_owner_has_only_so_many_sessions_after_a_restart_too(tmp_path):
    path, limits = tmp_path / "agent.db", Limits(sessions_per_owner=2)
    chat = {"model": "assistant", "messages": [{"role": "user", "content": "Hi"}]}
    with serve_owners(make_agent(), path, limits=limits) as (ann, _):
        for name in ("one", "two"):
            # What lasts for one answer gives its place back.
            assert ann.post("/v1/chat/completions", json=chat).status_code == 200
            assert ann.post(f"/api/sessions/{name}/replies", json={"input": "Hi"}, headers=SSE).status_code == 200
    with serve_owners(make_agent(), path, limits=limits) as (ann, bob):
        for request in ({"url": MAIN, "json": {"input": "Hi"}}, {"url": "/api/sessions/one/fork", "json": {}}):
            refused = ann.post(**request)
            assert code_of(refused) == (429, "too_many_sessions")
            assert refused.json()["error"]["limit"] == "sessions_per_owner"
        assert ann.post("/v1/chat/completions", json=chat).status_code == 429
        assert bob.post(MAIN, json={"input": "Hi"}).status_code == 202
        assert ann.post("/api/sessions/one/replies", json={"input": "Hi"}, headers=SSE).status_code == 200
        assert ann.delete("/api/sessions/one").status_code == 204
        assert ann.post(MAIN, json={"input": "Hi"}).status_code == 202


def test_owner_over_his_bytes_adds_nothing_until_he_deletes(tmp_path):
    path, limits = tmp_path / "agent.db", Limits(bytes_per_owner=40_000)
    key = {**SSE, "Idempotency-Key": "k1"}
    with serve_owners(make_agent(approved_pay()), path, limits=limits) as (ann, bob):
        assert ann.post("/api/sessions/asks/replies", json={"input": "call pay"}, headers=SSE).status_code == 200
        for name in ("one", "two"):
            said = {"input": "x" * 12_000}
            assert ann.post(f"/api/sessions/{name}/replies", json=said, headers=key).status_code == 200
            assert 24_000 < ann.get(f"/api/sessions/{name}").json()["size"] < 30_000  # the answer repeats it
        # As the requests were counted, without a look at the store for each.
        assert code_of(ann.post("/api/sessions/one/replies", json={"input": "Hi"})) == (429, "too_many_bytes")
    with serve_owners(make_agent(approved_pay()), path, limits=limits) as (ann, bob):
        for request in (*requests_about_main(), {"url": "/api/sessions/one/fork", "json": {}}):
            refused = ann.post(**request)
            assert (refused.status_code, int(refused.headers["retry-after"])) == (429, 60), refused.text
            assert "40,000 bytes" in refused.text
            assert '"limit":"bytes_per_owner"' in refused.text
        assert code_of(ann.post("/api/sessions/one/replies", json={"input": "Hi"})) == (429, "too_many_bytes")
        # A request that was sent twice has its reply, and a question is answered.
        assert ann.post("/api/sessions/one/replies", json=said, headers=key).status_code == 200
        [waiting] = ann.get("/api/waiting").json()["waiting"]
        question = waiting["question"]
        calls = {call["id"]: True for call in question["tool_calls"]}
        answer = {"reply_id": question["reply_id"], "calls": calls}
        answered = ann.post("/api/sessions/asks/replies", json={"answer": answer}, headers=SSE)
        assert read_stream(answered.text)[-1][1]["status"] == "completed"
        assert bob.post(MAIN, json={"input": "Hi"}, headers=SSE).status_code == 200
        assert ann.delete("/api/sessions/one").status_code == 204
        assert ann.post("/api/sessions/two/replies", json={"input": "y" * 12_000}, headers=SSE).status_code == 200
        assert ann.get("/api/sessions/two").json()["size"] > 40_000
        assert code_of(ann.post(MAIN, json={"input": "Hi"})) == (429, "too_many_bytes")
        assert ann.delete("/api/sessions/two").status_code == 204
        assert ann.post(MAIN, json={"input": "Hi"}, headers=SSE).status_code == 200


def test_forks_and_replies_count_as_soon_as_they_are_asked_for(tmp_path):
    limits = Limits(bytes_per_owner=40_000)
    agent = make_agent(model=ScriptedChatModel(["x" * 15_000] * 9))
    with serve_owners(agent, tmp_path / "agent.db", limits=limits) as (ann, _):
        assert ann.post(MAIN, json={"input": "Hi"}, headers=SSE).status_code == 200
        assert ann.post("/api/sessions/main/fork", json={"session_id": "fork"}).status_code == 201
        assert ann.post("/api/sessions/fork/replies", json={"input": "Hi"}, headers=SSE).status_code == 200
        assert code_of(ann.post("/api/sessions/fork/replies", json={"input": "Hi"})) == (429, "too_many_bytes")


async def test_forks_at_once_count_before_they_are_copied():
    class Store(InMemoryStateStore):
        async def fork(self, *args: Any, **options: Any) -> None:
            if is_copying.is_set():
                go.set()  # both are copied
            is_copying.set()
            await go.wait()
            await super().fork(*args, **options)

    is_copying, go = anyio.Event(), anyio.Event()
    statuses: list[int] = []
    agent = make_agent(model=ScriptedChatModel(["x" * 15_000]))

    async def fork(name: str) -> None:
        response = await ann.post("/api/sessions/main/fork", json={"session_id": name})
        statuses.append(response.status_code)

    async with serve(agent, store=Store(), auth=TOKENS, limits=Limits(bytes_per_owner=30_000)) as ann:
        ann.headers["Authorization"] = "Bearer ann-token"
        assert (await ann.post(MAIN, json={"input": "Hi"}, headers=SSE)).status_code == 200
        async with anyio.create_task_group() as group:
            group.start_soon(fork, "one")
            await is_copying.wait()
            await fork("two")
            go.set()
        assert statuses == [429, 201]
