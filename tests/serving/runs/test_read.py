"""Recorded runs over HTTP: found, read, followed and deleted, each by its owner."""

import json
from itertools import count
from typing import Any

import anyio
import pytest

from agentrt import AgentState
from agentrt.runs import RunRecorder
from agentrt.serving.owners.owner import Owner
from agentrt.serving.runs import run_page
from agentrt.state import InMemoryStateStore
from tests.runner.conftest import approved_pay
from tests.runner.conftest import make_agent as make_unrecorded
from tests.serving.conftest import halfway_agent, read_stream, serve
from tests.serving.runs.conftest import ANN, BOB, OWNERS, SSE, Shorten, ask, code_of, make_recorded

RUN = "/api/runs/main/r1"


def message_of(page: dict[str, Any], reference: str) -> Any:
    """Return a message of the page with its blocks, as a client does it."""
    value = page["contents"][reference]
    return {**value, "content": value.get("content") or [page["contents"][block] for block in value["blocks"]]}


def text_of(page: dict[str, Any], reference: str) -> str:
    content = message_of(page, reference)["content"]
    return content if isinstance(content, str) else "".join(block.get("text", "") for block in content)


async def test_a_page_has_all_that_a_run_page_needs():
    async with serve(make_recorded(Shorten())) as client:
        await ask(client, "find it")
        page = (await client.get(RUN)).json()
        listed = (await client.get("/api/runs")).json()
    [info] = listed["runs"]
    assert {name: page[name] for name in info} == info
    assert (info["title"], info["status"], info["tools"]) == ("find it", "completed", ["find"])
    assert (info["changed_by"], info["calls"], listed["cursor"]) == (["Shorten"], 2, None)
    assert [text_of(page, reference) for reference in page["inputs"]] == ["find it"]
    assert text_of(page, page["message"]).endswith("It is there.")
    assert [step["kind"] for step in page["steps"]] == ["model", "answer", "result", "model", "answer"]
    first, second = page["requests"]
    # The first two messages were sent before.
    assert (first["messages"]["keep"], second["messages"]["keep"]) == (0, 2)
    sent = first["messages"]["add"] + second["messages"]["add"]
    assert [message_of(page, reference)["role"] for reference in sent] == ["system", "user", "assistant"]
    [change] = second["changes"]
    results = [
        block["output"] if isinstance(block["output"], str) else block["output"][0]["text"]
        for side in ("before", "after")
        for block in message_of(page, change[side])["content"]
        if block["type"] == "tool_result"
    ]
    assert (change["layer"], results) == ("Shorten", ["found it", "found"])
    assert [tool["function"]["name"] for tool in page["contents"][first["tools"]]] == ["find", "helper"]
    assert page["contents"][first["answer"]]["content"][0]["name"] == "find"
    assert 0 <= first["at"] <= first["ended"]["at"] <= second["at"]
    assert {(layer["hook"], layer["layer"]) for layer in page["layer_calls"]} >= {("on_model_call", "Shorten")}
    assert "TOOL_RESULT_END" in {line["event"]["type"] for line in page["events"]}
    assert page["contents"][page["chains"]]
    assert page["gaps"] == page["children"] == []


async def test_a_page_has_the_runs_of_sub_agents():
    async with serve(make_recorded()) as client:
        await ask(client, "help me")
        page = (await client.get(RUN)).json()
        [child] = page["children"]
        assert (child["agent"], child["parent"]) == ("helper", ["main", "r1", "c1"])
        assert page["calls"] == 2 + child["calls"] == 4
        # A child is a run of its own too, and a list has those that somebody has started.
        own = (await client.get(f"/api/runs/{child['session_id']}/{child['reply_id']}")).json()
        assert own["requests"] == child["requests"]
        assert [run["agent"] for run in (await client.get("/api/runs")).json()["runs"]] == ["finder"]


async def test_a_value_too_large_for_a_page_is_its_size(monkeypatch):
    monkeypatch.setattr(run_page, "_MAX_VALUE_BYTES", 2_000)
    async with serve(make_recorded()) as client:
        await ask(client, f"find {'x' * 3_000}")
        page = (await client.get(RUN)).json()
        [reference] = page["inputs"]
        assert page["contents"][reference]["size"] > 3_000
        monkeypatch.setattr(run_page, "_MAX_PAGE_BYTES", 0)
        page = (await client.get(RUN)).json()
        assert all(set(value) == {"size"} for value in page["contents"].values())


async def test_a_run_without_content_has_its_numbers():
    async with serve(make_recorded(content=False)) as client:
        await ask(client, "help me")
        page = (await client.get(RUN)).json()
    assert (page["has_content"], page["title"], page["inputs"]) == (False, "", [])
    assert list(page["contents"]) == [page["chains"], *(child["chains"] for child in page["children"])]
    assert [request["count"] for request in page["requests"]] == [2, 3]
    assert page["calls"] == 4


async def test_runs_are_listed_by_what_they_are():
    async with serve(make_recorded(Shorten())) as client:
        for number, text in enumerate(("hello", "find it", "help me")):
            await ask(client, text, key=f"r{number}")
        begun = [run["begun_at"] for run in (await client.get("/api/runs")).json()["runs"]]
        cases: list[tuple[dict[str, Any], list[str]]] = [
            ({}, ["r2", "r1", "r0"]),
            ({"text": "HE"}, ["r2", "r0"]),
            ({"tool": "find"}, ["r1"]),
            ({"layer": "Shorten"}, ["r2", "r1"]),
            ({"agent": "finder", "status": "completed"}, ["r2", "r1", "r0"]),
            ({"status": "failed"}, []),
            ({"since": begun[0]}, ["r2"]),
            ({"since": "9999-12-31T00:00:00Z"}, []),
            ({"label": "plan:pro"}, []),
            ({"cursor": ""}, ["r2", "r1", "r0"]),
        ]
        for query, expected in cases:
            page = (await client.get("/api/runs", params=query)).json()
            assert [run["reply_id"] for run in page["runs"]] == expected, query
        for query in ({"limit": 1}, {"limit": 1, "layer": "Shorten"}):
            found, cursor = [], ""
            while cursor is not None:
                page = (await client.get("/api/runs", params={**query, "cursor": cursor})).json()
                assert len(page["runs"]) <= 1
                found += [run["reply_id"] for run in page["runs"]]
                cursor = page["cursor"]
            assert found == (["r2", "r1"] if "layer" in query else ["r2", "r1", "r0"])


@pytest.mark.parametrize(
    ("query", "code"),
    [
        ("limit=0", "limit"),
        ("limit=1001", "limit"),
        ("cursor=x", "cursor"),
        (f"cursor={'9' * 5000}", "cursor"),
        (f"cursor={2**63}", "cursor"),
        ("status=well", "status"),
        ("since=yesterday", "since"),
        ("label=pro", "label"),
        (f"label={'&label='.join('n:v' for _ in range(11))}", "label"),
        ("label=a%00:b", "label"),
        ("text=%00", "filter"),
        (f"tool={'x' * 501}", "filter"),
    ],
)
async def test_a_wrong_query_is_refused(query: str, code: str):
    async with serve(make_recorded()) as client:
        assert code_of(await client.get(f"/api/runs?{query}")) == (400, code)


async def test_no_run_is_where_none_was_recorded():
    async with serve(make_unrecorded(), store=InMemoryStateStore()) as client:
        await ask(client, "hello")
        assert (await client.get("/api/runs")).json() == {"runs": [], "cursor": None}
        hostile = ("main/r1", "%2e%2e/r1", "a%2F..%2Fb/r1", f"{'x' * 600}/r1", "main/%00", "main/%F0%9F%98%80", "/r1")
        for path in (*hostile, "main%0A/r1", "%27%3B--/r1"):
            for method, more in (("GET", ""), ("GET", "/lines"), ("DELETE", "")):
                response = await client.request(method, f"/api/runs/{path}{more}")
                assert response.status_code == 404, (path, response.text)


async def test_lines_are_read_on_after_a_number():
    async with serve(make_recorded()) as client:
        await ask(client, "find it")
        everything = (await client.get(f"{RUN}/lines")).json()
        lines = everything["lines"]
        assert everything["status"] == "completed"
        assert [line["n"] for line in lines] == list(range(1, len(lines) + 1))
        some = (await client.get(f"{RUN}/lines", params={"after": 3, "limit": 2})).json()["lines"]
        assert some == lines[3:5]
        stream = read_stream((await client.get(f"{RUN}/lines", headers={**SSE, "Last-Event-ID": "3"})).text)
        assert [data for _, data in stream[:-1]] == lines[3:]
        assert [int(name) for name, _ in stream[:-1]] == [line["n"] for line in lines[3:]]
        assert stream[-1] == ("done", {"status": "completed"})


async def test_a_record_is_followed_while_it_grows():
    store: Any = InMemoryStateStore()
    agent, gate = halfway_agent(middlewares=[RunRecorder(store)], state_store=store)
    async with serve(agent) as client, anyio.create_task_group() as group:
        response = await client.post(
            "/api/sessions/main/replies", json={"input": "Hi"}, headers={"Idempotency-Key": "r1"}
        )
        assert response.status_code == 202
        found: list[Any] = []
        for _ in count():
            found = (await client.get("/api/runs")).json()["runs"]
            if found and found[0]["lines"] > 4:
                break
            await anyio.sleep(0.01)
        assert found[0]["status"] == "running"
        assert code_of(await client.delete(RUN)) == (409, "running")
        before = (await client.get(f"{RUN}/lines")).json()["lines"]
        streams: list[Any] = []

        async def follow() -> None:
            response = await client.get(f"{RUN}/lines", headers={**SSE, "Last-Event-ID": str(len(before))})
            streams.append(read_stream(response.text))

        group.start_soon(follow)
        await client.get("/api/runs")  # the reader looks meanwhile
        gate.set()
    [stream] = streams
    assert stream[-1] == ("done", {"status": "completed"})
    numbers = [data["n"] for _, data in stream[:-1]]
    assert numbers == list(range(len(before) + 1, len(before) + len(numbers) + 1))
    assert stream[-2][1]["kind"] == "end"


async def test_a_waiting_run_ends_its_reader_who_comes_back():
    store: Any = InMemoryStateStore()
    agent = make_unrecorded(approved_pay(), middlewares=[RunRecorder(store)])
    async with serve(agent, store=store) as client:
        await ask(client, "call pay")
        first = read_stream((await client.get(f"{RUN}/lines", headers=SSE)).text)
        assert first[-1] == ("done", {"status": "waiting"})
        [waiting] = (await client.get("/api/waiting")).json()["waiting"]
        calls = {call["id"]: True for call in waiting["question"]["tool_calls"]}
        answer = {"answer": {"reply_id": "r1", "calls": calls}}
        await client.post("/api/sessions/main/replies", json=answer, headers=SSE)
        rest = read_stream((await client.get(f"{RUN}/lines", headers={**SSE, "Last-Event-ID": first[-2][0]})).text)
        assert rest[-1] == ("done", {"status": "completed"})
        assert int(rest[0][0]) == int(first[-2][0]) + 1


async def test_a_changed_record_is_not_read():
    store: Any = InMemoryStateStore()
    changes = {
        "no JSON": lambda line: b"\n\nevent: done\ndata: {}\n\n",
        "another kind": lambda line: line.replace(b'"kind":"request"', b'"kind":7'),
        "a missing part": lambda line: line.replace(b'"call_id"', b'"other"'),
        "a list": lambda line: b"[1]",
    }
    async with serve(make_recorded(store=store)) as client:
        for number, change in enumerate(changes.values()):
            await ask(client, "find it", key=f"r{number}")
            await store.runs.flush()
            lines = store.runs._rows._lines["main", f"r{number}"]
            place = next(index for index, line in enumerate(lines) if b'"kind":"request"' in line)
            lines[place] = change(lines[place])
            response = await client.get(f"/api/runs/main/r{number}")
            assert code_of(response) == (500, "unreadable")
        assert code_of(await client.get("/api/runs/main/r0/lines")) == (500, "unreadable")
        stream = read_stream((await client.get("/api/runs/main/r0/lines", headers=SSE)).text)
        assert stream[-1] == ("done", {"status": "unreadable"})
        assert len(stream) == place + 1
        assert len((await client.get("/api/runs")).json()["runs"]) == len(changes)


async def test_a_run_is_deleted_with_those_below_it():
    async with serve(make_recorded()) as client:
        await ask(client, "help me")
        [child] = (await client.get(RUN)).json()["children"]
        alone = await client.delete(f"/api/runs/{child['session_id']}/{child['reply_id']}")
        assert code_of(alone) == (409, "nested")
        assert (await client.delete(RUN)).status_code == 204
        for path in (RUN, f"/api/runs/{child['session_id']}/{child['reply_id']}"):
            assert code_of(await client.get(path)) == (404, "no_run")
            assert code_of(await client.get(f"{path}/lines", headers=SSE)) == (404, "no_run")
        assert (await client.get("/api/runs")).json()["runs"] == []
        # The session itself stays.
        assert (await client.get("/api/sessions/main")).status_code == 200


async def test_owners_see_their_own_runs_alone():
    store: Any = InMemoryStateStore()
    async with serve(make_recorded(Shorten(), store=store), auth=OWNERS, runs=True) as client:
        await ask(client, "help ann", headers=ANN)
        await ask(client, "find bobs", headers=BOB, key="r2")
        for headers, title, key, other in ((ANN, "help ann", "r1", "r2"), (BOB, "find bobs", "r2", "r1")):
            listed = await client.get("/api/runs", headers=headers)
            [run] = listed.json()["runs"]
            assert (run["session_id"], run["title"], run["labels"]["owner"]) == (
                "main",
                title,
                headers["Authorization"][7:10],
            )
            page = await client.get(f"/api/runs/main/{key}", headers=headers)
            lines = await client.get(f"/api/runs/main/{key}/lines", headers={**headers, **SSE})
            for response in (listed, page, lines):
                assert response.status_code == 200
                assert not any(Owner(name).prefix in response.text for name in ("ann", "bob"))
            assert page.json()["session_id"] == "main"
            for child in page.json()["children"]:
                path = f"/api/runs/{child['session_id']}/{child['reply_id']}"
                assert (await client.get(path, headers=headers)).status_code == 200
                assert code_of(await client.get(path, headers=BOB)) == (404, "no_run")
            stored = Owner("ann" if other == "r1" else "bob").session_id("main")
            for session in ("main", stored):
                for method, more in (("GET", ""), ("GET", "/lines"), ("DELETE", "")):
                    path = f"/api/runs/{session}/{other}{more}"
                    assert code_of(await client.request(method, path, headers=headers)) == (404, "no_run")
            # A label of the query does not make another owner.
            asked = await client.get("/api/runs", params={"label": "owner:bob"}, headers=ANN)
            assert [run["title"] for run in asked.json()["runs"]] == ["help ann"]
        assert code_of(await client.get("/api/runs")) == (401, "unauthenticated")


async def test_with_auth_runs_are_read_only_where_the_app_allows_it():
    async with serve(make_recorded(Shorten()), auth=OWNERS, playground=[Shorten]) as client:
        await ask(client, "help ann", headers=ANN)
        routes = [("GET", "/api/runs"), ("GET", RUN), ("GET", f"{RUN}/lines"), ("DELETE", RUN)]
        for method, path in (*routes, ("POST", f"{RUN}/fork"), ("POST", f"{RUN}/replay")):
            refused = await client.request(method, path, headers=ANN)
            assert code_of(refused) == (403, "runs")
            assert "create_app(runs=" in refused.text
        assert (await client.get("/api/chains", headers=ANN)).json()["runs"] is False
        assert code_of(await client.get("/api/runs")) == (401, "unauthenticated")


async def test_a_session_of_before_has_its_runs_for_its_owner():
    store: Any = InMemoryStateStore()
    agent = make_recorded(store=store)
    await agent.with_state(AgentState(session_id="main", labels={"owner": "ann"})).reply("find it", reply_id="r1")
    async with serve(agent, auth=OWNERS, runs=True) as client:
        assert (await client.get(RUN, headers=ANN)).json()["session_id"] == "main"
        assert code_of(await client.get(RUN, headers=BOB)) == (404, "no_run")


async def test_numbers_that_json_lacks_are_null():
    store: Any = InMemoryStateStore()
    async with serve(make_recorded(store=store)) as client:
        await ask(client, "find it")
        await store.runs.flush()
        lines = store.runs._rows._lines["main", "r1"]
        place = next(index for index, line in enumerate(lines) if b'"kind":"answer"' in line)
        lines[place] = lines[place].replace(b'"cost":null', b'"cost":NaN')
        page = json.loads((await client.get(RUN)).text, parse_constant=pytest.fail)
        assert page["requests"][0]["cost"] is None
