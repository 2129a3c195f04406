"""`agent.interrupt()` ends a reply tidily, from wherever it is asked, and leaves everybody's cancellation alone."""

import asyncio
import signal
import subprocess
import sys
import threading
from typing import Any

import anyio
import pytest
from anyio import to_thread

import agentrt._runtime.concurrency.interrupt
from agentrt import Agent, AgentState, MiddlewareBase, Msg
from agentrt._runtime.concurrency.event_loop import running_trio
from agentrt.errors import ChainContractError
from agentrt.event import ReplyEndEvent, TextBlockDeltaEvent, UserInterruptEvent
from agentrt.message import AssistantMsg, TextBlock, ToolCallBlock
from agentrt.model import ChatResponse, ScriptedChatModel
from agentrt.state import InMemoryStateStore
from agentrt.tool import FunctionTool, ToolContext, Toolkit
from tests.loop.helpers import add, agent_of, call, items_of, order_of, short

ONLY_ASYNCIO = pytest.mark.parametrize("anyio_backend", ["asyncio"])


class Stage:
    """Where a reply stands still, for ever unless `goes_on` is set."""

    def __init__(self) -> None:
        self.reached = anyio.Event()
        self.goes_on = anyio.Event()

    async def wait(self) -> str:
        self.reached.set()
        await self.goes_on.wait()
        return "went on"

    async def wait_in_context(self, context: ToolContext) -> str:
        return await self.wait()

    async def stream(self):
        yield "some output"
        yield await self.wait()

    async def model(self, messages, tools):
        await self.wait()
        return "went on"


@pytest.fixture
def stage() -> Stage:
    return Stage()


async def reply_of(agent: Agent) -> Msg:
    return await agent.reply("go")


async def until_interrupted(agent: Agent, stage: Stage, read: Any = order_of, interrupt: Any = None) -> Any:
    """Return what `read` gives of a reply that another task interrupts as soon as it has reached the stage."""

    async def act() -> None:
        await stage.reached.wait()
        assert await (interrupt or agent.interrupt)()

    async with anyio.create_task_group() as group:
        group.start_soon(act)
        return await read(agent)


async def assert_well(agent: Agent, reply: str = "next") -> None:
    """Assert that the conversation can go on, and that nothing in this task is left to be cancelled."""
    assert agent.state.last_reply.finished_reason == "interrupted"
    assert agent.state.reply_context is None
    if running_trio() is None:
        assert asyncio.current_task().cancelling() == 0
    for _ in range(3):
        await anyio.lowlevel.checkpoint()
    for message in agent.state.context:
        results = [block.id for block in message.get_content_blocks("tool_result")]
        assert sorted(results) == sorted(block.id for block in message.get_content_blocks("tool_call"))
        assert "I was interrupted" not in (message.get_text_content() or "")
    assert (await agent.reply("and now?")).get_text_content() == reply


async def test_before_the_model_has_said_a_word(stage):
    agent = agent_of([stage.model, "next"])
    assert await until_interrupted(agent, stage) == "RS MS ME RE(interrupted) Msg"
    await assert_well(agent)


class Halting(ScriptedChatModel):
    """Streams its items, and stands still where one of them is a stage."""

    async def _call(self, messages, tools, tool_choice):
        first = next(self._responses)
        if isinstance(first, list) and any(isinstance(each, Stage) for each in first):
            return self._halting(first, messages)
        return await self._play(first, messages)

    async def _halting(self, items, messages):
        for item in items:
            if isinstance(item, Stage):
                await item.wait()
                continue
            yield ChatResponse([TextBlock(item) if isinstance(item, str) else item], False)


@pytest.mark.parametrize(
    ("said", "order"),
    [
        (["Once upon"], "RS MS TX_START TX_DELTA TX_END ME RE(interrupted) Msg"),
        (
            [ToolCallBlock("1", "add", '{"a": 1,')],
            "RS MS CALL_START:1 CALL_DELTA:1 CALL_END:1 ME RESULT_START:1 RESULT_DELTA:1 RESULT_END:1(interrupted) "
            "RE(interrupted) Msg",
        ),
        (
            ["Let me see.", ToolCallBlock("1", "add", '{"a": 1, "b": 2}'), ToolCallBlock("2", "add", '{"a"')],
            "RS MS TX_START TX_DELTA TX_END CALL_START:1 CALL_DELTA:1 CALL_START:2 CALL_DELTA:2 CALL_END:1 CALL_END:2 "
            "ME RESULT_START:1 RESULT_DELTA:1 RESULT_END:1(interrupted) RESULT_START:2 RESULT_DELTA:2 "
            "RESULT_END:2(interrupted) RE(interrupted) Msg",
        ),
    ],
)
async def test_interrupt_amid_a_streamed_answer_closes_its_blocks(said, order, stage):
    agent = Agent("a", model=Halting([[*said, stage], "next"]), toolkit=Toolkit(tools=[add]))
    assert await until_interrupted(agent, stage) == order
    await assert_well(agent)


async def test_an_interrupted_model_call_and_its_reply_end_once(stage):
    items = await until_interrupted(agent_of([stage.model]), stage, items_of)
    assert [item.finished_reason for item in items if short(item) == "ME"] == ["interrupted"]
    assert [short(item) for item in items if isinstance(item, (ReplyEndEvent, Msg))] == ["RE(interrupted)", "Msg"]


@pytest.mark.parametrize("tool", ["wait", "wait_in_context", "stream"])
async def test_one_tool_ends_as_interrupted(tool, stage):
    agent = agent_of([[call("1", tool)], "next"], getattr(stage, tool))
    assert await until_interrupted(agent, stage) == (
        "RS MS CALL_START:1 CALL_DELTA:1 CALL_END:1 ME RESULT_START:1 "
        f"RESULT_DELTA:1{'+' if tool == 'stream' else ''} RESULT_END:1(interrupted) RE(interrupted) Msg"
    )
    await assert_well(agent)


async def test_concurrent_tools_that_finished_keep_their_results(stage):
    agent = agent_of([[call("1", "wait"), call("2", "add", a=1, b=2), call("3", "wait")], "next"], stage.wait, add)

    async with agent.reply_stream("go") as events:
        names = []
        async for event in events:
            names.append(short(event))
            if names[-1] == "RESULT_END:2(success)":
                await stage.reached.wait()
                agent.interrupt()
    assert names[-5:] == [
        "RESULT_DELTA:1", "RESULT_END:1(interrupted)", "RESULT_DELTA:3", "RESULT_END:3(interrupted)", "RE(interrupted)"
    ]  # fmt: skip
    await assert_well(agent)


async def test_a_call_in_a_thread_has_an_unknown_result():
    reached, goes_on = threading.Event(), threading.Event()

    def block() -> str:
        reached.set()
        goes_on.wait(30)
        return "done"

    agent = agent_of([[call("1", "block")], "next"], block)

    async def interrupt() -> None:
        await to_thread.run_sync(reached.wait)
        agent.interrupt()

    async with anyio.create_task_group() as group:
        group.start_soon(interrupt)
        order = await order_of(agent)
    goes_on.set()
    assert order.endswith("RESULT_END:1(unknown) RE(interrupted) Msg")
    await assert_well(agent)


async def test_an_agent_inside_a_tool_stops_with_the_one_outside(stage):
    inner = agent_of([stage.model, "next"])

    async def ask() -> str:
        return (await inner.reply("go")).get_text_content()

    outer = agent_of([[call("1", "ask")], "next"], ask)
    assert (await until_interrupted(outer, stage)).endswith("RESULT_END:1(interrupted) RE(interrupted) Msg")
    await assert_well(inner)
    await assert_well(outer)


async def test_interrupted_sub_agent_returns_its_message_to_its_caller(stage):
    inner = agent_of([stage.model, "next"])

    async def ask() -> str:
        return (await inner.reply("go")).get_text_content()

    outer = agent_of([[call("1", "ask")], "the end"], ask)
    answer = await until_interrupted(outer, stage, reply_of, inner.interrupt)
    assert answer.get_text_content() == "the end"
    result = outer.state.context[-1].get_content_blocks("tool_result")[0]
    assert "I was interrupted" in result.output[0].text
    await assert_well(inner)


@pytest.mark.parametrize("goes_on", [False, True], ids=["and waits", "and returns"])
@pytest.mark.parametrize("form", ["inline", "in context", "streaming", "beside another"])
async def test_a_tool_may_interrupt_its_own_reply(form, goes_on):
    async def stop() -> str:
        assert agent.interrupt("enough")
        if not goes_on:
            await anyio.sleep_forever()
        return "stopped"

    async def stop_in_context(context: ToolContext) -> str:
        return await stop()

    async def stop_streaming():
        yield await stop()

    tool = {"in context": stop_in_context, "streaming": stop_streaming}.get(form, stop)
    calls = [call("1", tool.__name__)] + [call("2", "add", a=1, b=2)] * (form == "beside another")
    agent = agent_of([calls, "next"], tool, add)
    assert (await order_of(agent)).endswith("RE(interrupted) Msg")
    await assert_well(agent)


@pytest.mark.parametrize("goes_on", [False, True], ids=["and waits", "and goes on"])
@pytest.mark.parametrize("hook", ["on_reply", "on_reasoning", "on_acting", "on_model_call", "on_system_prompt"])
async def test_a_layer_may_interrupt_its_own_reply(hook, goes_on):
    async def stop(agent: Agent) -> None:
        if agent.interrupt("enough") and not goes_on and hook != "on_reply":
            await anyio.sleep_forever()

    async def stream(self, agent, input_kwargs, next_handler):
        async for item in next_handler():
            if hook == "on_reply" and short(item) == "MS":
                agent.interrupt()
            elif hook != "on_reply":
                await stop(agent)
            yield item

    async def model_call(self, agent, input_kwargs, next_handler):
        await stop(agent)
        return await next_handler()

    async def prompt(self, agent, current_prompt):
        await stop(agent)
        return current_prompt

    method = {"on_model_call": model_call, "on_system_prompt": prompt}.get(hook, stream)
    first = type("Once", (MiddlewareBase,), {hook: method})()
    agent = agent_of([[call("1", "add", a=1, b=2)], "the end"], add, middlewares=[first])
    assert (await order_of(agent)).endswith("RE(interrupted) Msg")
    assert agent.state.last_reply.finished_reason == "interrupted"


async def test_from_another_thread(stage):
    agent = agent_of([stage.model, "next"])
    order = await until_interrupted(agent, stage, interrupt=lambda: to_thread.run_sync(agent.interrupt))
    assert order == "RS MS ME RE(interrupted) Msg"
    await assert_well(agent)


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="signals are different here")
async def test_from_a_signal_handler_while_the_loop_sleeps(monkeypatch, stage):
    monkeypatch.setattr(agentrt._runtime.concurrency.interrupt, "_TICK_SECONDS", 3600.0)  # nothing else wakes it
    agent = agent_of([stage.model, "next"])
    before = signal.signal(signal.SIGALRM, lambda *_: agent.interrupt())
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        assert await order_of(agent) == "RS MS ME RE(interrupted) Msg"
    finally:
        signal.signal(signal.SIGALRM, before)
    await assert_well(agent)


@pytest.mark.parametrize("at", ["RS", "MS", "TX_DELTA", "ME"])
async def test_interrupt_between_events_ends_it_at_the_next_step(at):
    agent = agent_of(["one two", "next"])
    names = []
    async with agent.reply_stream("go") as events:
        async for event in events:
            names.append(short(event))
            if names[-1] == at:
                agent.interrupt()
                await anyio.lowlevel.checkpoint()  # nothing hits the reader
    after = {
        "RS": ["RE(interrupted)"],
        "MS": ["ME", "RE(interrupted)"],
        "TX_DELTA": ["TX_END", "ME", "RE(interrupted)"],
        "ME": ["RE(interrupted)"],
    }
    assert names[names.index(at) + 1 :] == after[at]
    await assert_well(agent, "one two" if at in ("RS", "MS") else "next")


async def test_a_second_interrupt_changes_nothing(stage):
    agent = agent_of([stage.model, "next"])

    async def interrupt_twice() -> tuple:
        return agent.interrupt("first"), agent.interrupt("second")

    answer = await until_interrupted(agent, stage, reply_of, interrupt_twice)
    assert "(first)" in answer.get_text_content()
    await assert_well(agent)


@pytest.mark.parametrize("save", [1, 2, 3])
async def test_during_a_save_the_save_is_finished_first(save):
    class Store(InMemoryStateStore):
        saves = 0

        async def save(self, state: AgentState) -> None:
            self.saves += 1
            if self.saves == save:
                agent.interrupt()
                await anyio.lowlevel.checkpoint()
            await super().save(state)

    store = Store()
    agent = agent_of([[call("1", "add", a=1, b=2)], "next"], add, state_store=store)
    assert (await order_of(agent)).endswith("RE(interrupted) Msg")
    assert await store.load(agent.state.session_id) == agent.state
    agent.model._responses = iter(["next"])
    await assert_well(agent)


async def test_between_replies_there_is_nothing_to_interrupt():
    agent = agent_of(["one", "two"])
    assert not agent.interrupt()
    await agent.reply("go")
    assert not agent.interrupt()
    assert (await agent.reply("go")).get_text_content() == "two"


async def test_interrupting_may_be_awaited_and_given_a_message():
    agent = agent_of(["one two three"])
    assert not await agent.interrupt()
    async with agent.reply_stream("go", yield_final_msg=True) as items:
        async for item in items:
            if isinstance(item, TextBlockDeltaEvent):
                assert repr(await agent.interrupt(AssistantMsg("boss", "lunch"))) == "True"
    assert "(lunch)" in (item.get_text_content() or "")


async def test_a_reply_that_waits_is_put_to_rest_at_once():
    agent = agent_of([[call("1", "add", a=1, b=2)], "next"], FunctionTool(add, ask=True))
    await agent.reply("go")
    assert agent.interrupt()
    assert not agent.interrupt()
    assert agent.state.context[-1].get_content_blocks("tool_result")[0].state == "interrupted"
    await assert_well(agent)


async def test_user_interrupt_event_ends_the_running_reply_of_its_id(stage):
    agent = agent_of([stage.model, "next"])

    async def interrupt() -> bool:
        return (await agent.reply(UserInterruptEvent(agent.run.id))).finished_reason == "interrupted"

    assert await until_interrupted(agent, stage, interrupt=interrupt) == "RS MS ME RE(interrupted) Msg"
    await assert_well(agent)


class Told(Agent):
    async def handle_interrupt(self, inputs=None, *, reason=None):
        await anyio.lowlevel.checkpoint()
        return AssistantMsg(self.name, f"{inputs.get_text_content()} was interrupted: {reason}")


async def test_the_reason_reaches_the_message_of_a_subclass(stage):
    agent = Told("a", model=ScriptedChatModel([stage.model, "next"]))
    answer = await until_interrupted(agent, stage, reply_of, lambda: agent.interrupt("the user pressed stop"))
    assert answer.get_text_content() == "go was interrupted: the user pressed stop"
    assert answer.finished_reason == "interrupted"
    await assert_well(agent)


@pytest.mark.parametrize("place", ["model", "wait", "wait_in_context", "stream"])
async def test_a_reply_that_is_awaited_stops_like_one_that_is_read(place, stage):
    calls = stage.model if place == "model" else [call("1", place)]
    agent = agent_of([calls, "next"], stage.wait, stage.wait_in_context, stage.stream)
    answer = await until_interrupted(agent, stage, reply_of)
    assert answer.finished_reason == "interrupted"
    await assert_well(agent)


async def test_a_save_is_not_interrupted():
    begun, saved = anyio.Event(), []

    class Slow(InMemoryStateStore):
        async def save(self, state):
            last = state.reply_context.blocks[-1:] if state.reply_context else []
            if last and last[0].type == "tool_result":
                begun.set()
                for _ in range(5):
                    await anyio.lowlevel.checkpoint()
                saved.append(agent.live_conversation.run.interruption.reason)
            await super().save(state)

    async def interrupt() -> None:
        await begun.wait()
        agent.interrupt()

    agent = agent_of([[call("1", "add", a=1, b=2)], "never said", "next"], add, state_store=Slow())
    async with anyio.create_task_group() as group:
        group.start_soon(interrupt)
        assert (await agent.reply("go")).finished_reason == "interrupted"
    assert saved == ["interrupted"]


KEPT = AssistantMsg("a", "kept")


def plain(self, inputs=None, *, reason=None):
    return KEPT


async def nothing(self, inputs=None, *, reason=None):
    return None


async def failing(self, inputs=None, *, reason=None):
    raise LookupError("no words")


@pytest.mark.parametrize(
    ("override", "error", "words"),
    [
        (plain, ChainContractError, r"Mistaken.handle_interrupt\(\) must be a coroutine function"),
        (nothing, ChainContractError, r"Mistaken.handle_interrupt\(\) must return a Msg, not None"),
        (failing, LookupError, "no words"),
    ],
)
async def test_a_mistaken_message_leaves_after_the_end_is_on_record(override, error, words, stage):
    agent = type("Mistaken", (Agent,), {"handle_interrupt": override})("a", model=ScriptedChatModel([stage.model, "x"]))
    names = []

    async def read_until_error(agent: Agent) -> None:
        with pytest.raises(error, match=words):
            await read(agent, names)

    await until_interrupted(agent, stage, read_until_error)
    assert names == ["RS", "MS", "ME", "RE(interrupted)"]
    await assert_well(agent, "x")


async def test_a_message_that_a_subclass_keeps_is_left_as_it_is(stage):
    async def kept(self, inputs=None, *, reason=None):
        return KEPT

    agent = type("Keeping", (Agent,), {"handle_interrupt": kept})("a", model=ScriptedChatModel([stage.model, "next"]))
    answer = await until_interrupted(agent, stage, reply_of)
    assert (answer.get_text_content(), answer.finished_reason) == ("kept", "interrupted")
    assert KEPT.finished_reason is None


async def test_another_conversation_of_the_same_agent_goes_on(stage):
    first = agent_of([stage.model, stage.model, "next"])
    second = first.with_state(AgentState())
    answers = {}

    async def ask(name: str, agent: Agent) -> None:
        answers[name] = await agent.reply("go")

    async with anyio.create_task_group() as group:
        group.start_soon(ask, "first", first)
        group.start_soon(ask, "second", second)
        await stage.reached.wait()
        await anyio.wait_all_tasks_blocked()
        first.interrupt()
        await anyio.wait_all_tasks_blocked()
        assert "second" not in answers
        stage.goes_on.set()
    assert answers["first"].finished_reason == "interrupted"
    assert answers["second"].get_text_content() == "went on"
    await assert_well(first)


class SwallowStream(MiddlewareBase):
    """Layers that let nothing out but `Exception`s, and not even these."""

    async def on_reasoning(self, agent, input_kwargs, next_handler):
        try:
            async for item in next_handler():
                yield item
        except anyio.get_cancelled_exc_class():
            pass

    async def on_acting(self, agent, input_kwargs, next_handler):
        try:
            async for item in next_handler():
                yield item
        except anyio.get_cancelled_exc_class():
            pass


class Catch(MiddlewareBase):
    async def on_reasoning(self, agent, input_kwargs, next_handler):
        try:
            async for item in next_handler():
                yield item
        except Exception:  # noqa: BLE001  # what is tested
            pass

    async def on_model_call(self, agent, input_kwargs, next_handler):
        try:
            return await next_handler()
        except Exception:  # noqa: BLE001  # what is tested
            return await next_handler()

    on_acting = on_reasoning


@pytest.mark.parametrize("layer", [SwallowStream, Catch])
@pytest.mark.parametrize("where", ["model", "tool", "tools"])
async def test_no_layer_can_keep_an_interrupted_reply_alive(where, layer, stage):
    calls = [call("1", "wait"), call("2", "wait")][: 1 if where == "tool" else 2]
    agent = agent_of([stage.model if where == "model" else calls, "next"], stage.wait, middlewares=[layer()])
    assert (await until_interrupted(agent, stage)).endswith("RE(interrupted) Msg")
    await assert_well(agent)


@pytest.mark.parametrize("where", ["tool", "tools"])
async def test_reply_ends_though_a_tool_swallows_the_cancellation(where, stage):
    async def stubborn() -> str:
        try:
            await stage.wait()
        except anyio.get_cancelled_exc_class():
            pass
        return "still here"

    calls = [call("1", "stubborn"), call("2", "stubborn")][: 1 if where == "tool" else 2]
    agent = agent_of([calls, "next"], stubborn)
    assert (await until_interrupted(agent, stage)).endswith("RE(interrupted) Msg")
    await assert_well(agent)


async def test_tool_that_swallows_and_waits_again_is_cancelled_again(monkeypatch, stage):
    monkeypatch.setattr(agentrt._runtime.concurrency.interrupt, "_STUBBORN_SECONDS", 0.01)
    swallowed = []

    async def stubborn() -> str:
        for _ in range(3):
            try:
                await stage.wait()
            except anyio.get_cancelled_exc_class():
                swallowed.append(1)
        return "given up"

    agent = agent_of([[call("1", "stubborn")], "next"], stubborn)
    assert (await until_interrupted(agent, stage)).endswith("RE(interrupted) Msg")
    assert len(swallowed) == 3
    await assert_well(agent)


async def test_the_clean_up_of_layers_and_tools_runs_to_its_end(stage):
    done = []

    class Tidy(MiddlewareBase):
        async def on_acting(self, agent, input_kwargs, next_handler):
            try:
                async for item in next_handler():
                    yield item
            finally:
                with anyio.CancelScope(shield=True):
                    await anyio.lowlevel.checkpoint()
                    done.append("layer")

    async def tidy() -> str:
        try:
            return await stage.wait()
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.lowlevel.checkpoint()
                done.append("tool")

    agent = agent_of([[call("1", "tidy")], "next"], tidy, middlewares=[Tidy()])
    await until_interrupted(agent, stage)
    assert done == ["tool", "layer"]
    await assert_well(agent)


@ONLY_ASYNCIO
async def test_on_asyncio_the_clean_up_needs_no_shield(stage):
    done = []

    async def tidy() -> str:
        try:
            return await stage.wait()
        finally:
            await asyncio.sleep(0.01)
            done.append("tool")

    agent = agent_of([[call("1", "tidy")], "next"], tidy)
    await until_interrupted(agent, stage)
    assert done == ["tool"]
    await assert_well(agent)


STAGES = ["model", "tool", "tools"]


def waiting_agent(where: str, stage: Stage) -> Agent:
    calls = [call("1", "wait"), call("2", "wait")][: 1 if where == "tool" else 2]
    return agent_of([stage.model if where == "model" else calls, "next"], stage.wait)


async def read(agent: Agent, names: list[str]) -> None:
    async with agent.reply_stream("go") as events:
        async for event in events:
            names.append(short(event))


@pytest.mark.parametrize("first", ["interrupt", "cancel"])
@pytest.mark.parametrize("where", STAGES)
async def test_a_scope_that_is_cancelled_in_the_same_moment_is_left(where, first, stage):
    agent, names = waiting_agent(where, stage), []

    async def both() -> None:
        await stage.reached.wait()
        for act in [agent.interrupt, scope.cancel] if first == "interrupt" else [scope.cancel, agent.interrupt]:
            act()

    async with anyio.create_task_group() as group:
        with anyio.CancelScope() as scope:
            group.start_soon(both)
            await read(agent, names)
    assert scope.cancelled_caught
    assert "RE(interrupted)" not in names
    await assert_well(agent)


@pytest.mark.parametrize("where", STAGES)
async def test_fail_after_in_the_same_moment_raises_its_timeout(where, stage):
    agent = waiting_agent(where, stage)
    with pytest.raises(TimeoutError):
        with anyio.fail_after(60) as scope:

            async def both() -> None:
                await stage.reached.wait()
                agent.interrupt()
                scope.deadline = anyio.current_time()

            async with anyio.create_task_group() as group:
                group.start_soon(both)
                await read(agent, [])
                await anyio.sleep_forever()
    await assert_well(agent)


@pytest.mark.parametrize("where", ["a model", "a tool", "two tools", "a layer"])
async def test_swallowed_cancellation_still_reaches_the_caller(where):
    names, ran, running = [], [], anyio.Event()

    async def hang() -> None:
        running.set()
        await anyio.sleep_forever()

    async def model(messages, tools):
        try:
            await hang()
        except anyio.get_cancelled_exc_class():
            pass
        return "still here"

    async def stubborn() -> str:
        return await model([], [])

    async def wait() -> str:
        await hang()

    async def run() -> str:
        ran.append(1)
        return "ran"

    tool = wait if where == "a layer" else stubborn
    calls = [call("1", tool.__name__)] + [call("2", tool.__name__)] * (where == "two tools") + [call("3", "run")]
    layers = [SwallowStream()] if where == "a layer" else []
    agent = agent_of([model if where == "a model" else calls, "next"], tool, middlewares=layers)
    agent.toolkit.register_tool_function(FunctionTool(run, is_concurrency_safe=False))

    async def cancel() -> None:
        await running.wait()
        scope.cancel()

    async with anyio.create_task_group() as group:
        with anyio.CancelScope() as scope:
            group.start_soon(cancel)
            await read(agent, names)
    assert scope.cancelled_caught
    assert not ran
    assert not [name for name in names if name.startswith(("RESULT_END", "RE("))]
    assert names.count("MS") == 1
    assert agent.state.last_reply.finished_reason == "interrupted"
    assert (await agent.reply("and now?")).get_text_content() == "next"


@ONLY_ASYNCIO
@pytest.mark.parametrize("first", ["interrupt", "cancel"])
@pytest.mark.parametrize("where", STAGES)
async def test_task_cancelled_in_the_same_moment_is_cancelled(where, first, stage):
    agent, names = waiting_agent(where, stage), []
    task = asyncio.create_task(read(agent, names))
    await stage.reached.wait()
    for act in [agent.interrupt, task.cancel] if first == "interrupt" else [task.cancel, agent.interrupt]:
        act()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert task.cancelled()
    assert "RE(interrupted)" not in names
    await assert_well(agent)


@ONLY_ASYNCIO
async def test_task_cancelled_so_is_cancelled_if_a_layer_swallows_both(stage):
    agent = agent_of([stage.model, "next"], middlewares=[SwallowStream()])
    task = asyncio.create_task(agent.reply("go"))
    await stage.reached.wait()
    agent.interrupt()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await assert_well(agent)


@ONLY_ASYNCIO
@pytest.mark.parametrize("where", STAGES)
async def test_asyncio_timeout_in_the_same_moment_raises_its_timeout(where, stage):
    agent = waiting_agent(where, stage)

    async def both() -> None:
        await stage.reached.wait()
        agent.interrupt()
        timeout.reschedule(0)

    beside = asyncio.create_task(both())
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(60) as timeout:
            await read(agent, [])
            await asyncio.Event().wait()
    await beside
    await assert_well(agent)


async def test_scope_inside_a_tool_does_not_catch_the_interruption(stage):
    async def patient() -> str:
        with anyio.move_on_after(60):
            return await stage.wait()
        return "a minute went by"

    agent = agent_of([[call("1", "patient")], "next"], patient)
    assert (await until_interrupted(agent, stage)).endswith("RESULT_END:1(interrupted) RE(interrupted) Msg")
    await assert_well(agent)


async def test_a_scope_inside_of_a_layer_keeps_its_own_timeouts(stage):
    class Hurried(MiddlewareBase):
        async def on_model_call(self, agent, input_kwargs, next_handler):
            with anyio.move_on_after(0.01):
                return await next_handler()
            return await next_handler()

    agent = agent_of([stage.model, "in time"], middlewares=[Hurried()])
    assert (await agent.reply("go")).get_text_content() == "in time"


@ONLY_ASYNCIO
async def test_each_step_may_be_read_by_a_task_of_its_own(stage):
    agent = agent_of([stage.model, "next"])
    stream = agent.reply_stream("go")
    names = []
    while not names or not names[-1].startswith("RE"):
        step = asyncio.create_task(anext(stream))
        if names[-1:] == ["MS"]:
            await stage.reached.wait()
            asyncio.get_running_loop().call_soon(agent.interrupt)
        names.append(short(await step))
    await stream.aclose()
    assert names == ["RS", "MS", "ME", "RE(interrupted)"]
    await assert_well(agent)


PROGRAM = """
import os, signal, sys, threading
import anyio
from agentrt import Agent, AgentState, Toolkit
from agentrt.message import ToolCallBlock
from agentrt.model import ScriptedChatModel
from agentrt.state import FileStateStore

signal.signal(signal.SIGINT, signal.default_int_handler)  # it is ignored in what a shell started in the background

def press_ctrl_c():
    threading.Timer(0.1, os.kill, [os.getpid(), signal.SIGINT]).start()

async def hang(*_):
    "Hang."
    press_ctrl_c()
    await anyio.sleep_forever()

async def tool() -> str:
    "Hang."
    return await hang()

where, directory, backend = sys.argv[1:]
count = {"model": 0, "tool": 1, "tools": 2}[where]
calls = [ToolCallBlock(str(number), "tool", "{}") for number in range(count)]
model = ScriptedChatModel([calls or hang, "next"])
store = FileStateStore(directory)
agent = Agent("a", model=model, toolkit=Toolkit(tools=[tool]), state=AgentState(session_id="s"), state_store=store)
press = threading.Lock()
if count == 2:
    first = []
    def press_ctrl_c(once=press_ctrl_c):
        if not first:
            first.append(1)
            once()
try:
    anyio.run(agent.reply, "go", backend=backend)
except KeyboardInterrupt:
    print("left")

async def again():
    state = await store.load("s")
    assert state.reply_context is None and state.last_reply.finished_reason == "interrupted", state
    states = [str(block.state) for block in state.context[-1].get_content_blocks("tool_result")]
    print(*states, (await agent.with_state(state).reply("again")).get_text_content())

anyio.run(again, backend=backend)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="os.kill is different here")
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@pytest.mark.parametrize(("where", "told"), [("model", "next"), ("tool", "interrupted next"), ("tools", None)])
def test_ctrl_c_leaves_and_the_state_on_the_disk_goes_on(tmp_path, where, told, backend):
    program = [sys.executable, "-W", "error", "-c", PROGRAM, where, str(tmp_path), backend]
    done = subprocess.run(program, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.split("\n")[:2] == ["left", told or "interrupted interrupted next"]
