"""A replay runs an agent with recorded answers: the same stack differs nowhere, and another one where it does."""

import json
from dataclasses import replace
from typing import Any

import anyio
import pytest
from pydantic import BaseModel

from agentrt import Agent, AgentState, MiddlewareBase, Toolkit
from agentrt.errors import ModelError, UsageError
from agentrt.event import ExternalExecutionResultEvent, RequireUserConfirmEvent
from agentrt.message import HintBlock, TextBlock, ToolResultBlock, UserMsg
from agentrt.middleware import (
    Budget,
    BudgetMiddleware,
    CacheMiddleware,
    CircuitBreakerMiddleware,
    InformationFlowMiddleware,
    RateLimitMiddleware,
    RetryMiddleware,
)
from agentrt.model import ScriptedChatModel
from agentrt.runs import Run, RunRecorder
from agentrt.state import InMemoryStateStore
from agentrt.tool import FunctionTool, ToolBase, ToolContext, ToolGroup
from agentrt.types import STRUCTURED_OUTPUT, PermissionBehavior, PermissionDecision, ToolResponse
from tests.loop.helpers import confirmation_of
from tests.runs.conftest import call, find, make_agent
from tests.runs.test_fork import World, record


class Note(MiddlewareBase):
    """Adds a note to each request after the first."""

    rewrites = ("history",)
    inherited = False

    async def on_model_call(self, agent, input_kwargs, next_handler):
        messages = input_kwargs["messages"]
        if len(messages) > 2:
            messages = [*messages, UserMsg("note", [HintBlock("Be brief.")])]
        return await next_handler(messages=messages)


class Shorten(MiddlewareBase):
    inherited = True

    async def on_acting(self, agent, input_kwargs, next_handler):
        async for item in next_handler():
            yield replace(item, content=[TextBlock(f"{item.text[:5]}...")])


class Other(MiddlewareBase):
    inherited = True

    async def on_acting(self, agent, input_kwargs, next_handler):
        made = input_kwargs["tool_call"]
        changed = replace(made, input='{"query": "7"}') if "query" in made.input else made
        async for item in next_handler(tool_call=changed):
            yield item


class Deny(MiddlewareBase):
    inherited = True

    async def on_check_permission(self, agent, input_kwargs, next_handler):
        await next_handler()
        return PermissionDecision(PermissionBehavior.DENY, "no")


class DenyInside(MiddlewareBase):
    """Denies the calls that tools make."""

    inherited = True

    async def on_check_permission(self, agent, input_kwargs, next_handler):
        decision = await next_handler()
        is_inside = "/" in input_kwargs["tool_call"].id
        return PermissionDecision(PermissionBehavior.DENY, "no") if is_inside else decision


class Stamp(MiddlewareBase):
    """Ends the prompt with the time and an id, both of the runtime."""

    inherited = True

    async def on_system_prompt(self, agent, current_prompt):
        return f"{current_prompt} {agent.run.id} {agent.run.new_id()} {agent.run.now() // 10**12}"


async def check_same(run: Run, agent: Agent) -> None:
    for after in ("stop", "keep"):
        replay = await run.replay(agent, after=after)
        assert [str(one) for one in replay.differences] == []
        assert (replay.first, replay.finished) == (None, True)


@pytest.mark.parametrize("has_child", [False, True])
async def test_the_same_stack_replays_without_a_difference(store: InMemoryStateStore, has_child: bool):
    """Law 3: and no tool runs, and no model, and nothing is added to the record."""
    world = World(store, has_child)
    run = await record(world, store)
    world.paid.clear()
    world.agent.model.calls.clear()
    await check_same(run, world.agent)
    assert (world.paid, world.agent.model.calls) == ([], [])
    message = (await run.replay(world.agent)).message
    assert message.get_text_content() == "10 are paid"
    assert len((await store.runs.list(session_id="s1")).runs) == 1
    assert (await store.runs.verify("s1")).ok


@pytest.mark.parametrize("is_streamed", [False, True])
async def test_layers_that_change_everything_replay_as_they_were(store: InMemoryStateStore, is_streamed: bool):
    model = ScriptedChatModel([[call("c1")], "It is there."], stream=is_streamed)
    layers = [RunRecorder(store), Stamp(), Shorten(), Note(), Other()]
    agent = Agent("finder", "You find.", model, [find], layers)
    if is_streamed:
        async with agent.reply_stream("Find it") as events:
            async for _ in events:
                pass
    else:
        await agent.reply("Find it")
    run = await store.runs.load(agent.state.session_id)
    await check_same(run, agent)
    [difference] = (await run.replay(agent.without(Shorten))).differences
    assert (difference.step.kind, difference.where, difference.layer) == ("answer", "result", "Shorten")


async def test_a_planted_note_is_found_at_its_step(store: InMemoryStateStore):
    world = World(store, has_child=False)
    run = await record(world, store)
    planted = world.agent.with_middlewares([*world.agent.middlewares, Note()])
    replay = await run.replay(planted)
    assert (replay.first.where, replay.first.layer, replay.finished) == ("messages[3]", "Note", False)
    assert (replay.first.step, replay.first.before, replay.first.after.name) == (run.steps[3], None, "note")
    # Also in the other direction.
    other = planted.with_state(AgentState(session_id="s2"))
    await other.reply("Pay all")
    noted = await store.runs.load("s2")
    first = (await noted.replay(world.agent)).first
    assert (first.where, first.layer, first.after, first.step) == ("messages[3]", "Note", None, noted.steps[3])
    kept = await run.replay(planted, after="keep")
    assert [one.where for one in kept.differences] == ["messages[3]"] * 10
    assert (kept.finished, len({one.step for one in kept.differences})) == (True, 10)


async def test_another_prompt_is_found_at_the_first_call(store: InMemoryStateStore):
    world = World(store, has_child=False)
    run = await record(world, store)
    world.agent.system_prompt = "You plan well."
    first = (await run.replay(world.agent)).first
    assert (first.step, first.where, first.layer) == (run.steps[0], "messages[0]", None)
    assert str(first) == "step 0 (model), messages[0]: 'You plan.' -> 'You plan well.'"


async def test_a_changed_argument_is_found_at_its_step(store: InMemoryStateStore):
    world = World(store, has_child=False)
    run = await record(world, store)
    world.paid.clear()
    planted = world.agent.with_middlewares([*world.agent.middlewares, Other()])
    replay = await run.replay(planted)
    first = replay.first
    assert (first.where, first.layer, first.step) == ("arguments", "Other", run.steps[1])
    assert (first.before, first.after, world.paid) == ('{"query": "0"}', '{"query": "7"}', [])
    # The call of that argument in the record is the same.
    kept = await run.replay(planted, after="keep")
    arguments = [one for one in kept.differences if one.where == "arguments"]
    assert (len(arguments), world.paid) == (9, [])


async def test_a_difference_in_a_sub_agent_is_found_at_its_step(store: InMemoryStateStore):
    world = World(store, has_child=True)
    run = await record(world, store)
    world.paid.clear()
    planted = world.agent.with_middlewares([*world.agent.middlewares, Other()])
    first = (await run.replay(planted)).first
    assert (first.where, first.layer, first.after, world.paid) == ("arguments", "Other", '{"query": "7"}', [])
    child = world.agent.toolkit.get("pay_all").agent
    child.system_prompt = "You pay soon."
    first = (await run.replay(world.agent)).first
    assert (first.where, first.layer) == ("messages[0]", None)
    assert (first.run, first.step) == ((run.children[0].session_id, run.children[0].reply_id), run.children[0].steps[0])


async def test_another_decision_is_found_with_its_layer(store: InMemoryStateStore):
    world = World(store, has_child=False)
    run = await record(world, store)
    first = (await run.replay(world.agent.with_middlewares([*world.agent.middlewares, Deny()]))).first
    assert (first.where, first.layer, first.before, first.after) == ("decision", "Deny", "allow", "deny")
    assert first.step == run.steps[1]


async def test_other_tools_are_found_at_the_first_call(store: InMemoryStateStore):
    world = World(store, has_child=False)
    run = await record(world, store)
    tools = [FunctionTool(world.pay), find]
    agent = Agent("boss", "You plan.", world.agent.model, tools, world.agent.middlewares)
    first = (await run.replay(agent)).first
    assert (first.where, first.layer, first.step.number) == ("tools", None, 0)
    assert [tool["function"]["name"] for tool in first.after] == ["pay", "find"]


async def test_ask_asks_the_model_from_the_first_difference_on(store: InMemoryStateStore):
    world = World(store, has_child=False)
    run = await record(world, store)
    world.paid.clear()
    world.agent.model.calls.clear()
    planted = world.agent.with_middlewares([*world.agent.middlewares, Note()])
    replay = await run.replay(planted, after="ask")
    # The same calls are answered from the record.
    assert (replay.first.where, len(world.agent.model.calls), world.paid) == ("messages[3]", 10, [])
    assert replay.message.get_text_content() == "10 are paid"
    planted.model = ScriptedChatModel([[call("new", "pay", '{"query": "99"}')], "done"])
    replay = await run.replay(planted, after="ask")
    # A tool that may have an effect does not run.
    assert (world.paid, replay.message.finished_reason) == ([], None)


class Answer(BaseModel):
    place: str


async def test_structured_output_replays(store: InMemoryStateStore):
    script = [[call("c1")], [call("c2", STRUCTURED_OUTPUT, '{"place": "here"}')]]
    agent = make_agent(store, Stamp(), script=script)
    message = await agent.reply("Find it", structured_schema=Answer)
    assert message.structured_output.place == "here"
    run = await store.runs.load(agent.state.session_id)
    await check_same(run, agent)


async def test_failed_attempts_replay(store: InMemoryStateStore):
    script: list[Any] = [ModelError("away"), [call("c1")], ConnectionError("away"), "It is there."]
    agent = make_agent(store, RetryMiddleware(retry_on=[ModelError, OSError], initial_delay=0), script=script)
    await agent.reply("Find it")
    run = await store.runs.load(agent.state.session_id)
    assert [request.error for request in run.requests] == ["ModelError", None, "ConnectionError", None]
    await check_same(run, agent)
    first = (await run.replay(agent.without(RetryMiddleware), after="keep")).first
    assert first.where == "call not made"


async def test_a_run_that_failed_replays_to_its_failure(store: InMemoryStateStore):
    agent = make_agent(store, script=[[call("c1")], ModelError("away")])
    with pytest.raises(ModelError):
        await agent.reply("Find it")
    run = await store.runs.load(agent.state.session_id)
    await check_same(run, agent)


async def test_a_cache_keeps_nothing_of_a_replay(store: InMemoryStateStore):
    """Not the answer to another prompt, and no old result."""
    found: list[str] = []

    async def look(name: str) -> str:
        found.append(name)
        return f"{name} {len(found)}"

    tool = FunctionTool(look, is_read_only=True)
    recorded = make_agent(store, script=[[call("c1", "look")], "old"], tools=[tool])
    await recorded.reply("x")
    run = await store.runs.load(recorded.state.session_id)
    cache = CacheMiddleware(tools={"look": 600})
    agent = make_agent(store, cache, script=[[call("c1", "look")], "new"], tools=[tool])
    agent.system_prompt = "Another."
    replayed = (await run.replay(agent, after="keep")).message
    assert replayed.get_text_content() == "old"
    assert (await agent.reply("x")).get_text_content() == "new"
    assert found == ["it", "it"]


async def test_a_replay_uses_up_no_limit_that_others_share(store: InMemoryStateStore):
    owner = BudgetMiddleware(owner=Budget(model_calls=2, per="day"), owner_id="ann", prices={})
    limit = RateLimitMiddleware(requests_per_minute=2, max_wait=0)
    layers = owner, CircuitBreakerMiddleware(failure_threshold=2), limit
    agent = make_agent(store, *layers, script=[ModelError("away"), "Hello."])
    with pytest.raises(ModelError):
        await agent.reply("Find it")
    run = await store.runs.load(agent.state.session_id)
    for _ in range(2):
        assert (await run.replay(agent)).differences == []
    assert (await agent.with_state(AgentState()).reply("Hi")).get_text_content() == "Hello."


async def test_a_reply_that_its_own_budget_has_stopped_replays(store: InMemoryStateStore):
    budget = BudgetMiddleware(reply=Budget(tokens=1, model_calls=9), prices={})
    agent = make_agent(store, budget, script=[[call("c1")], [call("c2")]])
    assert (await agent.reply("Find it")).finished_reason == "exceed_budget"
    await check_same(await store.runs.load(agent.state.session_id), agent)


@pytest.mark.parametrize("is_confirmed", [False, True])
@pytest.mark.parametrize("in_child", [False, True])
async def test_questions_are_answered_as_they_were(store: InMemoryStateStore, in_child: bool, is_confirmed: bool):
    paid: list[str] = []

    async def pay() -> str:
        paid.append("x")
        return "paid"

    tool: Any = FunctionTool(pay, ask=True)
    script: Any = [[call("c1", "pay", "{}")], "done", "done"]
    if in_child:
        tool = Agent("payer", "", ScriptedChatModel(script), [tool]).as_tool("Pays.")
        script = [[call("c1", "payer", '{"query": "go"}')], "done", "done"]
    agent = make_agent(store, Stamp(), script=script, tools=[tool])
    await agent.reply("Go")
    waiting = await store.runs.load(agent.state.session_id)
    await check_same(waiting, agent)
    await agent.reply(confirmation_of(agent, confirmed=is_confirmed))
    run = await store.runs.load(agent.state.session_id)
    assert (run.status, len(paid)) == ("completed", int(is_confirmed))
    await check_same(run, agent)
    assert len(paid) == int(is_confirmed)


async def test_a_later_reply_replays_with_the_conversation_before(store: InMemoryStateStore):
    agent = make_agent(store, Stamp(), script=["one", [call("c1")], "two"])
    await agent.reply("First")
    await agent.observe(UserMsg("ann", "By the way"))
    await agent.reply("Find it")
    run = await store.runs.load(agent.state.session_id)
    assert len(run.context) == 2
    await check_same(run, agent)


async def test_concurrent_calls_replay(store: InMemoryStateStore):
    child = Agent("helper", "", ScriptedChatModel([[call("x")], "one"] * 4), [find]).as_tool("Helps.")
    calls = [call(f"c{number}", "helper", f'{{"query": "{number}"}}') for number in range(2)]
    agent = make_agent(store, script=[[*calls, call("c9")], "done"], tools=[child, find])
    await agent.reply("Go")
    run = await store.runs.load(agent.state.session_id)
    assert len(run.children) == 2
    await check_same(run, agent)


async def test_a_fork_replays_from_its_step(store: InMemoryStateStore):
    tool = FunctionTool(find, is_concurrency_safe=False)
    script = [[call("c1"), call("c2")], *["It is there."] * 9]
    agent = make_agent(store, script=script, tools=[tool])
    await agent.reply("Find it")
    run = await store.runs.load(agent.state.session_id)
    assert [step.kind for step in run.steps] == ["model", "answer", "result", "result", "model", "answer"]
    for step in run.steps:
        fork = run.fork(agent, step, effects="run")
        await fork.reply(None)
        await check_same(await store.runs.load(fork.state.session_id), agent)


async def test_a_cancelled_replay_leaves_nothing_behind(store: InMemoryStateStore):
    agent = make_agent(store)
    await agent.reply("Find it")
    run = await store.runs.load(agent.state.session_id)
    waits = anyio.Event()

    class Waits(MiddlewareBase):
        inherited = True

        async def on_acting(self, agent, input_kwargs, next_handler):
            waits.set()
            await anyio.sleep_forever()
            yield

    planted = agent.with_middlewares([*agent.middlewares, Waits()])
    async with anyio.create_task_group() as group:
        group.start_soon(run.replay, planted)
        await waits.wait()
        group.cancel_scope.cancel()
    again = await store.runs.load(run.session_id)
    assert (again.lines, agent.state.reply_context) == (run.lines, None)
    await check_same(run, agent)


async def test_a_record_with_gaps_is_not_replayed(store: InMemoryStateStore):
    agent = make_agent(store, max_bytes=1_000)
    await agent.reply("Find it")
    run = await store.runs.load(agent.state.session_id)
    with pytest.raises(UsageError, match="'gap'"):
        await run.replay(agent)


async def test_replays_that_cannot_be_are_refused(store: InMemoryStateStore):
    agent = make_agent(store)
    await agent.reply("Find it")
    run = await store.runs.load(agent.state.session_id)
    for words, other, options in (
        ("must be an Agent", "agent", {}),
        ("after=...\\) must be", agent, {"after": "no"}),
    ):
        with pytest.raises(UsageError, match=words):
            await run.replay(other, **options)
    bare = make_agent(store, content=False)
    await bare.reply("Find it")
    with pytest.raises(UsageError, match="recorded without content"):
        await (await store.runs.load(bare.state.session_id)).replay(bare)


async def test_handles_of_held_text_replay_without_a_difference(store: InMemoryStateStore):
    def pass_on(messages: Any, tools: Any) -> Any:
        [result] = messages[-1].get_content_blocks("tool_result")
        return [call("c2", arguments=f'{{"name": "{result.text}"}}')]

    model = ScriptedChatModel([[call("c1")], pass_on, "It is there."])
    agent = Agent("finder", "You find.", model, [find], [RunRecorder(store), InformationFlowMiddleware()])
    await agent.reply("Find it")
    run = await store.runs.load(agent.state.session_id)
    assert run.requests[1].messages[-1].get_content_blocks("tool_result")[0].text.startswith("<untrusted_1_")
    replayed = await run.replay(agent)
    assert (replayed.differences, replayed.finished) == ([], True)


async def test_sub_agents_replay_under_their_recorded_handles(store: InMemoryStateStore):
    def pass_on(messages: Any, tools: Any) -> Any:
        [result] = messages[-1].get_content_blocks("tool_result")
        return [call("c2", "ask", f'{{"query": "About {result.text}"}}')]

    answer = "It is there."
    script = [[call("c1", arguments='{"name": "more"}')], answer]
    child = Agent("child", "You find.", ScriptedChatModel(script), [find])
    tools = [find, child.as_tool("Finds.", name="ask")]
    layers = [RunRecorder(store), InformationFlowMiddleware()]
    agent = Agent("boss", "You ask.", ScriptedChatModel([[call("c1")], pass_on, answer]), tools, layers)
    await agent.reply("Find it")
    run = await store.runs.load(agent.state.session_id)
    [inner] = run.children
    assert inner.requests[1].messages[-1].get_content_blocks("tool_result")[0].text.startswith("<untrusted_2_")
    await check_same(run, agent)


async def test_tools_that_change_the_conversation_replay(store: InMemoryStateStore):
    async def pay(name: str) -> str:
        return f"paid {name}"

    def reading(tool: str, **arguments: str) -> Any:
        def read(messages: Any, tools: Any) -> Any:
            result = messages[-1].get_content_blocks("tool_result")[-1]
            handle = {"handle": result.text} if tool == "show_untrusted" else {"handles": [result.text]}
            return [call(tool, tool, json.dumps({**handle, **arguments}))]

        return read

    script = [
        [call("c1", "reset_equipped_tools", '{"money": true}')],
        [call("c2", "pay")],
        reading("read_untrusted", question="Who?"),
        "Ann",  # of the reader
        reading("show_untrusted"),
        [call("c3", "pay")],  # which asks, since the model was shown untrusted text
        "It is paid.",
    ]
    groups = [ToolGroup("money", "Money.", tools=[pay])]
    layers = [RunRecorder(store), InformationFlowMiddleware()]
    agent = Agent("clerk", "You pay.", ScriptedChatModel(script), Toolkit([find], groups=groups), layers)
    await agent.reply("Pay Ann")
    question = agent.waiting()
    assert isinstance(question, RequireUserConfirmEvent)
    await agent.reply(question.approve())
    run = await store.runs.load(agent.state.session_id)
    assert (run.status, run.calls) == ("completed", 7)
    await check_same(run, agent)


class Outside(ToolBase):
    name = "outside"
    is_external_tool = True

    async def call(self) -> None: ...


async def test_results_of_programs_replay_as_they_came(store: InMemoryStateStore):
    def pass_on(messages: Any, tools: Any) -> Any:
        return [call("c2", arguments=f'{{"name": "{messages[-1].get_content_blocks("tool_result")[0].text}"}}')]

    layers = [RunRecorder(store), InformationFlowMiddleware()]
    model = ScriptedChatModel([[call("c1", "outside", "{}")], pass_on, "It is there."])
    agent = Agent("clerk", "You ask.", model, [Outside(), find], layers)
    await agent.reply("Ask")
    question = agent.waiting()
    results = [ToolResultBlock("c1", "outside", [TextBlock("From outside")])]
    await agent.reply(ExternalExecutionResultEvent(question.reply_id, results))
    await check_same(await store.runs.load(agent.state.session_id), agent)


class Working:
    """A tool that pays twice by calls of another tool, alone or by a sub-agent that asks; and what was paid."""

    def __init__(self, in_child: bool = False) -> None:
        self.paid: list[str] = []
        pay = FunctionTool(self.pay, ask=True)
        tool: Any = pay
        if in_child:
            script = [[call("p", "pay", '{"query": "1"}')], "paid", [call("p", "pay", '{"query": "2"}')], "paid"]
            tool = Agent("payer", "", ScriptedChatModel(script), [pay]).as_tool("Pays.", name="pay_all")
        self.name = tool.name
        self.tools = [FunctionTool(self.work, is_resumable=True), tool]

    async def pay(self, query: str) -> str:
        self.paid.append(query)
        return f"paid {query}"

    async def work(self, context: ToolContext) -> ToolResponse:
        first = await context.call(self.name, {"query": "1"})
        return first if first.waits else await context.call(self.name, {"query": "2"})


@pytest.mark.parametrize("in_child", [False, True])
async def test_calls_of_a_tool_replay_without_the_tool(store: InMemoryStateStore, in_child: bool):
    work = Working(in_child)
    agent = make_agent(store, Stamp(), script=[[call("c", "work", "{}")], "Paid."], tools=work.tools)
    await agent.reply("Pay")
    for feedback in (None, "too dear"):
        await check_same(await store.runs.load(agent.state.session_id), agent)
        question = agent.waiting()
        assert isinstance(question, RequireUserConfirmEvent)
        await agent.reply(question.approve() if feedback is None else question.deny(feedback))
    run = await store.runs.load(agent.state.session_id)
    await check_same(run, agent)
    assert work.paid == ["1"]
    first = (await run.replay(make_agent(store, Stamp(), DenyInside(), tools=work.tools))).first
    assert (first.where, first.layer) == ("decision", "DenyInside")
