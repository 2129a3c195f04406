"""Promises kept at odd moments: cancellations that a layer eats, ends that cannot be saved, questions asked late."""

import asyncio
import logging
from contextlib import suppress
from dataclasses import replace

import anyio
import pytest

from agentrt import AgentState, MiddlewareBase, Msg
from agentrt.agent import ReActConfig
from agentrt.errors import ChainContractError, InvalidInputError, ResumeError, SessionIOError, SessionUnserializable
from agentrt.event import (
    ConfirmResult,
    ExternalExecutionResultEvent,
    ModelCallStartEvent,
    ReplyEndEvent,
    ReplyStartEvent,
    RequireExternalExecutionEvent,
    RequireUserConfirmEvent,
    UserConfirmResultEvent,
    UserInterruptEvent,
)
from agentrt.message import AssistantMsg, ToolResultBlock, UserMsg
from agentrt.model import ScriptedChatModel
from agentrt.permission import PermissionBehavior, PermissionContext, PermissionRule
from agentrt.state import FileStateStore, InMemoryStateStore
from agentrt.tool import FunctionTool
from tests.loop.helpers import add, agent_of, call, items_of, short
from tests.loop.parked import PathTool

SECRET = "sk-canary-123"


async def slow() -> str:
    await anyio.sleep_forever()
    return ""


class Swallow(MiddlewareBase):
    """Eats whatever comes out of the reply, and says something of its own."""

    async def on_reply(self, agent, input_kwargs, next_handler):
        try:
            async for item in next_handler():
                yield item
        except BaseException:  # noqa: BLE001  # what it must not do
            yield AssistantMsg("layer", "made up")


class SwallowFirst(MiddlewareBase):
    """Eats a cancellation before the reply has begun."""

    async def on_reply(self, agent, input_kwargs, next_handler):
        with suppress(BaseException):  # what it must not do
            await anyio.sleep_forever()
        async for item in next_handler():
            yield item


@pytest.mark.parametrize("layer", [Swallow, SwallowFirst])
async def test_a_layer_cannot_keep_a_cancellation_from_the_caller(layer, anyio_backend):
    ran = []

    async def work() -> str:
        ran.append(1)
        scope.deadline = anyio.current_time()
        await anyio.sleep_forever()
        return ""

    agent = agent_of([[call("1", "work")], "after"], work, middlewares=[layer()])
    with pytest.raises(TimeoutError):
        with anyio.fail_after(60 if layer is Swallow else 0.02) as scope:
            await agent.reply("go")
    assert len(ran) == (1 if layer is Swallow else 0)
    if anyio_backend == "asyncio":
        agent = agent_of([[call("1", "slow")], "after"], slow, middlewares=[layer()])
        task = asyncio.ensure_future(agent.reply("go"))
        await asyncio.sleep(0.02)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


class Full(InMemoryStateStore):
    """Has no room for the end of a reply."""

    async def save(self, state):
        if state.reply_context is None:
            raise SessionIOError("no space left")
        await super().save(state)


async def test_an_end_that_could_not_be_saved_is_not_sent_as_completed():
    agent = agent_of(["hello"], state_store=Full())
    ends = []
    with pytest.raises(SessionIOError):
        async for event in agent.reply_stream("go"):
            if isinstance(event, ReplyEndEvent):
                ends.append((event.finished_reason, event.error))
    assert ends == [("error", "SessionIOError")]
    assert agent.state.last_reply.finished_reason == "error"


async def test_a_save_that_fails_on_top_of_a_failure_logs_neither_text(caplog):
    agent = agent_of([RuntimeError(f"the provider said {SECRET}")], state_store=Full())
    with caplog.at_level(logging.DEBUG, "agentrt"), pytest.raises(RuntimeError):
        await agent.reply("go")
    assert "could not be saved: SessionIOError" in caplog.text
    assert SECRET not in caplog.text


class Snapshots(InMemoryStateStore):
    def __init__(self):
        super().__init__()
        self.taken = []

    async def save(self, state):
        await super().save(state)
        self.taken.append(state.model_dump_json())


async def test_reply_whose_start_is_held_back_is_saved_twice():
    class Hold(MiddlewareBase):
        async def on_reply(self, agent, input_kwargs, next_handler):
            for item in [item async for item in next_handler()]:
                if not isinstance(item, ReplyStartEvent):
                    yield item

    store = Snapshots()
    agent = agent_of(["hello"], middlewares=[Hold()], state_store=store)
    events = [item for item in await items_of(agent) if not isinstance(item, Msg)]
    assert [event.seq for event in events] == list(range(1, len(events) + 1))
    assert len(store.taken) == 2


async def test_calls_are_saved_after_an_end_that_a_layer_made_up():
    class EndEarly(MiddlewareBase):
        async def on_reply(self, agent, input_kwargs, next_handler):
            async for item in next_handler():
                yield item
                if isinstance(item, ModelCallStartEvent):
                    yield ReplyEndEvent(agent.run.id, agent.state.session_id)

    store = Snapshots()
    agent = agent_of([[call("1", "add")]], add, middlewares=[EndEarly()], state_store=store)
    with pytest.raises(ChainContractError, match="kept reading"):
        await agent.reply("go")
    assert '"tool_call"' in store.taken[1]
    assert '"tool_result"' not in store.taken[1]


async def test_a_question_lost_in_a_crash_is_asked_on_resuming():
    store = Snapshots()
    tools = PathTool("run", []), PathTool("ask", [], ask=True)
    agent = agent_of([[call("1", "run", path="x"), call("2", "ask", path="y")], "done"], *tools, state_store=store)
    await agent.reply("go")
    crashed = [state for state in map(AgentState.model_validate_json, store.taken) if waits_unasked(state)]
    assert crashed
    for state in crashed:
        again = agent.with_state(state)
        again.state_store = None
        assert "REQUIRE_USER_CONFIRM" in [short(item) for item in await items_of(again, None)]


def waits_unasked(state):
    context = state.reply_context
    return context is not None and not context.parked and any(each.waits_for for each in context.decisions.values())


@pytest.mark.parametrize("external", [False, True], ids=["confirm", "external"])
async def test_an_interrupt_while_the_question_is_read_ends_tidily(external):
    tool = PathTool("ask", [], ask=not external, is_external_tool=external)
    agent = agent_of([[call("1", "ask", path="x")], "done"], tool, state_store=InMemoryStateStore())
    names = []
    async with agent.reply_stream("go", yield_final_msg=True) as stream:
        async for item in stream:
            names.append(short(item))
            if isinstance(item, (RequireUserConfirmEvent, RequireExternalExecutionEvent)):
                assert agent.interrupt("stop")
    assert names[-3:] == ["RESULT_END:1(interrupted)", "RE(interrupted)", "Msg"]
    assert item.finished_reason == "interrupted"
    saved = await agent.state_store.load(agent.state.session_id)
    assert saved.reply_context is None


async def test_an_infinite_time_limit_keeps_a_parked_state_loadable(tmp_path):
    store = FileStateStore(tmp_path)
    limits = ReActConfig(max_seconds=float("inf"))
    agent = agent_of(
        [[call("1", "ask", path="x")], "done"], PathTool("ask", [], ask=True), state_store=store, react_config=limits
    )
    await agent.reply("go")
    loaded = await store.load(agent.state.session_id)
    assert loaded.reply_context.parked


def nested(levels):
    value = {}
    for _ in range(levels):
        value = {"a": value}
    return value


@pytest.mark.parametrize("store_of", [FileStateStore, lambda _: InMemoryStateStore()], ids=["file", "memory"])
async def test_what_could_not_be_loaded_again_is_not_saved(store_of, tmp_path):
    store = store_of(tmp_path)
    agent = agent_of([], state_store=store)
    await agent.observe(UserMsg("user", "hello"))
    with pytest.raises(InvalidInputError, match="the message from 'user' could not be saved: its metadata"):
        await agent.observe(UserMsg("user", "deep", metadata=nested(230)))
    with pytest.raises(SessionUnserializable):
        await store.save(replace(agent.state, context=[UserMsg("user", "deep", metadata=nested(230))]))
    assert [message.get_text_content() for message in agent.state.context] == ["hello"]
    await agent.observe(UserMsg("user", "again"))
    loaded = await store.load(agent.state.session_id)
    assert [message.get_text_content() for message in loaded.context] == ["hello", "again"]


async def asking(*tools):
    agent = agent_of([[call("1", "ask", path="x")], "done"], *tools)
    await agent.reply("go")
    return agent, agent.state.reply_context.message.get_content_blocks("tool_call")[0]


TOO_LONG = {
    "feedback": lambda waiting: [ConfirmResult(False, waiting, feedback="x" * 10_001)],
    "rules": lambda waiting: [ConfirmResult(True, waiting, rules=[PermissionRule("ask", str(n)) for n in range(101)])],
    "results": lambda waiting: [ConfirmResult(True, waiting)] * 1_001,
}


@pytest.mark.parametrize("what", TOO_LONG)
async def test_an_answer_is_no_longer_than_it_may_be(what):
    agent, waiting = await asking(PathTool("ask", [], ask=True))
    agent.state.permission_context = PermissionContext(allow_new_rules=True)
    before = agent.state.model_dump_json()
    with pytest.raises(ResumeError) as caught:
        await agent.reply(UserConfirmResultEvent(agent.state.reply_context.reply_id, TOO_LONG[what](waiting)))
    assert caught.value.code == "invalid"
    assert agent.state.model_dump_json() == before


async def test_the_metadata_of_a_result_from_outside_has_a_limit():
    agent, _ = await asking(PathTool("ask", [], is_external_tool=True))
    result = ToolResultBlock("1", "ask", "ok", metadata={"a": "x" * 1_000_001})
    with pytest.raises(ResumeError, match="the metadata of the result of 'ask' has 1,000,00"):
        await agent.reply(ExternalExecutionResultEvent(agent.state.reply_context.reply_id, [result]))


async def test_a_no_brings_no_rule_that_allows():
    agent, waiting = await asking(PathTool("ask", [], ask=True))
    agent.state.permission_context = PermissionContext(allow_new_rules=True)
    rules = [PermissionRule("ask", None, PermissionBehavior.ALLOW)]
    answer = UserConfirmResultEvent(agent.state.reply_context.reply_id, [ConfirmResult(False, waiting, rules=rules)])
    with pytest.raises(ResumeError, match="denies 'ask' and brings a rule that allows it"):
        await agent.reply(answer)


async def test_an_interrupt_for_another_session_stops_nothing():
    started = anyio.Event()

    async def work() -> str:
        started.set()
        await anyio.sleep(0.05)
        return "done"

    agent = agent_of([[call("1", "work")], "whole"], FunctionTool(work), add)
    said = []

    async def reply():
        said.append((await agent.reply("go")).get_text_content())

    async with anyio.create_task_group() as group:
        group.start_soon(reply)
        await started.wait()
        stranger = UserInterruptEvent(agent.run.id, session_id="another")
        with pytest.raises(RuntimeError):
            await agent.reply(stranger)
    assert said == ["whole"]


async def test_observed_messages_that_cannot_be_saved_are_not_taken_in():
    agent = agent_of([], state_store=Full())
    with pytest.raises(SessionIOError):
        await agent.observe("once")
    assert agent.state.context == []
    assert isinstance(agent.model, ScriptedChatModel)
