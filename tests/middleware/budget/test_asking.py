"""Budgets that ask: the question waits, in this process or another one, and the answer decides."""

import json
from pathlib import Path
from typing import Any

import pytest

from agentrt import Agent, AgentState
from agentrt.agent import ContextConfig
from agentrt.message import AssistantMsg, UserMsg
from agentrt.middleware import Budget, BudgetMiddleware, GuardrailMiddleware, Judge
from agentrt.model import ScriptedChatModel
from agentrt.permission import PermissionMode
from agentrt.state import FileStateStore
from tests.agent.delegation.helpers import agent_of as child_of
from tests.loop.helpers import add, agent_of, call, elsewhere
from tests.middleware.budget import parked_process
from tests.middleware.budget.helpers import answer, calling, requests, result_states
from tests.middleware.budget.parked_process import make_agent
from tests.middleware.question.layers import answer_to, assert_no_model_saw, question_of
from tests.program_runner import ProgramRunner

ENDLESS = [calling(60, number) for number in range(9)]
SCOPES: list[dict[str, Any]] = [
    {"reply": Budget(tokens=100)},
    {"conversation": Budget(tokens=100)},
    {"owner": Budget(tokens=100, per="day"), "owner_id": "ann"},
    {"reply": Budget(model_calls=2)},
    {"reply": Budget(tool_calls=1)},
]


def asking(script: list[Any], **options: Any) -> Agent:
    return agent_of(script, add, middlewares=[BudgetMiddleware(on_exceed="ask", **options)])


def asked_values(agent: Agent) -> dict[str, Any]:
    [block] = question_of(agent).tool_calls
    assert block.name == "raise_budget"
    values: dict[str, Any] = json.loads(block.input)
    return values


@pytest.mark.parametrize("options", SCOPES, ids=lambda options: next(iter(options)))
@pytest.mark.parametrize("in_other_process", [False, True])
async def test_a_yes_adds_to_the_limit_and_a_no_stops(options: dict[str, Any], in_other_process: bool) -> None:
    agent = asking(list(ENDLESS), **options)
    scope, budget = next(iter(options.items()))
    [(counter, limit)] = budget.limits.items()
    message = await agent.reply("go")
    before = requests(agent)
    assert message.finished_reason is None
    assert asked_values(agent) == {"scope": scope, "counter": counter, "amount": limit}
    if in_other_process:
        agent = elsewhere(agent)
    await agent.reply(answer_to(agent, True))
    after = requests(agent)
    assert after > before
    message = await agent.reply(answer_to(agent, False))
    assert message.finished_reason == "exceed_budget"
    assert agent.waiting() is None
    assert requests(agent) == after
    assert_no_model_saw(agent)


async def test_the_user_may_say_how_much() -> None:
    agent = asking(list(ENDLESS), conversation=Budget(model_calls=1))
    await agent.reply("go")
    values = {**asked_values(agent), "amount": 4}
    await agent.reply(answer_to(agent, True, json.dumps(values)))
    assert requests(agent) == 5
    assert asked_values(agent)["amount"] == 1


@pytest.mark.parametrize("amount", [0, -5, 1e300, 1])
async def test_an_amount_that_helps_nothing_is_asked_about_again(amount: float) -> None:
    agent = asking([answer(500), "never"], conversation=Budget(tokens=100))
    await agent.reply("go")
    await agent.reply("go on")
    values = {**asked_values(agent), "amount": amount}
    await agent.reply(answer_to(agent, True, json.dumps(values)))
    assert requests(agent) == 1
    # As much as it takes, in steps of the limit.
    assert asked_values(agent)["amount"] == (500 if amount != 1 else 400)


async def test_a_limit_that_was_far_exceeded_is_asked_about_once() -> None:
    agent = asking([answer(350), answer(1)], conversation=Budget(tokens=100), raise_by=0.5)
    await agent.reply("go")
    await agent.reply("go on")
    assert asked_values(agent)["amount"] == 300
    assert (await agent.reply(answer_to(agent, True))).finished_reason == "completed"


async def test_where_nobody_can_be_asked_the_reply_stops() -> None:
    agent = asking(list(ENDLESS), reply=Budget(model_calls=2))
    agent.state.permission_context.mode = PermissionMode.DONT_ASK
    assert (await agent.reply("go")).finished_reason == "exceed_budget"
    assert requests(agent) == 2


@pytest.mark.parametrize("mode", [PermissionMode.BYPASS, PermissionMode.EXPLORE])
async def test_every_other_mode_asks(mode: PermissionMode) -> None:
    agent = asking([answer(100), answer(1)], conversation=Budget(tokens=100))
    agent.state.permission_context.mode = mode
    await agent.reply("go")
    await agent.reply("go on")
    assert (await agent.reply(answer_to(agent, True))).finished_reason == "completed"


async def test_calls_side_by_side_ask_and_one_yes_may_be_enough() -> None:
    agent = asking([calling(1, 1, 2, 3), answer(1)], reply=Budget(tool_calls=1), raise_by=5)
    await agent.reply("go")
    assert len(question_of(agent).tool_calls) == 2
    assert (await agent.reply(answer_to(agent, True))).finished_reason == "completed"
    assert result_states(agent) == ["success"] * 3
    spent = agent.state_of(agent.middlewares[0])["reply"]
    assert (spent["tool_calls"], spent["raised_tool_calls"]) == (3, 5)


async def test_a_question_is_no_call_of_a_tool() -> None:
    agent = asking([calling(60, 1), calling(60, 2), answer(1)], reply=Budget(tokens=100, tool_calls=2))
    await agent.reply("go")
    assert (await agent.reply(answer_to(agent, True))).finished_reason == "completed"
    assert agent.state_of(agent.middlewares[0])["reply"]["tool_calls"] == 2


async def test_a_judge_that_may_not_be_asked_stops_the_reply() -> None:
    judge = ScriptedChatModel([], model="judge")
    budget = BudgetMiddleware(conversation=Budget(tokens=5), on_exceed="ask")
    agent = agent_of([answer(5)], middlewares=[GuardrailMiddleware(output=[Judge(judge, "Is it rude?")]), budget])
    assert (await agent.reply("go")).finished_reason == "exceed_budget"
    assert judge.calls == []


async def test_a_history_is_shortened_once_the_user_has_said_yes() -> None:
    state = AgentState(context=[UserMsg("user", "x" * 4_000), AssistantMsg("tester", "y" * 4_000)] * 2)
    budget = BudgetMiddleware(conversation=Budget(tokens=1_000), on_exceed="ask")
    agent = agent_of([answer(50), answer(5)], middlewares=[budget], state=state)
    agent.model.context_size = 3_000
    agent.context_config = ContextConfig(trigger_ratio=0.5, reserve_ratio=0.2)
    agent.state.middleware_data["BudgetMiddleware"] = {"conversation": {"tokens": 1_000}}
    await agent.reply("go")
    assert (agent.state.summary, requests(agent)) == ("", 0)
    assert (await agent.reply(answer_to(agent, True))).finished_reason == "completed"
    assert agent.state.summary


async def test_a_sub_agent_ends_and_the_boss_asks() -> None:
    writer = child_of("writer", [answer(60, content=[call("w1", "add", a=1, b=2)]), answer(1)], add)
    budget = BudgetMiddleware(reply=Budget(tokens=100), on_exceed="ask")
    script = [answer(60, content=[call("1", "writer", query="go")]), answer(1)]
    boss = child_of("boss", script, writer.as_tool("Writes."), middlewares=[budget])
    await boss.reply("go")
    assert asked_values(boss) == {"scope": "reply", "counter": "tokens", "amount": 100}
    assert (await boss.reply(answer_to(boss, True))).finished_reason == "completed"


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
async def test_a_question_outlives_its_process(backend: str, tmp_path: Path, program_runner: ProgramRunner) -> None:
    done = program_runner.run(Path(parked_process.__file__), str(tmp_path), backend)
    assert done.returncode == -9, done.stderr
    agent = make_agent(str(tmp_path), 50)
    state = await FileStateStore(tmp_path).load("parked")
    assert state is not None
    agent = agent.with_state(state)
    assert asked_values(agent) == {"scope": "conversation", "counter": "tokens", "amount": 100}
    message = await agent.reply(answer_to(agent, True))
    assert message.finished_reason == "completed"
    spent = agent.state_of(agent.middlewares[0])
    assert (spent["conversation"]["raised_tokens"], spent["reply"]["tool_calls"]) == (100, 3)
    assert spent["reply"]["seconds"] < 30
