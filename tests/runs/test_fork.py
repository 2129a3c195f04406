"""A fork continues from a step: nothing before it runs twice, and it shares nothing with the record."""

from collections import Counter
from itertools import repeat
from typing import Any

import pytest

from agentrt import Agent, MiddlewareBase, Toolkit
from agentrt.errors import ResumeError, UsageError
from agentrt.event import ConfirmResult, RequireUserConfirmEvent, UserConfirmResultEvent
from agentrt.message import UserMsg
from agentrt.model import ScriptedChatModel
from agentrt.runs import Run, RunRecorder, Step
from agentrt.state import AgentState, InMemoryStateStore
from agentrt.tool import FunctionTool, ToolBase, ToolContext
from agentrt.types import ToolResponse
from tests.loop.helpers import confirmation_of
from tests.runs.conftest import call, find, make_agent

_COUNT = 10


class Counts(MiddlewareBase):
    """Counts the models and the tools that it sees, and keeps the number of tools with the conversation."""

    inherited = True

    def __init__(self) -> None:
        self.seen: Counter[str] = Counter()

    async def on_model_call(self, agent, input_kwargs, next_handler):
        self.seen[f"model of {agent.name}"] += 1
        return await next_handler()

    async def on_acting(self, agent, input_kwargs, next_handler):
        self.seen[f"tool {input_kwargs['tool_call'].input}"] += 1
        data = agent.state_of(self)
        data["tools"] = data.get("tools", 0) + 1
        async for item in next_handler():
            yield item


class World:
    """A supervisor whose tools pay, by itself or by a sub-agent, and what was paid."""

    def __init__(self, store: Any, has_child: bool) -> None:
        self.paid: list[str] = []
        self.counts = Counts()
        pay = FunctionTool(self.pay)
        tool: Any = pay
        if has_child:
            tool = Agent("payer", "You pay.", ScriptedChatModel(repeat(self.answer_of_child)), [pay]).as_tool(
                "Pays.", name="pay_all"
            )
        layers = [self.counts, RunRecorder(store)]
        self.agent = Agent("boss", "You plan.", ScriptedChatModel(repeat(self.answer)), [tool], layers)
        self.name = "pay_all" if has_child else "pay"

    async def pay(self, query: str) -> str:
        self.paid.append(query)
        return f"paid {query}"

    def answer(self, messages: Any, tools: Any) -> Any:
        done = sum(len(message.get_content_blocks("tool_result")) for message in messages)
        if done < _COUNT:
            return [call(f"c{done}", self.name, f'{{"query": "{done}"}}')]
        return f"{done} are paid"

    def answer_of_child(self, messages: Any, tools: Any) -> Any:
        if any(message.get_content_blocks("tool_result") for message in messages):
            return "paid"
        return [call("p", "pay", f'{{"query": "{messages[-1].get_text_content()}"}}')]


async def record(world: World, store: Any) -> Run:
    state = AgentState(session_id="s1")
    message = await world.agent.with_state(state).reply("Pay all", reply_id="r1")
    assert message.get_text_content() == "10 are paid"
    return await store.runs.load("s1")


@pytest.mark.parametrize("has_child", [False, True])
async def test_nothing_before_a_step_runs_twice(store: InMemoryStateStore, has_child: bool):
    """Law 1: from each step of ten calls, each effect is there once, and all data of layers are as they were."""
    world = World(store, has_child)
    run = await record(world, store)
    once, seen = [str(number) for number in range(_COUNT)], Counter(world.counts.seen)
    lines = run.lines
    assert (len(run.steps), world.paid) == (32, once)
    for step in run.steps:
        world.paid.clear()
        world.counts.seen.clear()
        before = run.state_at(step.number)
        done = len(before.reply_context.message.get_content_blocks("tool_result"))
        fork = run.fork(world.agent, step, effects="run")
        assert fork.state.middleware_data == before.middleware_data
        answer = await fork.reply(None)
        assert answer.get_text_content() == "10 are paid"
        assert world.paid == once[done:]
        # The model is asked once for each step before a call of it that is not before the point.
        asked = sum(other.kind == "model" for other in run.steps[step.number :])
        assert world.counts.seen["model of boss"] == asked
        assert not world.counts.seen - seen
        assert fork.state.middleware_data["Counts"] == {"tools": _COUNT}
    assert (await store.runs.load("s1")).lines == lines
    assert (await store.runs.verify("s1")).ok


async def test_a_fork_is_a_conversation_of_its_own(store: InMemoryStateStore):
    world = World(store, has_child=False)
    run = await record(world, store)
    fork = run.fork(world.agent, run.steps[5], session_id="s2", effects="run")
    assert (fork.state.session_id, fork.state.labels) == ("s2", {"forked_from": "s1/r1/5"})
    await fork.observe(UserMsg("user", "Hurry"))
    await fork.reply(None)
    other = await store.runs.load("s2")
    assert (other.reply_id != "r1", other.status, other.labels) == (True, "completed", {"forked_from": "s1/r1/5"})
    assert min(event.seq for event in other.events) > run.steps[5].seq
    # The number of an event stands for the last step at it or before it.
    for at in (run.steps[5].seq, run.steps[6].seq - 1):
        assert run.fork(world.agent, at).state.labels["forked_from"] == "s1/r1/5"


async def test_a_step_within_a_sub_agent_forks_that_run(store: InMemoryStateStore):
    world = World(store, has_child=True)
    run = await record(world, store)
    child, payer = run.children[3], world.agent.toolkit.get("pay_all").agent
    for step in child.steps:
        world.paid.clear()
        await child.fork(payer, step, effects="run").reply(None)
        assert world.paid == (["3"] if step.number < 2 else [])


async def test_effects_ask_first_also_in_sub_agents(store: InMemoryStateStore):
    """In every mode, and for a tool that is not read-only alone."""
    world = World(store, has_child=True)
    run = await record(world, store)
    world.paid.clear()
    fork = run.fork(world.agent, run.steps[-5])  # before the last call
    assert "ForkedEffects" in fork.explain()
    await fork.reply(None)
    asked: list[str] = []
    while (question := fork.waiting()) is not None:
        assert world.paid == []
        asked += [one.name for one in question.tool_calls]
        await fork.reply(confirmation_of(fork))
    assert (asked, world.paid) == (["pay_all", "pay"], ["9"])
    reader = make_agent(store, tools=[FunctionTool(find, is_read_only=True)])
    await reader.reply("Find it")
    fork = (await store.runs.load(reader.state.session_id)).fork(reader, 2)
    fork.model = ScriptedChatModel([[call("c1")], "found"])
    assert (await fork.reply(None)).get_text_content() == "found"


async def test_effects_of_the_record_answer_the_same_call_once(store: InMemoryStateStore):
    world = World(store, has_child=False)
    run = await record(world, store)
    world.paid.clear()
    fork = run.fork(world.agent, run.steps[8], effects="record")
    assert (await fork.reply(None)).get_text_content() == "10 are paid"
    assert world.paid == []
    results = fork.state.context[-1].get_content_blocks("tool_result")
    assert [block.text for block in results] == [f"paid {number}" for number in range(_COUNT)]
    again = run.fork(world.agent, run.steps[-5], effects="record")  # before the last call
    again.model = ScriptedChatModel([[call(name, "pay", '{"query": "9"}')] for name in "xy"])
    await again.reply(None)
    assert ([one.id for one in again.waiting().tool_calls], world.paid) == (["y"], [])


@pytest.mark.parametrize("in_child", [False, True])
async def test_a_question_is_asked_anew_in_a_fork(store: InMemoryStateStore, in_child: bool):
    """Law 5: no answer to the question of the record is taken, and the record stays as it was."""
    paid: list[str] = []

    async def pay() -> str:
        paid.append("x")
        return "paid"

    tool: Any = FunctionTool(pay, ask=True)
    first = [[call("c1", "pay", "{}")], "done", "done"]
    if in_child:
        tool = Agent("payer", "", ScriptedChatModel(first), [tool]).as_tool("Pays.")
        first = [[call("c1", "payer", '{"query": "go"}')], "done", "done"]
    agent = make_agent(store, script=first, tools=[tool])
    await agent.reply("Go", reply_id="r1")
    old = agent.waiting()
    await store.runs.flush()
    run = await store.runs.load(agent.state.session_id)
    fork = run.fork(agent, run.steps[-1], effects="run")
    question = fork.waiting()
    assert question.reply_id != "r1"
    with pytest.raises(ResumeError):
        await fork.reply(UserConfirmResultEvent("r1", [ConfirmResult(True, one) for one in old.tool_calls]))
    await fork.reply(UserConfirmResultEvent(question.reply_id, [ConfirmResult(True, question.tool_calls[0])]))
    assert paid == ["x"]
    of_record = await store.runs.list(session_id=run.session_id)
    assert [info.status for info in of_record.runs] == ["waiting"]
    after = await store.runs.load(run.session_id)
    assert [child.lines for child in after.children] == [child.lines for child in run.children]
    forked = await store.runs.load(fork.state.session_id)
    assert [child.status for child in forked.children] == (["completed"] if in_child else [])


async def test_forks_that_cannot_be_are_refused(store: InMemoryStateStore):
    agent = make_agent(store)
    await agent.reply("Find it", reply_id="r1")
    run = await store.runs.load(agent.state.session_id)
    refused: list[tuple[str, Any, Any, dict[str, Any]]] = [
        ("before the first step .*: its first step is at event 2", agent, 1, {}),
        ("must be one of the steps", agent, Step(0, "model", 99), {}),
        ("must be one of the steps", agent, True, {}),
        ("must be an Agent", "agent", 2, {}),
        ("has called find before that step, and agent 'finder' has no such tool", make_agent(store, tools=[]), 9, {}),
        ("session_id=...\\) must be a new session id", agent, 2, {"session_id": run.session_id}),
        ("effects=...\\) must be", agent, 2, {"effects": "no"}),
    ]
    for words, other, at, options in refused:
        with pytest.raises(UsageError, match=words):
            run.fork(other, at, **options)
    run.fork(make_agent(store, tools=[]), 2)  # before the call, any tools do
    bare = make_agent(store, content=False)
    await bare.reply("Find it")
    without = await store.runs.load(bare.state.session_id)
    with pytest.raises(UsageError, match="recorded without content"):
        without.fork(bare, 2)


class Runs(ToolBase):
    """Run one call of its own tool."""

    name = "run"
    is_resumable = True

    def __init__(self, tool: ToolBase) -> None:
        self.inner_toolkit = Toolkit([tool])

    async def call(self, context: ToolContext) -> ToolResponse:
        return await context.call("pay", {"query": "1"})


@pytest.mark.parametrize("is_read_only", [False, True])
async def test_the_record_answers_no_call_of_another_tool_of_that_name(store: InMemoryStateStore, is_read_only: bool):
    paid: list[str] = []

    def named(place: str, is_read_only: bool) -> FunctionTool:
        async def pay(query: str) -> None:
            paid.append(place)

        return FunctionTool(pay, is_read_only=is_read_only)

    tools = [named("outside", is_read_only), Runs(named("inside", False))]
    agent = make_agent(store, script=[[call("c1", "pay", '{"query": "1"}')], "Paid."], tools=tools)
    await agent.reply("Pay")
    await store.runs.flush()
    run = await store.runs.load(agent.state.session_id)
    agent = make_agent(store, script=[[call("c2", "run", "{}")], "Paid."], tools=tools)
    fork = run.fork(agent, 2, effects="record")
    await fork.reply(None)
    question = fork.waiting()
    assert isinstance(question, RequireUserConfirmEvent)
    await fork.reply(question.approve())
    question = fork.waiting()
    assert isinstance(question, RequireUserConfirmEvent)
    assert [one.id for one in question.tool_calls] == ["c2/1"]
    assert paid == ["outside"]
    await fork.reply(question.approve())
    assert paid == ["outside", "inside"]


async def test_the_record_answers_calls_inside_of_one_in_progress(store: InMemoryStateStore):
    paid: list[str] = []

    async def pay(query: str) -> str:
        paid.append(query)
        return f"paid {query}"

    async def work(context: ToolContext) -> ToolResponse:
        first = await context.call("pay", {"query": "1"})
        return first if first.waits else await context.call("pay", {"query": first.text})

    def approve(agent: Agent) -> UserConfirmResultEvent:
        question = agent.waiting()
        assert isinstance(question, RequireUserConfirmEvent)
        return question.approve()

    tools = [FunctionTool(work, is_resumable=True), FunctionTool(pay, ask=True)]
    agent = make_agent(store, script=[[call("c", "work", "{}")], "Paid."], tools=tools)
    await agent.reply("Pay")
    await agent.reply(approve(agent))
    await agent.reply(approve(agent))
    run = await store.runs.load(agent.state.session_id)
    asked = next(step for step in run.steps if step.kind == "question")
    fork, denied = (
        run.fork(make_agent(store, script=["Paid."], tools=tools), asked, effects="record") for _ in range(2)
    )
    await fork.reply(approve(fork))
    await fork.reply(approve(fork))
    [result] = fork.state.context[-1].get_content_blocks("tool_result")
    assert (result.text, paid) == ("paid paid 1", ["1", "paid 1"])
    question = denied.waiting()
    assert isinstance(question, RequireUserConfirmEvent)
    await denied.reply(question.deny())
    question = denied.waiting()  # about what the tool does now, which is not in the record
    assert isinstance(question, RequireUserConfirmEvent)
    assert "denied" in question.tool_calls[0].input
