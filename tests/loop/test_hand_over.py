"""A reply that is handed over: it stops without an end, and `reply(None)` resumes it, here or in another process."""

from typing import Any

import anyio.lowlevel
import pytest

from agentrt import Agent, AgentState, MiddlewareBase
from agentrt.errors import UsageError
from agentrt.event import (
    ReplyEndEvent,
    ReplyResumedEvent,
    RequireUserConfirmEvent,
    TextBlockDeltaEvent,
    ToolResultStartEvent,
    ToolResultTextDeltaEvent,
)
from agentrt.message import ToolCallBlock, ToolResultBlock, ToolResultState
from agentrt.model import ScriptedChatModel
from agentrt.pipeline import Handoffs
from agentrt.state import InMemoryStateStore
from agentrt.tool import FunctionTool, ToolContext
from tests.loop.helpers import Passing, confirmation_of, rebuilt

SCRIPT: list[Any] = [
    ["I look. ", ToolCallBlock("a", "look", '{"place": "here"}')],
    [ToolCallBlock("b", "look", '{"place": "there"}'), ToolCallBlock("c", "look", '{"place": "up"}')],
    "It is neither here nor there.",
]


async def look(place: str) -> str:
    await anyio.lowlevel.checkpoint()
    return f"nothing {place}"


def agent_of(
    script: list[Any], store: InMemoryStateStore | None, state: AgentState, *layers: MiddlewareBase, **tool: Any
):
    tools = [FunctionTool(look, **tool)]
    model = ScriptedChatModel(script)
    return Agent("assistant", model=model, tools=tools, state_store=store, state=state, middlewares=layers)


def script_after(state: AgentState) -> list[Any]:
    """Return what the model says to one who resumes this reply."""
    calls = [] if state.reply_context is None else state.reply_context.message.get_content_blocks("tool_call")
    return SCRIPT[1 if len(calls) == 1 else 2 if calls else 0 :]


@pytest.mark.parametrize("layers", [[], [Passing()]], ids=["plain", "layered"])
async def test_reply_handed_over_after_any_event_is_whole_in_the_end(layers):
    count = 0
    while True:
        store = InMemoryStateStore()
        agent = agent_of(SCRIPT, store, AgentState(session_id="s"), *layers, idempotent=True)
        events: list[Any] = []
        stream = agent.reply_stream("Where is it?", reply_id="r")
        async for event in stream:
            events.append(event)
            if len(events) > count:
                break
        await stream.hand_over()
        count += 1
        loaded = await store.load("s")
        assert loaded is not None
        assert loaded == agent.state
        if events and isinstance(events[-1], ReplyEndEvent):
            assert loaded.reply_context is None
            break
        assert loaded.last_reply is None
        successor = agent_of(script_after(loaded), store, loaded, *layers, idempotent=True)
        resumed = [event async for event in successor.reply_stream(None, reply_id="r", after=events[-1].seq)]
        events += resumed
        assert isinstance(resumed[0], ReplyResumedEvent)
        assert [event for event in events if isinstance(event, ReplyEndEvent)] == [events[-1]]
        numbers = [event.seq for event in events]
        assert numbers == sorted(set(numbers))
        message = successor.state.context[-1]
        assert message.get_text_content().endswith("It is neither here nor there.")
        results = [block for block in message.content if isinstance(block, ToolResultBlock)]
        assert sorted((each.id, each.state) for each in results) == [
            ("a", ToolResultState.SUCCESS),
            ("b", ToolResultState.SUCCESS),
            ("c", ToolResultState.SUCCESS),
        ]
        assert rebuilt(events).content == message.content
    assert count > 30


@pytest.mark.parametrize("layers", [[], [Passing()]], ids=["plain", "layered"])
async def test_another_task_hands_over_a_reply_that_waits_for_its_tool(layers):
    begun, runs = anyio.Event(), []

    async def wait(context: ToolContext) -> str:
        runs.append(context.idempotency_key)
        if len(runs) == 1:
            begun.set()
            await anyio.sleep_forever()
        return "done"

    script = [[ToolCallBlock("1", "wait", "{}")], "Done."]
    tools = [FunctionTool(wait, idempotent=True)]
    store = InMemoryStateStore()
    agent = Agent(
        "assistant",
        model=ScriptedChatModel(script),
        tools=tools,
        state_store=store,
        state=AgentState(session_id="s"),
        middlewares=layers,
    )
    stream = agent.reply_stream("Wait!", reply_id="r")
    events: list[Any] = []

    async def read() -> None:
        async for event in stream:
            events.append(event)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(read)
        await begun.wait()
        await stream.hand_over()
        state = await store.load("s")
    assert not any(isinstance(event, ReplyEndEvent) for event in events)
    with pytest.raises(UsageError, match="has no final message"):
        _ = stream.message
    assert state.reply_context is not None
    again = Agent("assistant", model=ScriptedChatModel(["Done."]), tools=tools, state=state)
    message = await again.reply(None)
    [result] = again.state.context[-1].get_content_blocks("tool_result")
    assert (message.get_text_content(), result.text) == ("Done.", "done")
    assert runs[0] == runs[1] == f"s/r/{result.id}"


async def test_running_call_of_another_tool_becomes_unknown():
    begun = anyio.Event()

    async def pay() -> str:
        begun.set()
        await anyio.sleep_forever()
        return "paid"

    agent = Agent("assistant", model=ScriptedChatModel([[ToolCallBlock("1", "pay", "{}")], "So."]), tools=[pay])
    stream = agent.reply_stream("Pay!")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(stream.drain)
        await begun.wait()
        await stream.hand_over()
    await agent.reply(None)
    [result] = agent.state.context[-1].get_content_blocks("tool_result")
    assert result.state is ToolResultState.UNKNOWN


async def pay(amount: int, context: ToolContext) -> Any:
    yield f"{context.idempotency_key} "
    yield f"paid {amount}"


@pytest.mark.parametrize("idempotent", [True, False])
async def test_begun_call_runs_again_where_it_is_idempotent(idempotent):
    tools = [FunctionTool(pay, idempotent=idempotent)]
    script = [[ToolCallBlock("1", "pay", '{"amount": 20}')], "So."]
    agent = Agent("assistant", model=ScriptedChatModel(script), tools=tools, state=AgentState(session_id="s"))
    left = b""
    async for event in agent.reply_stream("Pay!", reply_id="r"):
        if isinstance(event, ToolResultTextDeltaEvent) and not left:
            left = agent.state.model_dump_json().encode()
    state = AgentState.model_validate_json(left)
    again = Agent("assistant", model=ScriptedChatModel(["So."]), tools=tools, state=state)
    events = [event async for event in again.reply_stream(None)]
    [result] = again.state.context[-1].get_content_blocks("tool_result")
    assert isinstance(events[0], ReplyResumedEvent)
    assert any(isinstance(block, ToolResultBlock) for block in events[0].blocks) is not idempotent
    if idempotent:
        assert (result.text, result.state) == (f"s/r/{result.id} paid 20", ToolResultState.SUCCESS)
    else:
        assert result.state is ToolResultState.UNKNOWN


async def test_idempotent_call_that_was_denied_does_not_run():
    tools = [FunctionTool(pay, idempotent=True, ask=True)]
    agent = Agent("assistant", model=ScriptedChatModel([[ToolCallBlock("1", "pay", '{"amount": 20}')]]), tools=tools)
    await agent.reply("Pay!")
    answer = confirmation_of(agent, confirmed=False)
    left = ""
    async for event in agent.reply_stream(answer):
        if isinstance(event, ToolResultStartEvent):
            left = agent.state.model_dump_json()
            break
    state = AgentState.model_validate_json(left)
    again = Agent("assistant", model=ScriptedChatModel(["So."]), tools=tools, state=state)
    await again.reply(None)
    [result] = again.state.context[-1].get_content_blocks("tool_result")
    assert result.state is not ToolResultState.SUCCESS


async def test_half_an_answer_is_forgotten_and_asked_for_again():
    agent = Agent("assistant", model=ScriptedChatModel(["one two three", "four"], stream=True))
    async with agent.reply_stream("Count!") as events:
        async for event in events:
            if isinstance(event, TextBlockDeltaEvent):
                await events.hand_over()
    assert agent.state.reply_context.blocks == []
    assert (await agent.reply(None)).get_text_content() == "four"
    assert [message.get_text_content() for message in agent.state.context] == ["Count!", "four"]


async def test_a_question_stands_when_its_reply_is_handed_over():
    store = InMemoryStateStore()
    agent = agent_of(SCRIPT, store, AgentState(session_id="s"), ask=True)
    stream = agent.reply_stream("Look!")
    async for event in stream:
        if isinstance(event, RequireUserConfirmEvent):
            break
    await stream.hand_over()
    loaded = await store.load("s")
    assert loaded is not None
    assert loaded == agent.state
    assert loaded.reply_context.parked
    assert agent.waiting() is not None


async def test_reply_that_is_over_or_has_not_begun_is_left_alone():
    agent = Agent("assistant", model=ScriptedChatModel(["Hello.", "Again."]))
    stream = agent.reply_stream("Hi!")
    await stream.hand_over()
    await stream.hand_over()
    assert agent.state == AgentState(session_id=agent.state.session_id)
    stream = agent.reply_stream("Hi!")
    await stream.drain()
    await stream.hand_over()
    assert stream.message.get_text_content() == "Hello."
    assert agent.state.last_reply is not None


async def test_reply_that_waits_for_its_turn_cannot_be_handed_over():
    agent = Agent("assistant", model=ScriptedChatModel(["Hello.", "Again."]), when_busy="wait")
    first, second = agent.reply_stream("Hi!"), agent.reply_stream("Ho!")
    await anext(first)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(second.drain)
        await anyio.wait_all_tasks_blocked()
        with pytest.raises(UsageError, match="waits for its turn"):
            await second.hand_over()
        await first.hand_over()
        tasks.cancel_scope.cancel()


async def test_handoffs_hand_over_the_reply_of_the_active_agent():
    agent = Agent("assistant", model=ScriptedChatModel(["one two three", "four"], stream=True))
    team = Handoffs([agent], start="assistant")
    stream = team.reply_stream("Count!")
    async for event in stream:
        if isinstance(event, ToolResultStartEvent | TextBlockDeltaEvent):
            break
    await stream.hand_over()
    assert team.state.last_reply is None
    assert (await team.reply(None)).get_text_content() == "four"
