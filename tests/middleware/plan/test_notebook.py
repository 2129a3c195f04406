"""PlanNotebook: the eight tools, the hint, who learns of changes, and what is saved."""

import json
import logging
from functools import partial
from typing import Any

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrt import Agent, AgentState
from agentrt.errors import ConfigError, MiddlewareConfigError, UsageError
from agentrt.event import CustomEvent
from agentrt.formatter import format_anthropic, format_openai
from agentrt.middleware import PlanNotebook, RedactionMiddleware, TodoMiddleware, TracingMiddleware
from agentrt.model import ScriptedChatModel
from agentrt.permission import PermissionBehavior, PermissionContext, PermissionRule
from agentrt.plan import DefaultPlanToHint, InMemoryPlanStorage, Plan, PlanStorageBase, SQLitePlanStorage, SubTask
from agentrt.testing import InMemoryStateStore, ToolLog, check_every_suspension
from agentrt.tool import FunctionTool, Toolkit
from agentrt.types import ContextConfig
from tests.loop.helpers import confirmation_of, items_of
from tests.middleware.plan.helpers import (
    agent_with,
    call,
    create,
    deps_of,
    drafts,
    finish,
    hint_of,
    play,
    reloaded,
    results_of,
    start,
)
from tests.program_runner import ProgramRunner


def states_of(plan: Plan | None) -> list[str] | None:
    return None if plan is None else [subtask.state for subtask in plan.subtasks]


# The tools.


@pytest.fixture
def notebook() -> PlanNotebook:
    return PlanNotebook()


def test_the_tools_have_the_names_and_arguments_of_1x():
    parameters = {tool.name: list(tool.input_schema["properties"]) for tool in PlanNotebook().list_tools()}
    assert parameters == {
        "view_subtasks": ["subtask_idx"],
        "update_subtask_state": ["subtask_idx", "state"],
        "finish_subtask": ["subtask_idx", "subtask_outcome"],
        "create_plan": ["name", "description", "expected_outcome", "subtasks"],
        "revise_current_plan": ["subtask_idx", "action", "subtask"],
        "finish_plan": ["state", "outcome"],
        "view_historical_plans": [],
        "recover_historical_plan": ["plan_id"],
    }


async def test_a_plan_is_made_and_worked_on_to_its_end(notebook):
    agent, results = await play(notebook, create("book", "pack"), start(0), finish(0, "two seats"), finish(1))
    assert [result.split(":")[0] for result in results] == ["success"] * 4
    plan = notebook.plan_of(agent)
    assert (plan.name, plan.state, states_of(plan)) == ("trip", "in_progress", ["done", "done"])
    assert plan.subtasks[0].outcome == "two seats"


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (start(1), "subtask 0 ('book') is todo, and comes first"),
        (start(9), "subtask 9 does not exist: the plan has those from 0 to 1"),
        (start(-1), "subtask -1 does not exist"),
        (finish(1), "cannot be finished: subtask 0 ('book') is todo"),
        (call("revise_current_plan", subtask_idx=0, action="add"), "subtask is needed for the action 'add'"),
        (call("revise_current_plan", subtask_idx=5, action="delete"), "subtask 5 does not exist"),
        (call("revise_current_plan", subtask_idx=3, action="add", subtask=drafts("x")[0]), "at the indexes 0 to 2"),
        (call("view_subtasks", subtask_idx=[7]), "Not in the plan: 7. The plan has subtasks 0 to 1."),
        (call("recover_historical_plan", plan_id="x"), "no former plan has the id 'x'"),
        (start(0, "done"), "state"),
        (start(True), "subtask_idx"),  # type: ignore[arg-type]
        (call("finish_plan", state="todo", outcome="x"), "state"),
    ],
)
async def test_a_wrong_call_is_an_error_result_and_changes_nothing(wrong: Any, words: str, notebook: PlanNotebook):
    agent, results = await play(notebook, create("book", "pack"), wrong)
    assert results[1].startswith("error: ")
    assert words in results[1]
    assert states_of(notebook.plan_of(agent)) == ["todo", "todo"]


@pytest.mark.parametrize("name", ["view_subtasks", "update_subtask_state", "finish_subtask", "finish_plan"])
async def test_without_a_plan_a_call_says_what_is_allowed(name: str):
    arguments = {
        "view_subtasks": {"subtask_idx": [0]},
        "update_subtask_state": {"subtask_idx": 0, "state": "todo"},
        "finish_subtask": {"subtask_idx": 0, "subtask_outcome": "x"},
        "finish_plan": {"state": "done", "outcome": "x"},
    }[name]
    _, results = await play(PlanNotebook(), call(name, **arguments))
    assert results[0].startswith("error: The conversation has no plan. Allowed now: create_plan")


@pytest.mark.parametrize(("limit", "steps"), [(2, 3), (None, 101), (None, 0)])
async def test_a_plan_of_too_many_or_no_steps_is_not_made(limit: int | None, steps: int):
    notebook = PlanNotebook(limit)
    agent, results = await play(notebook, create(*map(str, range(steps))))
    allowed = f"Allowed now: call create_plan with 1 to {limit or 100}."
    assert results[0] == f"error: no plan was made of {steps} subtasks. {allowed}"
    assert notebook.plan_of(agent) is None


async def test_no_subtask_is_added_beyond_the_limit():
    notebook = PlanNotebook(max_subtasks=2)
    add = call("revise_current_plan", subtask_idx=2, action="add", subtask=drafts("x")[0])
    agent, results = await play(notebook, create("a", "b"), add)
    assert "the plan has 2 subtasks, which is the limit. Allowed now: " in results[1]
    assert states_of(notebook.plan_of(agent)) == ["todo", "todo"]


async def test_a_plan_is_revised_where_nothing_is_done_yet(notebook):
    new = drafts("new")[0]
    agent, results = await play(
        notebook,
        create("a", "b", "c"),
        start(0),
        call("revise_current_plan", subtask_idx=1, action="add", subtask=new),
        call("revise_current_plan", subtask_idx=2, action="revise", subtask={**drafts("B")[0], "state": "done"}),
        call("revise_current_plan", subtask_idx=3, action="delete"),
    )
    assert [result.split(":")[0] for result in results] == ["success"] * 5
    plan = notebook.plan_of(agent)
    assert [subtask.name for subtask in plan.subtasks] == ["a", "new", "B"]
    assert states_of(plan) == ["in_progress", "todo", "todo"]


async def test_subtasks_are_viewed_in_full():
    _, results = await play(PlanNotebook(), create("a", "b"), call("view_subtasks", subtask_idx=[1, 1, 8]))
    assert results[1].count("Expected Outcome: b is there") == 1
    assert "Not in the plan: 8" in results[1]


async def test_a_new_plan_does_not_lose_the_one_before(notebook):
    agent, results = await play(notebook, create("a"), create("b", plan="other"), call("view_historical_plans"))
    assert "The plan before it, 'trip', can be recovered by its id" in results[1]
    assert "Plan 'trip'" in results[2]
    assert "It was replaced by the plan 'other'." in results[2]
    assert notebook.plan_of(agent).name == "other"  # type: ignore[union-attr]


async def test_a_finished_plan_is_recovered_with_its_progress(notebook):
    over = call("finish_plan", state="abandoned", outcome="no money")
    agent, results = await play(notebook, create("a", "b"), start(0), finish(0), over)
    plan_id = results[3].rsplit(" ", 1)[1].rstrip(".")
    assert notebook.plan_of(agent) is None
    recover = call("recover_historical_plan", plan_id=plan_id)
    agent, results = await play(notebook, create("c", plan="other"), recover, recover, state=reloaded(agent.state))
    assert results[1].startswith("success: The plan 'trip' is the current one again. The plan before it, 'other'")
    assert results[2].startswith("error: the plan 'trip' is the current one")
    plan = notebook.plan_of(agent)
    assert (plan.state, plan.outcome, states_of(plan)) == ("in_progress", None, ["done", "in_progress"])  # type: ignore[union-attr]


async def test_only_the_last_plans_are_kept_in_a_conversation():
    calls = [create("a", plan=f"plan {number}") for number in range(23)]
    _, results = await play(PlanNotebook(), *calls, call("view_historical_plans"))
    assert results[-1].count("- ID: ") == 20
    assert "'plan 1'" not in results[-1]
    assert "'plan 21'" in results[-1]


CALLS = st.lists(
    st.one_of(
        st.builds(lambda count: create(*map(str, range(count))), st.integers(0, 4)),
        st.builds(start, st.integers(-1, 4), st.sampled_from(["todo", "in_progress", "abandoned"])),
        st.builds(finish, st.integers(-1, 4)),
        st.builds(
            lambda index, action: call("revise_current_plan", subtask_idx=index, action=action, subtask=drafts("n")[0]),
            st.integers(-1, 4),
            st.sampled_from(["add", "revise", "delete"]),
        ),
        st.builds(lambda state: call("finish_plan", state=state, outcome="x"), st.sampled_from(["done", "abandoned"])),
    ),
    max_size=12,
)


@given(CALLS)
@settings(max_examples=30)
async def test_any_sequence_of_calls_keeps_the_rules(calls: list[Any]):
    notebook = PlanNotebook()
    seen: list[Plan | None] = []
    notebook.register_plan_change_hook("see", lambda _, plan: seen.append(plan))
    _, results = await play(notebook, *calls)
    assert len(seen) == sum(result.startswith("success") for result in results)  # a refusal changes nothing
    for plan in filter(None, seen):
        states = [subtask.state for subtask in plan.subtasks]
        begun = [index for index, state in enumerate(states) if state in ("in_progress", "done")]
        assert states.count("in_progress") <= 1
        assert states
        assert all(state in ("done", "abandoned") for state in states[: max(begun, default=0)])


# The hint.


async def test_the_hint_is_last_in_each_request_and_never_history():
    agent, _ = await play(PlanNotebook(), create("a"), start(0), finish(0))
    requests = agent.model.calls  # type: ignore[attr-defined]
    hints = [hint_of(request.messages) for request in requests]
    words = ["create_plan", "subtask_idx=0 and state", "'in_progress'", "All subtasks are closed"]
    assert all(word in str(hint) for word, hint in zip(words, hints, strict=True))
    assert "system-hint" not in agent.state.model_dump_json()
    for request in requests:
        assert request.messages[-1].role == "user"
        assert sum(len(message.get_content_blocks("hint")) for message in request.messages) == 1


@pytest.mark.parametrize("formatter", [format_openai, format_anthropic])
async def test_the_request_before_the_hint_only_grows(formatter: Any):
    agent, _ = await play(PlanNotebook(), create("a", "b"), start(0), finish(0), finish(1))
    before = ""
    for request in agent.model.calls:  # type: ignore[attr-defined]
        assert hint_of(request.messages) is not None
        text = json.dumps(formatter(request.messages[:-1]))
        assert text.startswith(before)
        before = text.rstrip("]}")
        tools = json.dumps(request.tools)
        assert tools == json.dumps(agent.model.calls[0].tools)  # type: ignore[attr-defined]


async def test_a_summary_gets_no_hint_and_the_plan_outlives_it():
    model = ScriptedChatModel([[create("a")], "Made.", "More.", "A summary.", "Still there."])
    agent = Agent("a", "", model, middlewares=[PlanNotebook()], context_config=ContextConfig(reserve_ratio=0))
    await agent.reply("Go.")
    await agent.reply("More?")
    await agent.compress_context()
    await agent.reply("And now?")
    assert "A summary." in agent.state.summary
    assert hint_of(model.calls[3].messages) is None
    assert "# trip" in str(hint_of(model.calls[4].messages))


async def test_a_function_of_the_user_makes_the_hint():
    seen: list[Plan | None] = []

    def hint(plan: Plan | None) -> str | None:
        seen.append(plan)
        return None if plan is None else f"Mind {plan.name}."

    agent, _ = await play(PlanNotebook(plan_to_hint=hint), create("a"))
    requests = agent.model.calls  # type: ignore[attr-defined]
    assert [hint_of(request.messages) for request in requests] == [None, "Mind trip."]
    assert seen[0] is None


async def test_a_hint_without_a_plan_comes_only_with_the_group():
    notebook = PlanNotebook(group="plan_related")
    switch = call("reset_equipped_tools", plan_related=True)
    agent, _ = await play(notebook, switch, create("a"), call("reset_equipped_tools", plan_related=False))
    requests = agent.model.calls  # type: ignore[attr-defined]
    offered = ["create_plan" in [tool["function"]["name"] for tool in request.tools] for request in requests]
    assert offered == [False, True, True, False]
    assert [hint_of(request.messages) is None for request in requests] == [True, False, False, False]


# Who learns of changes.


def updates_of(items: list[Any]) -> list[Any]:
    events = [item for item in items if isinstance(item, CustomEvent) and item.name == "plan_updated"]
    return [event.value["plan"] and event.value["plan"]["state"] for event in events]


async def test_each_change_is_an_event_before_the_result_ends():
    over = call("finish_plan", state="done", outcome="x")
    agent = agent_with(PlanNotebook(), create("a"), start(0), start(0, "abandoned"), start(0, "abandoned"), over, "ok")
    items = await items_of(agent)
    assert updates_of(items) == ["todo", "in_progress", "in_progress", "in_progress", None]


async def test_hooks_see_each_change_and_a_recovered_plan(notebook):
    seen: list[Any] = []

    async def later(notebook: PlanNotebook, plan: Plan | None) -> None:
        seen.append(plan and plan.name)

    notebook.register_plan_change_hook("later", later)
    notebook.register_plan_change_hook("same", lambda notebook, plan: seen.append("wrong"))
    notebook.register_plan_change_hook("same", lambda notebook, plan: seen.append(plan and plan.state))
    _, results = await play(notebook, create("a"), call("finish_plan", state="done", outcome="x"))
    assert seen == ["trip", "todo", None, None]
    plan_id = results[1].rsplit(" ", 1)[1].rstrip(".")
    notebook.remove_plan_change_hook("same")
    agent, _ = await play(notebook, create("a"))
    await play(notebook, create("b"), call("recover_historical_plan", plan_id=plan_id), state=agent.state)
    assert seen[4:] == ["trip", "trip"]  # that plan is of another conversation


async def test_a_recovered_plan_is_told_to_hooks():
    notebook = PlanNotebook(storage=InMemoryPlanStorage(), owner="ann")
    await notebook.storage.add_plan(Plan("old", subtasks=[SubTask("s")], id="p1", owner="ann"))  # type: ignore[union-attr]
    seen: list[Any] = []
    notebook.register_plan_change_hook("see", lambda _, plan: seen.append(plan.name))
    await play(notebook, call("recover_historical_plan", plan_id="p1"))
    assert seen == ["old"]


async def test_a_hook_that_fails_changes_nothing(caplog, notebook):
    def fail(notebook: PlanNotebook, plan: Plan | None) -> None:
        raise LookupError("canary-7")

    notebook.register_plan_change_hook("fail", fail)
    agent, results = await play(notebook, create("a"))
    assert results[0].startswith("success")
    assert states_of(notebook.plan_of(agent)) == ["todo"]
    assert "the plan change hook 'fail' failed: LookupError" in caplog.text
    assert "canary-7" not in caplog.text


@pytest.mark.parametrize(("name", "hook"), [(1, print), ("x", None), ("x", "print")])
def test_a_hook_of_another_type_is_refused(name: Any, hook: Any):
    with pytest.raises(UsageError, match="takes a name and a function"):
        PlanNotebook().register_plan_change_hook(name, hook)


def test_a_hook_that_is_not_registered_is_named():
    with pytest.raises(ValueError, match="no plan change hook has the name 'x': registered are none"):
        PlanNotebook().remove_plan_change_hook("x")


# What is saved.


async def test_the_plan_is_saved_and_told_once_after_loading(notebook):
    agent, _ = await play(PlanNotebook(), create("a", "b"), start(0))
    other = agent_with(notebook, "first", "second", state=reloaded(agent.state))
    assert states_of(notebook.plan_of(other)) == ["in_progress", "todo"]
    assert updates_of(await items_of(other)) == ["in_progress"]
    assert updates_of(await items_of(other)) == []
    assert hint_of(other.model.calls[0].messages) == hint_of(other.model.calls[1].messages)  # type: ignore[attr-defined]


RESUME = """
import sys, anyio
from agentrt import Agent, AgentState
from agentrt.event import ConfirmResult, UserConfirmResultEvent
from agentrt.middleware import PlanNotebook
from agentrt.model import ScriptedChatModel
from agentrt.tool import FunctionTool

async def pay(amount: int) -> str:
    "Pay."
    return "paid"

async def main():
    model = ScriptedChatModel(["Paid."])
    state = AgentState.model_validate_json(sys.stdin.read())
    agent = Agent("planner", "You plan.", model, [FunctionTool(pay, ask=True)], [PlanNotebook()], state=state)
    asked = agent.waiting()
    await agent.reply(UserConfirmResultEvent(asked.reply_id, [ConfirmResult(True, call) for call in asked.tool_calls]))
    print(model.calls[0].messages[-1].get_content_blocks("hint")[0].hint)

anyio.run(main, backend=sys.argv[1])
"""


async def test_another_process_resumes_in_the_middle_of_a_plan(anyio_backend_name: str, program_runner: ProgramRunner):
    async def pay(amount: int) -> str:
        return "paid"

    tools = [FunctionTool(pay, ask=True)]
    agent = agent_with(PlanNotebook(), create("a", "b"), start(0), call("pay", amount=3), "Paid.", tools=tools)
    await agent.reply("Go.")
    saved = agent.state.model_dump_json()
    await agent.reply(confirmation_of(agent))  # type: ignore[list-item]
    hint = hint_of(agent.model.calls[-1].messages)  # type: ignore[attr-defined]
    resumed = program_runner.run(RESUME, anyio_backend_name, typed=saved)
    assert resumed.returncode == 0, resumed.stderr[-2000:]
    assert resumed.stdout.strip() == hint


@pytest.mark.parametrize(
    ("saved", "storage"),
    [
        ({"name": "old", "steps": [1]}, None),
        ({"name": "old", "steps": [1]}, "memory"),
        ({"name": "old", "steps": [1]}, "fails"),
        ({"name": "old", "steps": [1]}, "hangs"),
        ({"name": "old", "steps": [1]}, "no owner"),
        ([1, 2], None),
        ("text", "memory"),
        (7, None),
        ({}, None),
        ({"name": 3}, None),
        ({"name": "old", "subtasks": []}, None),
    ],
)
async def test_a_plan_of_another_shape_is_set_aside(saved: Any, storage: Any, caplog, monkeypatch):
    class Failing(PlanStorageBase):
        async def add_plan(self, plan: Plan) -> None:
            if storage == "hangs":
                await anyio.sleep_forever()
            raise OSError("canary-7")

    monkeypatch.setattr("agentrt_middleware.plan.layer._MAX_STORAGE_SECONDS", 0.05)
    stores: dict[Any, PlanStorageBase] = {"memory": InMemoryPlanStorage(), "fails": Failing(), "hangs": Failing()}
    notebook = PlanNotebook(storage=stores.get(storage), owner=deps_of if storage == "no owner" else "ann")
    state = AgentState(middleware_data={"plan": {"plan": saved}})
    agent = agent_with(notebook, "Hello.", "Again.", state=reloaded(state))
    with caplog.at_level(logging.WARNING, "agentrt"):
        assert (await agent.reply("Hi.")).get_text_content() == "Hello."
        await agent.reply("Hi.")
    assert caplog.text.count("what the state keeps as 'plan' is not a plan of this version") == 1
    assert "canary-7" not in caplog.text
    assert notebook.plan_of(agent) is None
    kept = await stores["memory"].get_plans() if storage == "memory" else agent.state.middleware_data["plan"]["history"]
    plan = kept[0] if storage == "memory" else Plan(**{**kept[0], "subtasks": []})
    assert json.loads(plan.description) == saved
    assert plan.state == "abandoned"


@pytest.mark.parametrize("history", ["x", {"a": 1}, [3, {"id": "1", "name": 5}]])
async def test_former_plans_of_another_shape_hide_no_others(history: Any):
    state = AgentState(middleware_data={"plan": {"plan": {"name": "old"}, "history": history}})
    over = call("finish_plan", state="done", outcome="x")
    agent, results = await play(PlanNotebook(), create("a"), over, call("view_historical_plans"), state=reloaded(state))
    assert "Plan 'old'" in results[2]
    assert "Plan 'trip'" in results[2]
    # What cannot be read may be of a later version, which finds it again.
    kept = agent.state.middleware_data["plan"]["history"]
    assert len(kept) == (4 if isinstance(history, list) else 2)


async def test_a_call_of_a_resumed_reply_finds_what_was_set_aside():
    look = "view_historical_plans"
    rules = PermissionContext(rules=[PermissionRule(look, behavior=PermissionBehavior.ASK)])
    agent = agent_with(PlanNotebook(), call(look), "ok", state=AgentState(permission_context=rules))
    await agent.reply("Go.")
    agent.state.middleware_data["plan"]["plan"] = {"name": "old", "subtasks": []}
    other = agent_with(PlanNotebook(), "ok", state=reloaded(agent.state))
    answer = confirmation_of(other)  # type: ignore[list-item]
    items = await items_of(other, answer)
    assert "Plan 'old'" in results_of(other.state.context[-1])[0].text
    assert updates_of(items) == [None]


async def test_conversations_share_a_storage_and_not_their_plans(tmp_path):
    notebook = PlanNotebook(storage=SQLitePlanStorage(tmp_path / "plans.db"))
    over = call("finish_plan", state="done", outcome="secret")
    agent, results = await play(notebook, create("a"), over)
    plan_id = results[1].rsplit(" ", 1)[1].rstrip(".")
    look = call("view_historical_plans"), call("recover_historical_plan", plan_id=plan_id)
    _, of_another = await play(notebook, *look)
    assert of_another[0] == "success: No former plans were found."
    assert of_another[1].startswith("error: no former plan has the id")
    _, of_the_same = await play(notebook, *look, state=reloaded(agent.state))
    assert "secret" in of_the_same[0]
    assert of_the_same[1].startswith("success")


async def test_an_owner_has_plans_in_several_conversations():
    storage = InMemoryPlanStorage()
    users = {"one": "ann", "two": "ann", "three": "bob"}
    notebook = PlanNotebook(storage=storage, owner=lambda agent: users[agent.state.session_id])
    over = call("finish_plan", state="done", outcome="x")
    texts = {}
    for session in users:
        state = AgentState(session_id=session)
        _, results = await play(
            notebook, call("view_historical_plans"), create(session, plan=session), over, state=state
        )
        texts[session] = results[0]
    assert "Plan 'one'" in texts["two"]
    assert texts["three"] == "success: No former plans were found."


async def test_owner_with_half_a_character_breaks_no_reply():
    agent, results = await play(PlanNotebook(owner=lambda agent: "ann\ud83d"), create("a"))
    assert results[0].startswith("error")
    await InMemoryStateStore().save(agent.state)


async def test_a_plan_taken_up_twice_loses_neither_outcome():
    storage = InMemoryPlanStorage()
    notebook = PlanNotebook(storage=storage, owner="ann")
    await play(notebook, create("a"), call("finish_plan", state="abandoned", outcome="later"))
    [former] = await storage.get_plans()
    recover = call("recover_historical_plan", plan_id=former.id)
    states = [AgentState(session_id=session) for session in ("one", "two")]
    for state in states:
        await play(notebook, recover, finish(0, state.session_id), state=state)
    for state in states:
        await play(notebook, call("finish_plan", state="done", outcome=""), state=state)
    plans = await storage.get_plans()
    assert [plan.subtasks[0].outcome for plan in plans] == ["one", "two"]
    assert plans[0].id == former.id != plans[1].id


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
async def test_a_plan_put_away_twice_at_once_loses_neither(kind, tmp_path, monkeypatch):
    storage = InMemoryPlanStorage() if kind == "memory" else SQLitePlanStorage(tmp_path / "plans.db")
    looks, both_looked, get_plan = [], anyio.Event(), storage.get_plan

    async def look(plan_id: str) -> Plan | None:
        looks.append(await get_plan(plan_id))
        if len(looks) == 2:
            both_looked.set()
        await both_looked.wait()
        return looks[0]

    monkeypatch.setattr(storage, "get_plan", look)
    notebook = PlanNotebook(storage=storage, owner="ann")
    former = Plan("a", subtasks=[SubTask("s")], owner="ann")
    await storage.add_plan(former)
    calls = [call("recover_historical_plan", plan_id=former.id), call("finish_plan", state="done", outcome="")]
    async with anyio.create_task_group() as group:
        for session in ("one", "two"):
            group.start_soon(partial(play, notebook, calls[0], finish(0, session), calls[1]))
    plans = await storage.get_plans()
    assert sorted(plan.subtasks[0].outcome for plan in plans) == ["one", "two"]
    assert former.id in {plan.id for plan in plans}


async def test_conversations_may_give_replies_the_same_id():
    storage = InMemoryPlanStorage()
    for owner in ("ann", "bob"):
        for _ in range(2):
            script = create("a"), call("finish_plan", state="done", outcome="x"), "ok"
            await agent_with(PlanNotebook(storage=storage, owner=owner), *script).reply("Go.", reply_id="turn-1")
    assert [plan.owner for plan in await storage.get_plans()] == ["ann", "ann", "bob", "bob"]


async def test_a_storage_that_fails_leaves_the_plan_as_it_was():
    class Failing(PlanStorageBase):
        async def add_plan(self, plan: Plan) -> None:
            raise OSError("disk full")

    notebook = PlanNotebook(storage=Failing())
    agent, results = await play(notebook, create("a"), call("finish_plan", state="done", outcome="x"), create("b"))
    assert [result.split(":")[0] for result in results] == ["success", "error", "error"]
    plan = notebook.plan_of(agent)
    assert (plan.state, plan.subtasks[0].name) == ("todo", "a")


async def test_one_notebook_serves_many_conversations(notebook):
    agent = agent_with(notebook, create("a"), "ok", create("b"), "ok")
    other = agent.with_state(AgentState())
    await agent.reply("Go.")
    assert notebook.plan_of(other) is None
    await other.reply("Go.")
    assert [notebook.plan_of(each).subtasks[0].name for each in (agent, other)] == ["a", "b"]  # type: ignore[union-attr]


async def test_a_list_of_todos_takes_over_a_plan():
    agent, _ = await play(PlanNotebook(), create("a", "b"))
    other = agent_with(TodoMiddleware(), "ok", state=reloaded(agent.state))
    await other.reply("Go.")
    assert "- [ ] b (id: 2)" in str(hint_of(other.model.calls[0].messages))  # type: ignore[attr-defined]


@pytest.mark.slow
async def test_a_fault_anywhere_leaves_a_valid_conversation():
    def make_agent(log: ToolLog) -> Agent:
        model = ScriptedChatModel([[create("a", "b")], [start(0)], [finish(0)], "Done.", "Done."])
        return Agent("a", "", model, Toolkit(), [PlanNotebook()], state_store=InMemoryStateStore())

    await check_every_suspension(make_agent, ["Go."], at_least=10)


# How it is built.


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"max_subtasks": 0}, "max_subtasks=...) must be a whole number above 0"),
        ({"max_subtasks": True}, "max_subtasks=...) must be a whole number"),
        ({"max_subtasks": 2.5}, "must be a whole number"),
        ({"max_subtasks": float("nan")}, "must be a whole number"),
        ({"plan_to_hint": "text"}, "plan_to_hint=...) has 'text', which is not callable: write a function (plan)"),
        ({"plan_to_hint": DefaultPlanToHint}, "has the class DefaultPlanToHint: make an instance of it"),
        ({"plan_to_hint": play}, "must be a plain function, not play, which is `async`"),
        ({"storage": {}}, "storage=...) must be a PlanStorageBase"),
        ({"storage": SQLitePlanStorage}, "storage=...) must be a PlanStorageBase"),
        ({"owner": ""}, "owner=...) must be a str, or a function"),
        ({"owner": 7}, "owner=...) must be a str, or a function"),
        ({"owner": "ann\ud83d"}, "owner=...) must be a str, or a function"),
        ({"owner": lambda: "ann"}, "which must be a function (agent)"),
        ({"group": ""}, "cannot be the name of a group"),
        ({"group": "a b"}, "cannot be the name of a group"),
    ],
)
def test_a_wrong_option_is_refused(options: dict[str, Any], words: str):
    with pytest.raises(ConfigError) as caught:
        PlanNotebook(**options)
    assert words in str(caught.value)


def test_a_notebook_and_todos_together_are_refused():
    with pytest.raises(MiddlewareConfigError, match="keep one of them, or give one another key"):
        Agent("a", model="rules", middlewares=[PlanNotebook(), TodoMiddleware()])


def test_what_must_see_the_request_as_it_is_sent_stands_inside():
    Agent("a", model="rules", middlewares=[TracingMiddleware(), PlanNotebook(), RedactionMiddleware()])
    with pytest.raises(MiddlewareConfigError, match="PlanNotebook must wrap RedactionMiddleware"):
        Agent("a", model="rules", middlewares=[RedactionMiddleware(), PlanNotebook()])


async def test_a_redaction_inside_covers_the_hint():
    model = ScriptedChatModel([[create("write to ann@example.com")], "ok"])
    agent = Agent("a", model=model, middlewares=[PlanNotebook(), RedactionMiddleware()])
    await agent.reply("Go.")
    assert "ann@example.com" not in str(hint_of(model.calls[1].messages))


async def test_a_program_makes_a_plan_and_works_on_it(notebook):
    heard: list[str | None] = []
    notebook.register_plan_change_hook("hear", lambda _, plan: heard.append(plan and plan.name))
    agent = Agent("tester", model=ScriptedChatModel([]), middlewares=[notebook])
    plan = notebook.of(agent)
    steps: list[Any] = [SubTask("one", "Do it.", "It."), {"name": "two", "description": "", "expected_outcome": ""}]
    assert (await plan.create_plan("Work", "Two steps.", "Both.", steps)).state == "success"
    assert (await plan.finish_subtask(1, "Too early.")).state == "error"
    assert (await plan.update_subtask_state(0, "in_progress")).state == "success"
    assert "one" in (await plan.view_subtasks([0])).text
    hint = await plan.get_current_hint()
    assert "one" in hint.get_content_blocks("hint")[0].hint
    assert (await plan.finish_subtask(0, "Done.")).state == "success"
    assert (await plan.revise_current_plan(1, "delete")).state == "success"
    assert (await plan.finish_plan("done", "All of it.")).state == "success"
    assert (plan.current_plan, notebook.plan_of(agent)) == (None, None)
    assert "Work" in (await plan.view_historical_plans()).text
    assert heard == ["Work"] * 4 + [None]


def test_a_call_of_the_notebook_itself_says_what_to_write():
    with pytest.raises(AttributeError, match=r"write notebook\.of\(agent\)\.create_plan"):
        PlanNotebook().create_plan  # type: ignore[attr-defined]  # noqa: B018  # as 1.x has it
