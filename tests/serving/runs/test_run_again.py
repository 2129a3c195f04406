"""Recorded runs that clients run again, and each way around a guard, which is closed."""

from typing import Any

import pytest

from agentrt import Agent, MiddlewareBase
from agentrt.errors import ConfigError
from agentrt.model import ScriptedChatModel
from agentrt.runs import RunRecorder
from agentrt.serving import Owner, create_app
from agentrt.state import InMemoryStateStore
from agentrt.tool import FunctionTool
from agentrt.types import PermissionBehavior, PermissionDecision
from tests.runs.conftest import call
from tests.serving.conftest import read_stream, serve
from tests.serving.runs.conftest import ANN, BOB, OWNERS, SSE, Shorten, ask, code_of, make_recorded

FORK = "/api/runs/main/r1/fork"
REPLAY = "/api/runs/main/r1/replay"


class Guard(MiddlewareBase):
    inherited = True

    async def on_check_permission(self, agent, input_kwargs, next_handler):
        decision = await next_handler()
        if input_kwargs["tool_call"].name == "pay":
            return PermissionDecision(PermissionBehavior.DENY, "not here")
        return decision


class World:
    """An agent that pays by itself or by a sub-agent, and what was paid."""

    def __init__(self, *layers: MiddlewareBase, has_child: bool = False, name: str = "boss", store: Any = None) -> None:
        self.paid: list[str] = []
        store = store or InMemoryStateStore()
        tool: Any = FunctionTool(self.pay)
        if has_child:
            tool = Agent("payer", "", ScriptedChatModel([self.answer] * 99), [tool]).as_tool("Pays.", name="ask_payer")
        model = ScriptedChatModel([self.answer] * 99, stream=True)
        self.name = "ask_payer" if has_child else "pay"
        self.agent = Agent(name, "You pay.", model, [tool], [*layers, RunRecorder(store)], state_store=store)

    async def pay(self, query: str) -> str:
        self.paid.append(query)
        return f"paid {query}"

    def answer(self, messages: Any, tools: Any) -> Any:
        [tool] = [tool["function"]["name"] for tool in tools]
        if messages[-1].get_content_blocks("tool_result"):
            return f"{messages[0].get_text_content()} done"
        return [call("c1", tool, '{"query": "20"}')]


async def step_before_the_call(client: Any, **options: Any) -> int:
    """Return the number of the event before the first call of a tool."""
    page = (await client.get("/api/runs/main/r1", **options)).json()
    seq: int = page["steps"][1]["seq"]
    return seq


async def test_a_fork_runs_without_a_layer_and_is_recorded():
    async with serve(make_recorded(Shorten()), playground=True) as client:
        await ask(client, "find it")
        at = (await client.get("/api/runs/main/r1")).json()["steps"][2]["seq"]  # after the result
        forked = await client.post(FORK, json={"at": at, "without": ["Shorten"], "session_id": "other"})
        assert (forked.status_code, forked.json()["session_id"]) == (201, "other")
        events = read_stream((await client.get(forked.json()["events"])).text)
        assert events[-1] == ("done", {"reply_id": forked.json()["reply_id"], "status": "completed"})
        page = (await client.get(f"/api/runs/other/{forked.json()['reply_id']}")).json()
        assert page["labels"]["forked_from"] == "main/r1/2"
        assert [request["changes"] for request in page["requests"]] == [[]]
        again = await client.post(FORK, json={"at": at, "session_id": "other"})
        assert code_of(again) == (409, "exists")


async def test_a_fork_asks_before_it_pays_and_is_answered():
    world = World()
    async with serve(world.agent, playground=True) as client:
        await ask(client, "go")
        at = await step_before_the_call(client)
        forked = (await client.post(FORK, json={"at": at, "session_id": "other"})).json()
        events = read_stream((await client.get(forked["events"])).text)
        assert (events[-1][1]["status"], world.paid) == ("waiting", ["20"])
        [waiting] = (await client.get("/api/waiting")).json()["waiting"]
        answer = {"answer": {"reply_id": forked["reply_id"], "calls": {"c1": True}}}
        assert waiting["session_id"] == "other"
        rest = read_stream((await client.post("/api/sessions/other/replies", json=answer, headers=SSE)).text)
        assert (rest[-1][1]["status"], world.paid) == ("completed", ["20", "20"])
        # The agent of the server is as it was.
        await ask(client, "go", session="third", key="r3")
        assert len(world.paid) == 3


async def test_a_fork_of_another_process_asks_as_well():
    """That process has the agent of the server alone, with all of its guards."""
    world, store = World(), InMemoryStateStore()
    world = World(store=store)
    async with serve(world.agent, playground=True) as client:
        await ask(client, "go")
        at = await step_before_the_call(client)
        body = {"at": at, "session_id": "other", "system_prompt": "You fork."}
        forked = (await client.post(FORK, json=body)).json()
        await client.get(forked["events"])
    async with serve(world.agent) as client:
        answer = {"answer": {"reply_id": forked["reply_id"], "calls": {"c1": False}}}
        rest = await client.post("/api/sessions/other/replies", json=answer, headers=SSE)
        assert read_stream(rest.text)[-1][1]["status"] == "completed"
        asked = read_stream((await client.post("/api/sessions/other/replies", json={"input": "go"}, headers=SSE)).text)
        assert (asked[-1][1]["status"], world.paid) == ("waiting", ["20"])


async def test_a_fork_has_another_prompt_and_runs_its_tools():
    world = World(Guard())
    async with serve(world.agent, playground=True) as client:
        await ask(client, "go")
        assert world.paid == []
        body = {"at": 2, "without": ["Guard"], "system_prompt": "You fork.", "effects": "run", "session_id": "other"}
        forked = (await client.post(FORK, json=body)).json()
        await client.get(forked["events"])
        session = (await client.get("/api/sessions/other")).json()
        assert session["messages"][-1]["content"][-1]["text"] == "You fork. done"
        assert world.paid == ["20"]
        assert world.agent.system_prompt == "You pay."


@pytest.mark.parametrize("has_owners", [False, True])
@pytest.mark.parametrize(
    ("playground", "body"),
    [
        (False, {}),
        (False, {"without": ["Guard"]}),
        (["Shorten"], {"without": ["Guard"]}),
        (["Shorten"], {"without": ["Shorten", "Guard"]}),
        (["Shorten"], {"without": ["RunRecorder"]}),
        (["Shorten"], {"without": ["guard"]}),
        (["Shorten"], {"without": ["nothing"]}),
        (["Shorten"], {"system_prompt": "You pay."}),
        (["Shorten"], {"system_prompt": ""}),
        (["Shorten"], {"model": "openai:gpt-5"}),
        (["Shorten"], {"effects": "run"}),
        ([Shorten], {"without": ["Guard"]}),
        ([], {"without": ["Shorten"]}),
    ],
)
async def test_what_is_not_allowed_is_refused(has_owners: bool, playground: Any, body: dict[str, Any]):
    world = World(Shorten(), Guard())
    options, headers = ({"auth": OWNERS, "runs": True}, ANN) if has_owners else ({}, {})
    async with serve(world.agent, playground=playground, **options) as client:
        await ask(client, "go", headers=headers)
        for path in (FORK, REPLAY):
            response = await client.post(path, json={"at": 2, **body}, headers=headers)
            assert code_of(response) == (403, "playground")
        assert world.paid == []
        assert len((await client.get("/api/sessions", headers=headers)).json()["sessions"]) == 1


async def test_an_allowed_layer_is_left_out_by_its_owner():
    world = World(Shorten(), Guard())
    async with serve(world.agent, playground=[Shorten], auth=OWNERS, runs=True) as client:
        await ask(client, "go", headers=ANN)
        body = {"at": 2, "without": ["Shorten"], "session_id": "other"}
        assert code_of(await client.post(FORK, json=body, headers=BOB)) == (404, "no_run")
        forked = await client.post(FORK, json=body, headers=ANN)
        assert forked.status_code == 201
        await client.get(forked.json()["events"], headers=ANN)
        # The guard holds.
        assert world.paid == []
        assert (await client.get("/api/sessions/other", headers=ANN)).json()["status"] == "idle"
        assert (await client.get("/api/sessions/other", headers=BOB)).status_code == 404
        listed = (await client.get("/api/runs", headers=ANN)).json()["runs"]
        assert [run["labels"].get("forked_from") for run in listed] == ["main/r1/0", None]


async def test_the_agent_of_another_run_is_no_way_around_a_guard():
    """Both agents record in one store, and the second one has no guard."""
    store = InMemoryStateStore()
    guarded = World(Guard(), store=store)
    free = World(name="free", store=InMemoryStateStore())
    free.agent = free.agent.with_middlewares([RunRecorder(store)])
    async with serve([guarded.agent, free.agent], playground=[Guard]) as client:
        await ask(client, "go")
        response = await client.post(f"{FORK}?agent=free", json={"at": 2})
        assert code_of(response) == (403, "playground")
        assert free.paid == []


async def test_a_guard_is_inherited_by_the_sub_agents_of_a_fork():
    world = World(Shorten(), Guard(), has_child=True)
    async with serve(world.agent, playground=["Shorten"]) as client:
        await ask(client, "go")
        page = (await client.get("/api/runs/main/r1")).json()
        [child] = page["children"]
        # Alone, the sub-agent would not have what it inherits.
        path = f"/api/runs/{child['session_id']}/{child['reply_id']}/fork"
        assert code_of(await client.post(path, json={"at": 2})) == (403, "playground")
        forked = (await client.post(FORK, json={"at": 2, "without": ["Shorten"], "session_id": "other"})).json()
        events = read_stream((await client.get(forked["events"])).text)
        assert events[-1][1]["status"] == "waiting"  # the sub-agent is a tool that may have an effect
        answer = {"answer": {"reply_id": forked["reply_id"], "calls": {"c1": True}}}
        rest = read_stream((await client.post("/api/sessions/other/replies", json=answer, headers=SSE)).text)
        assert (rest[-1][1]["status"], world.paid) == ("completed", [])
    async with serve(world.agent, playground=True) as client:
        assert code_of(await client.post(path, json={"at": 2})) == (409, "fork")


@pytest.mark.parametrize(
    ("setting", "options", "allowed"),
    [
        (False, {}, False),
        ([], {}, []),
        (["Shorten"], {"auth": OWNERS}, ["Shorten"]),
        ([MiddlewareBase], {}, ["Guard", "RunRecorder", "Shorten"]),
        (True, {}, True),
    ],
)
async def test_chains_tell_what_may_be_left_out(setting: Any, options: dict[str, Any], allowed: Any):
    async with serve(World(Shorten(), Guard()).agent, playground=setting, **options) as client:
        page = (await client.get("/api/chains", headers=ANN)).json()
        assert page["playground"] == allowed


@pytest.mark.parametrize(
    ("setting", "options", "words"),
    [
        (True, {"auth": OWNERS}, "cannot be combined with auth"),
        ("Guard", {}, "must be True, False or a list"),
        (7, {}, "must be True, False or a list"),
        (["Guard", "Other"], {}, "no agent has such a middleware"),
    ],
)
def test_a_wrong_setting_is_refused(setting: Any, options: dict[str, Any], words: str):
    with pytest.raises(ConfigError, match=words):
        create_app(World(Guard()).agent, playground=setting, **options)


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ({}, 400, "invalid_body"),
        ({"at": "2"}, 400, "invalid_body"),
        ({"at": True}, 400, "invalid_body"),
        ({"at": 0}, 409, "fork"),
        ({"at": -(10**30)}, 409, "fork"),
        ({"at": 2, "without": "Guard"}, 400, "invalid_body"),
        ({"at": 2, "without": [7]}, 400, "invalid_body"),
        ({"at": 2, "without": ["Nobody"]}, 400, "invalid_body"),
        ({"at": 2, "without": ["x"] * 101}, 400, "invalid_body"),
        ({"at": 2, "model": "nobody:nothing"}, 400, "invalid_body"),
        ({"at": 2, "model": 7}, 400, "invalid_body"),
        ({"at": 2, "system_prompt": ["x"]}, 400, "invalid_body"),
        ({"at": 2, "effects": "no"}, 400, "invalid_body"),
        ({"at": 2, "effects": ["run"]}, 400, "invalid_body"),
        ({"at": 2, "session_id": "a/../b"}, 400, "session_id"),
        ({"at": 2, "session_id": "main"}, 409, "exists"),
        ({"at": 2, "tools": []}, 400, "invalid_body"),
    ],
)
async def test_a_wrong_fork_is_refused(body: dict[str, Any], status: int, code: str):
    async with serve(World(Guard()).agent, playground=True) as client:
        await ask(client, "go")
        assert code_of(await client.post(FORK, json=body)) == (status, code)
        assert len((await client.get("/api/sessions")).json()["sessions"]) == 1


async def test_a_run_without_content_is_not_forked():
    async with serve(make_recorded(content=False), playground=True) as client:
        await ask(client, "find it")
        assert code_of(await client.post(FORK, json={"at": 2})) == (409, "fork")


async def test_a_replay_names_the_layer_of_each_difference():
    async with serve(make_recorded(Shorten()), playground=True) as client:
        await ask(client, "find it")
        same = (await client.post(REPLAY, json={})).json()
        assert same | {"message": None} == {"first": None, "differences": [], "message": None, "finished": True}
        assert same["message"]["content"][-1]["text"] == "It is there."
        found = (await client.post(REPLAY, json={"without": ["Shorten"]})).json()
        [first] = found["differences"]
        assert (first, found["finished"]) == (found["first"], False)
        assert (first["where"], first["layer"], first["session_id"]) == ("messages[2]", "Shorten", "main")
        assert first["step"] == {"number": 3, "kind": "model", "seq": first["step"]["seq"]}
        assert first["before"]["content"][1]["output"] == "found"
        kept = (await client.post(REPLAY, json={"system_prompt": "Find.", "after": "keep"})).json()
        assert [one["where"] for one in kept["differences"]] == ["messages[0]"] * 2
        assert kept["finished"]
        # Nothing was added.
        assert len((await client.get("/api/runs")).json()["runs"]) == 1
        assert len((await client.get("/api/sessions/main")).json()["messages"]) == 2
        for body in ({"after": "ask"}, {"after": ["stop"]}, {"tools": []}):
            assert code_of(await client.post(REPLAY, json=body)) == (400, "invalid_body")


async def test_a_replay_pays_nothing():
    world = World(has_child=True)
    async with serve(world.agent, playground=True) as client:
        await ask(client, "go")
        assert world.paid == ["20"]
        for body in ({}, {"system_prompt": "x", "after": "keep"}, {"effects": "run"}):
            assert (await client.post(REPLAY, json=body)).status_code == 200
        assert world.paid == ["20"]
        page = (await client.get("/api/runs/main/r1")).json()
        [child] = page["children"]
        path = f"/api/runs/{child['session_id']}/{child['reply_id']}/replay"
        assert code_of(await client.post(path, json={})) == (409, "replay")


async def test_owners_replay_their_own_runs_alone():
    async with serve(make_recorded(Shorten()), playground=[Shorten], auth=OWNERS, runs=True) as client:
        await ask(client, "help me", headers=ANN)
        assert code_of(await client.post(REPLAY, json={}, headers=BOB)) == (404, "no_run")
        response = await client.post(REPLAY, json={"without": ["Shorten"]}, headers=ANN)
        assert response.json()["first"]["layer"] == "Shorten"
        assert Owner("ann").prefix not in response.text


async def test_a_run_without_content_is_not_replayed():
    async with serve(make_recorded(content=False), playground=True) as client:
        await ask(client, "find it")
        assert code_of(await client.post(REPLAY, json={})) == (409, "replay")


def test_runs_are_shown_by_true_alone():
    with pytest.raises(ConfigError, match="must be True or False, not 'no'"):
        create_app(World(Guard()).agent, auth=OWNERS, runs="no")  # type: ignore[arg-type]
