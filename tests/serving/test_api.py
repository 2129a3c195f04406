"""The routes: what a client gets from them, and what bad input gets."""

import json
import os
from pathlib import Path
from typing import Any

import anyio
import pytest

from agentrt import Agent, AgentState
from agentrt.errors import ConfigError, SessionIOError
from agentrt.message import TextBlock, ToolCallBlock
from agentrt.middleware import UsageMiddleware
from agentrt.model import ChatResponse, ChatUsage, ScriptedChatModel
from agentrt.serving import BearerTokens, Owner, create_app
from agentrt.state import FileStateStore, InMemoryStateStore
from agentrt.state.file import hash_name
from agentrt.types import STRUCTURED_OUTPUT
from tests.runner.conftest import approved_pay, make_agent
from tests.serving.conftest import open_client, read_stream, rebuild, serve

ANN = {"Authorization": "Bearer ann-token"}
BOB = {"Authorization": "Bearer bob-token"}
OWNERS = BearerTokens({"ann-token": "ann", "bob-token": "bob"})
SSE = {"Accept": "text/event-stream"}
REPLIES = "/api/sessions/s1/replies"


def code_of(response: Any) -> tuple[int, str]:
    return response.status_code, response.json()["error"]["code"]


async def test_reply_is_followed_and_repeated_by_its_key():
    async with serve(make_agent()) as client:
        key = {"Idempotency-Key": "k1"}
        begun = await client.post("/api/sessions/ann%2F42/replies", json={"input": "Hi"}, headers=key)
        assert (begun.status_code, begun.json()["reply_id"]) == (202, "k1")
        events = read_stream((await client.get(begun.json()["events"])).text)
        assert events[-1] == ("done", {"reply_id": "k1", "status": "completed"})
        assert [int(name) for name, _ in events[:-1]] == [data["seq"] for _, data in events[:-1]]
        again = await client.post("/api/sessions/ann%2F42/replies", json={"input": "Hi"}, headers={**key, **SSE})
        assert read_stream(again.text) == events
        session = (await client.get("/api/sessions/ann%2F42")).json()
        assert len(session["messages"]) == 2
        assert rebuild(events).get_text_content() == session["messages"][1]["content"][0]["text"] == "You said: Hi"
        other = await client.post("/api/sessions/ann%2F42/replies", json={"input": "Ho"}, headers=key)
        assert code_of(other) == (409, "conflict")


async def test_a_typed_answer_is_in_the_end_of_the_reply():
    schema = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    form = {"type": "json_schema", "json_schema": {"name": "place", "schema": schema}}
    model = ScriptedChatModel([[ToolCallBlock("c1", STRUCTURED_OUTPUT, '{"city": "Oslo"}')]])
    async with serve(Agent("weather", "", model)) as client:
        body = {"input": "Where is it cold?", "response_format": form}
        events = read_stream((await client.post(REPLIES, json=body, headers=SSE)).text)
        assert events[-2][1]["structured_output"] == {"city": "Oslo"}
        refused = await client.post(REPLIES, json={"answer": {}, "response_format": form})
        assert code_of(refused) == (400, "invalid_body")


async def test_a_request_opens_the_files_of_its_session_alone(tmp_path, monkeypatch):
    class Store(FileStateStore):
        async def expire(self) -> int:
            removed = await super().expire()
            is_expired.set()
            return removed

    is_expired, opened, open_file = anyio.Event(), set[Path](), os.open
    store = Store(tmp_path)
    for number in range(20):
        await store.save(AgentState(session_id=str(number)))
    async with serve(make_agent(), store=store) as client:
        # What opens all of them when the application starts has ended then.
        await client.post("/api/sessions/8/replies", json={"input": "Hi"}, headers=SSE)
        await is_expired.wait()
        monkeypatch.setattr(os, "open", lambda path, *options: opened.add(Path(path)) or open_file(path, *options))
        for path in ("/api/sessions/7", "/readyz"):
            assert (await client.get(path)).status_code == 200
        begun = await client.post("/api/sessions/7/replies", json={"input": "Hi"}, headers=SSE)
        assert read_stream(begun.text)[-1][1]["status"] == "completed"
    names = {path.stem for path in opened if path.suffix == ".state"}
    assert names == {hash_name("7"), hash_name("readyz")}


async def test_stream_continues_after_the_last_event_id():
    async with serve(make_agent()) as client:
        whole = read_stream((await client.post(REPLIES, json={"input": "Hi"}, headers=SSE)).text)
        reply_id = whole[-1][1]["reply_id"]
        for number, _ in [("0", None), *whole[:-1]]:
            rest = await client.get(f"/api/replies/{reply_id}/events", headers={"Last-Event-ID": number})
            assert read_stream(rest.text) == [
                event for event in whole if event[0] == "done" or int(event[0]) > int(number)
            ]
        for wrong in ("x", "-1", "1.5", "99999", "9" * 30, "²"):
            bad = await client.get(f"/api/replies/{reply_id}/events", headers={"Last-Event-ID": wrong.encode()})
            assert code_of(bad) == (400, "last_event_id")


async def test_contrary_answers_at_once_are_one_and_a_conflict():
    async with serve(make_agent(approved_pay())) as client:
        asked = read_stream((await client.post(REPLIES, json={"input": "call pay"}, headers=SSE)).text)
        reply_id, call = asked[-1][1]["reply_id"], asked[-2][1]["tool_calls"][0]["id"]
        given: list[int] = []

        async def answer(is_approved: bool) -> None:
            body = {"answer": {"reply_id": reply_id, "calls": {call: is_approved}}}
            given.append((await client.post(REPLIES, json=body)).status_code)

        async with anyio.create_task_group() as group:
            for is_approved in (True, False):
                group.start_soon(answer, is_approved)
        assert sorted(given) == [202, 409]


async def test_number_beyond_the_end_is_refused_before_anything_begins():
    async with serve(make_agent()) as client:
        late = {**SSE, "Last-Event-ID": "999"}
        assert code_of(await client.post(REPLIES, json={"input": "Hi"}, headers=late)) == (400, "last_event_id")
        assert (await client.get("/api/sessions")).json()["sessions"] == []
        key = {**SSE, "Idempotency-Key": "k1"}
        whole = read_stream((await client.post(REPLIES, json={"input": "Hi"}, headers=key)).text)
        rest = await client.post(REPLIES, json={"input": "Hi"}, headers={**key, "Last-Event-ID": whole[1][0]})
        assert read_stream(rest.text) == whole[2:]
        refused = await client.post(REPLIES, json={"input": "Hi"}, headers={**key, **late})
        assert code_of(refused) == (400, "last_event_id")


async def test_session_is_not_named_like_a_folder():
    async with serve(make_agent()) as client:
        for name in ("%2E", "%2E%2E", "a/%2E%2E/b"):
            begun = await client.post(f"/api/sessions/{name}/replies", json={"input": "Hi"})
            assert code_of(begun) == (400, "session_id")
        assert (await client.post("/api/sessions/a..b/replies", json={"input": "Hi"})).status_code == 202


async def test_store_that_fails_in_its_own_words_is_away():
    class Away(InMemoryStateStore):
        async def list(self, *_: Any, **options: Any) -> Any:
            raise ConnectionError("password is hunter2")

        describe = list

    async with serve(make_agent(), store=Away()) as client:
        for method, path in (("GET", "/api/sessions"), ("GET", "/api/sessions/s1"), ("DELETE", "/api/sessions/s1")):
            response = await client.request(method, path)
            assert code_of(response) == (503, "store")
            assert "hunter2" not in response.text


async def test_failed_store_is_told_in_the_form_of_each_protocol(caplog):
    class Away(InMemoryStateStore):
        async def describe(self, session_id: str) -> Any:
            raise SessionIOError("password is hunter2")

    says = {"role": "user", "content": "Hi"}
    message = {"messageId": "m1", "contextId": "s1", "role": "ROLE_USER", "parts": [{"text": "Hi"}]}
    async with serve(make_agent(), store=Away()) as client:
        chat = {"model": "assistant", "session_id": "s1", "messages": [says]}
        openai = await client.post("/v1/chat/completions", json=chat)
        assert openai.json()["error"]["type"] == "server_error"
        call = {"jsonrpc": "2.0", "id": 7, "method": "SendMessage", "params": {"message": message}}
        a2a = await client.post("/a2a", json=call, headers={"A2A-Version": "1.0"})
        assert a2a.json()["jsonrpc"] == "2.0"
        assert a2a.json()["error"]["data"][0]["metadata"] == {"code": "store"}
        agui = await client.post("/agui", json={"threadId": "s1", "runId": "r1", "messages": [{"id": "m1", **says}]})
        assert code_of(agui) == (503, "store")
        for response in (openai, a2a, agui):
            assert (response.status_code, response.headers["retry-after"]) == (503, "1")
            assert "hunter2" not in response.text
    assert "hunter2" not in caplog.text


async def test_damaged_session_is_told_and_can_be_deleted(tmp_path, caplog):
    store = FileStateStore(tmp_path)
    await store.save(AgentState(session_id=Owner("ann").session_id("s1")))
    [path] = tmp_path.glob("*.state")
    path.write_text("damaged")
    async with serve(make_agent(), store=store, auth=OWNERS) as client:
        for method, place in (("GET", "/api/sessions/s1"), ("POST", REPLIES), ("POST", "/api/sessions/s1/fork")):
            options: dict[str, Any] = {} if method == "GET" else {"json": {"input": "Hi"} if place == REPLIES else {}}
            refused = await client.request(method, place, headers=ANN, **options)
            assert code_of(refused) == (500, "unreadable")
            assert str(tmp_path) not in refused.text
        assert str(path) in caplog.text
        assert code_of(await client.delete("/api/sessions/s1", headers=BOB)) == (404, "no_session")
        assert (await client.delete("/api/sessions/s1", headers=ANN)).status_code == 204
        begun = await client.post(REPLIES, json={"input": "Hi"}, headers={**ANN, **SSE})
        assert read_stream(begun.text)[-1][1]["status"] == "completed"


async def test_question_is_answered_once_and_by_what_it_asks():
    async with serve(make_agent(approved_pay())) as client:
        asked = read_stream((await client.post(REPLIES, json={"input": "call pay"}, headers=SSE)).text)
        (_, question), (_, done) = asked[-2:]
        assert (question["type"], done["status"]) == ("REQUIRE_USER_CONFIRM", "waiting")
        [waiting] = (await client.get("/api/waiting")).json()["waiting"]
        assert (waiting["session_id"], waiting["question"]) == ("s1", question)
        pending = await client.post(REPLIES, json={"input": "And?"})
        assert code_of(pending) == (409, "pending")
        assert pending.json()["error"]["waiting"] == question
        call, reply_id = question["tool_calls"][0], question["reply_id"]
        forged = {**call, "input": '{"amount": 1000000}'}
        wrong = [
            ({"reply_id": reply_id, "calls": {"other": True}}, (409, "unknown_call")),
            ({"reply_id": "other", "calls": {call["id"]: True}}, (409, "mismatch")),
            ({"reply_id": reply_id, "calls": {call["id"]: "yes"}}, (400, "invalid_answer")),
            ({"type": "REPLY_END", "reply_id": reply_id}, (400, "invalid_answer")),
            ({"type": "USER_CONFIRM_RESULT", "reply_id": reply_id, "confirm_results": []}, (409, "invalid")),
            (confirm(reply_id, {**forged, "name": "other"}), (409, "mismatch")),
        ]
        for answer, expected in wrong:
            assert code_of(await client.post(REPLIES, json={"answer": answer})) == expected
        assert (await client.get("/api/waiting")).json()["waiting"][0]["question"] == question
        answer = {"reply_id": reply_id, "calls": {call["id"]: True}}
        rest = read_stream((await client.post(REPLIES, json={"answer": answer}, headers=SSE)).text)
        assert rebuild(asked + rest).get_text_content() == "paid, as you said: call pay"
        assert rest[-1][1]["status"] == "completed"
        late = await client.post(REPLIES, json={"answer": {"reply_id": reply_id, "calls": {call["id"]: False}}})
        assert code_of(late) == (409, "not_waiting")


def confirm(reply_id: str, call: dict[str, Any]) -> dict[str, Any]:
    results = [{"confirmed": True, "tool_call": call}]
    return {"type": "USER_CONFIRM_RESULT", "reply_id": reply_id, "confirm_results": results}


async def test_other_owners_sessions_and_replies_are_not_there():
    async with serve(make_agent(approved_pay()), auth=OWNERS) as client:
        begun = await client.post(REPLIES, json={"input": "call pay"}, headers=ANN)
        events, reply_id = begun.json()["events"], begun.json()["reply_id"]
        assert read_stream((await client.get(events, headers=ANN)).text)[-1][1]["status"] == "waiting"
        missing = [
            await client.get("/api/sessions/s1", headers=BOB),
            await client.delete("/api/sessions/s1", headers=BOB),
            await client.post("/api/sessions/s1/fork", json={}, headers=BOB),
            await client.post(REPLIES, json={"answer": {"reply_id": reply_id, "calls": {"1": True}}}, headers=BOB),
            await client.get(events, headers=BOB),
            await client.get(f"/api/replies/{reply_id}/events", headers=BOB),
            await client.post(f"/api/replies/{reply_id}/interrupt", headers=BOB),
        ]
        assert [response.status_code for response in missing] == [404] * len(missing)
        absent = await client.get("/api/sessions/s2", headers=BOB)
        assert missing[0].json() == absent.json()
        assert (await client.get("/api/sessions", headers=BOB)).json()["sessions"] == []
        assert (await client.get("/api/waiting", headers=BOB)).json()["waiting"] == []
        assert len((await client.get("/api/waiting", headers=ANN)).json()["waiting"]) == 1
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "ann-token"}):
            assert code_of(await client.get("/api/sessions", headers=headers)) == (401, "unauthenticated")
        assert (await client.get("/healthz")).status_code == (await client.get("/readyz")).status_code == 200


async def test_session_is_listed_read_forked_and_deleted():
    async with serve(make_agent()) as client:
        await client.post(REPLIES, json={"input": "Hi"}, headers=SSE)
        [listed] = (await client.get("/api/sessions")).json()["sessions"]
        assert (listed["session_id"], listed["status"], listed["messages"]) == ("s1", "idle", 2)
        read = await client.get("/api/sessions/s1")
        unchanged = await client.get("/api/sessions/s1", headers={"If-None-Match": read.headers["etag"]})
        assert (unchanged.status_code, unchanged.content) == (304, b"")
        fork = await client.post("/api/sessions/s1/fork", json={"session_id": "s2", "messages": 1})
        assert (fork.status_code, fork.json()["messages"]) == (201, 1)
        again = await client.post("/api/sessions/s1/fork", json={"session_id": "s2"})
        assert code_of(again) == (409, "exists")
        assert code_of(await client.post("/api/sessions/s1/fork", json={"messages": 3})) == (400, "invalid_body")
        assert (await client.delete("/api/sessions/s1")).status_code == 204
        assert code_of(await client.get("/api/sessions/s1")) == (404, "no_session")
        assert [info["session_id"] for info in (await client.get("/api/sessions")).json()["sessions"]] == ["s2"]


@pytest.mark.parametrize(
    ("body", "expected", "words"),
    [
        (b"{", (400, "invalid_json"), "not valid JSON"),
        (b'{"input": NaN}', (400, "invalid_json"), "not valid JSON"),
        (b'{"input": 1e999}', (400, "invalid_json"), "not valid JSON"),
        (b'{"input": "a", "input": "b"}', (400, "invalid_json"), "repeats a field"),
        (b'{"answer": {"reply_id": "r", "calls": {"1": false, "1": true}}}', (400, "invalid_json"), "repeats a field"),
        (b"[]", (400, "invalid_body"), "object"),
        (b'{"input": "a", "answer": {}}', (400, "invalid_body"), "not both"),
        (b'{"inputs": "a"}', (400, "invalid_body"), "'inputs'"),
        (b'{"input": " "}', (400, "invalid_input"), "'input.content'"),
        (b'{"input": ["a", 5]}', (400, "invalid_input"), "'input[1]'"),
        (b'{"input": []}', (400, "invalid_input"), "'input'"),
        (b'{"input": {"role": "system", "content": "a"}}', (400, "invalid_input"), "'input.role'"),
        (b'{"input": {"role": "user", "content": "a", "id": "x"}}', (400, "invalid_input"), "'id'"),
        (b'{"input": {"role": "user", "content": [{"type": "tool_call"}]}}', (400, "invalid_input"), "'input.content'"),
        (
            b'{"input": {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://["}}]}}',
            (400, "invalid_input"),
            "'input.content'",
        ),
        (b'{"answer": "yes"}', (400, "invalid_answer"), "'answer'"),
        (
            b'{"answer": {"type": "USER_CONFIRM_RESULT", "reply_id": "r", "confirm_results": [], "\\u0000": 1}}',
            (400, "invalid_answer"),
            "with all its fields",
        ),
    ],
)
async def test_bad_body_is_refused_and_named(body, expected, words):
    async with serve(make_agent()) as client:
        response = await client.post(REPLIES, content=body, headers={"Content-Type": "application/json"})
        assert code_of(response) == expected
        assert words in response.json()["error"]["message"]
        assert (await client.get("/api/sessions")).json()["sessions"] == []


async def test_hostile_requests_are_refused():
    async with serve(make_agent()) as client:
        refused = [
            (await client.get("/api/sessions", headers={"Host": "evil.example"}), (403, "host")),
            (await client.get("/api/sessions", headers={"Host": "localhost.evil.example"}), (403, "host")),
            (await client.get("/api/sessions", headers={"Host": "a b"}), (400, "host")),
            (await client.get("/api/sessions", headers={"Origin": "https://evil.example"}), (403, "origin")),
            (await client.post(REPLIES, json={"input": "Hi"}, headers={"Origin": "null"}), (403, "origin")),
            (await client.post(REPLIES, content=b'{"input": "Hi"}'), (415, "content_type")),
            (
                await client.post(REPLIES, json={"input": "Hi"}, headers={"Idempotency-Key": "a b"}),
                (400, "idempotency_key"),
            ),
            (await client.post("/api/sessions/a%1Bb/replies", json={"input": "Hi"}), (400, "session_id")),
            (await client.get("/api/replies/..%2Fx/events"), (404, "not_found")),
            (await client.get("/api/replies/nothing/events"), (404, "no_reply")),
            (await client.get("/nothing"), (404, "not_found")),
            (await client.put("/api/sessions"), (405, "method")),
        ]
        assert [code_of(response) for response, _ in refused] == [expected for _, expected in refused]
        assert "access-control-allow-origin" not in refused[3][0].headers
        own = await client.get("/api/sessions", headers={"Origin": "http://localhost"})
        assert own.status_code == 200
        # A browser takes none of it for a page.
        stream = await client.post(REPLIES, json={"input": "<b>Hi</b>"}, headers=SSE)
        answers = [own, stream, *(response for response, _ in refused)]
        assert {answer.headers.get("x-content-type-options") for answer in answers} == {"nosniff"}


async def test_origin_that_is_allowed_may_read():
    app = create_app(make_agent(), allow_origins=["https://chat.example"])
    async with open_client(app) as client:
        origin = {"Origin": "https://chat.example"}
        asked = {**origin, "Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "idempotency-key"}
        assert (await client.options(REPLIES, headers=asked)).status_code == 200
        response = await client.get("/api/sessions", headers=origin)
        assert response.headers["access-control-allow-origin"] == "https://chat.example"


async def test_words_of_an_exception_do_not_leave(caplog):
    class BrokenStore(InMemoryStateStore):
        async def load(self, session_id: str) -> Any:
            raise ValueError("password hunter2")

    model = ScriptedChatModel([RuntimeError("password hunter2")])
    async with serve(Agent("assistant", "", model)) as client:
        failed = await client.post(REPLIES, json={"input": "Hi"}, headers=SSE)
        assert read_stream(failed.text)[-1][1]["status"] == "error"
        session = await client.get("/api/sessions/s1")
        assert "hunter2" not in failed.text + session.text
    store = BrokenStore()
    await store.save(AgentState(session_id="s1"))
    async with serve(Agent("assistant", "", model), store=store) as client:
        response = await client.get("/api/sessions/s1")
        assert code_of(response) == (500, "internal")
        assert "hunter2" not in response.text
    assert "hunter2" not in caplog.text


async def test_interrupt_ends_a_reply_that_waits():
    async with serve(make_agent(approved_pay())) as client:
        asked = read_stream((await client.post(REPLIES, json={"input": "call pay"}, headers=SSE)).text)
        reply_id = asked[-1][1]["reply_id"]
        ended = await client.post(f"/api/replies/{reply_id}/interrupt")
        assert ended.json() == {"reply_id": reply_id, "interrupted": True}
        rest = read_stream((await client.get(f"/api/replies/{reply_id}/events?after={asked[-2][0]}")).text)
        assert rest[-1][1]["status"] == "interrupted"


async def test_chains_are_shown():
    async with serve([make_agent(), Agent("other", "", ScriptedChatModel([]))]) as client:
        shown = (await client.get("/api/chains?agent=other")).json()
        assert shown["agents"] == ["assistant", "other"]
        assert "other" in json.dumps(shown["chains"])
        assert code_of(await client.get("/api/chains?agent=third")) == (404, "no_agent")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"allow_origins": ["*"]}, "'\\*'"),
        ({"allow_origins": "https://chat.example"}, "must be a list"),
        ({"auth": {"token": "ann"}}, "BearerTokens"),
        ({"limits": {}}, "must be Limits"),
    ],
)
def test_application_is_checked_when_it_is_made(options, words):
    with pytest.raises(ConfigError, match=words):
        create_app(make_agent(), **options)


@pytest.mark.parametrize(("layers", "cost"), [([], None), ([UsageMiddleware({"scripted": (1e6, 0)})], 7.0)])
async def test_session_has_its_cost_where_a_layer_knows_it(layers, cost):
    model = ScriptedChatModel([ChatResponse([TextBlock("Hi.")], usage=ChatUsage(7, 5))])
    async with serve(Agent("a", "You answer.", model, middlewares=layers)) as client:
        await client.post("/api/sessions/ann/replies", json={"input": "Hi"}, headers=SSE)
        assert (await client.get("/api/sessions/ann")).json()["cost"] == cost
