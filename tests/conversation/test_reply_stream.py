"""A reply as a stream: it starts late, closes everything, and lets go of the conversation."""

import asyncio
import copy
import gc
import pickle
import re
import sys
import threading
from collections.abc import Callable
from functools import partial
from typing import Any, get_args

import anyio.lowlevel
import pytest

from agentrt import Agent, AgentState, MiddlewareBase, Toolkit, UserMsg
from agentrt.agent import ReplyStream
from agentrt.errors import AgentBusyError, ConfigError, InvalidInputError, UsageError
from agentrt.event import CustomEvent, UserInterruptEvent
from agentrt.message import (
    HintBlock,
    Msg,
    ProviderBlock,
    SystemMsg,
    TextBlock,
    ThinkingBlock,
    ToolCallBlock,
    ToolResultState,
)
from agentrt.model import ChatResponse, ScriptedChatModel
from agentrt.tool import FunctionTool, ToolContext
from tests.loop.helpers import add, agent_of, call, confirmation_of, items_of, short


class Running:
    """Tools that say when they run and when they are stopped."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.on_start: Callable[[], object] = lambda: None

    async def wait(self, context: ToolContext) -> str:
        self.log.append("started")
        context.emit(CustomEvent("started"))
        self.on_start()
        try:
            await anyio.sleep_forever()
        finally:
            self.log.append("stopped")
        return "never"


async def test_nothing_happens_before_the_first_item_is_asked_for():
    agent = agent_of(["hello"])
    stream = agent.reply_stream("go")
    await agent.reply("first")
    assert [message.role for message in agent.state.context] == ["user", "assistant"]
    await stream.aclose()
    assert len(agent.model.calls) == 1


async def test_reply_call_and_stream_give_the_same_message():
    agent = agent_of(["hello"] * 3)
    streamed = (await items_of(agent.with_state(AgentState())))[-1]
    replied = await agent.with_state(AgentState()).reply("go")
    called = await agent.with_state(AgentState())("go")
    assert {message.get_text_content() for message in (streamed, replied, called)} == {"hello"}
    assert {message.finished_reason for message in (streamed, replied, called)} == {"completed"}


async def test_leaving_the_block_closes_the_stream_in_the_same_task():
    log = []

    class Model(type(agent_of([]).model)):
        async def _call(self, messages, tools, tool_choice):
            async def stream():
                try:
                    while True:
                        yield ChatResponse([TextBlock("a", "t")], is_last=False)
                finally:
                    log.append(anyio.get_current_task().id)

            return stream()

    agent = Agent("tester", "", Model([]))
    async with agent.reply_stream("go") as events:
        async for event in events:
            if short(event) == "TX_DELTA":
                break
    assert log == [anyio.get_current_task().id]
    assert agent.state.last_reply.finished_reason == "interrupted"


async def test_a_plain_break_stops_tools_and_the_next_reply_answers():
    tools = Running()
    agent = agent_of([[call(n, "wait") for n in "123"], "next"], tools.wait)
    started = 0
    async for event in agent.reply_stream("go"):
        started += short(event) == "started"
        if started == 3:
            break
    answer = await agent.reply("and now?")
    assert answer.get_text_content() == "next"
    assert tools.log == ["started"] * 3 + ["stopped"] * 3
    results = agent.state.context[1].get_content_blocks("tool_result")
    assert [result.state for result in results] == [ToolResultState.INTERRUPTED] * 3


async def test_an_error_in_the_readers_own_body_stops_the_tools_too():
    tools = Running()
    agent = agent_of([[call("1", "wait")], "next"], tools.wait)

    async def read() -> None:
        async for event in agent.reply_stream("go"):
            if short(event) == "started":
                raise KeyError("the reader's own")

    with pytest.raises(KeyError):
        await read()
    assert (await agent.reply("and now?")).get_text_content() == "next"
    assert tools.log == ["started", "stopped"]


async def test_the_callers_own_timeout_leaves_and_the_state_is_whole():
    tools = Running()
    agent = agent_of([[call("1", "wait"), call("2", "wait")], "next"], tools.wait)

    def time_out_when_both_run() -> None:
        if tools.log == ["started", "started"]:
            scope.deadline = anyio.current_time()

    tools.on_start = time_out_when_both_run
    with pytest.raises(TimeoutError):
        with anyio.fail_after(60) as scope:
            await agent.reply("go")
    assert tools.log == ["started", "started", "stopped", "stopped"]
    assert agent.state.reply_context is None
    assert agent.state.last_reply.finished_reason == "interrupted"
    assert (await agent.reply("and now?")).get_text_content() == "next"


async def test_a_model_that_never_suspends_can_be_cancelled():
    def endless():
        while True:
            yield ChatResponse([TextBlock("a", "t")], is_last=False)

    class Model(type(agent_of([]).model)):
        async def _call(self, messages, tools, tool_choice):
            async def stream():
                for response in endless():
                    yield response

            return stream()

    agent = Agent("tester", "", Model([]))
    with anyio.move_on_after(0.05) as scope:
        await agent.reply("go")
    assert scope.cancelled_caught


async def test_a_second_reply_is_refused_while_the_first_is_read():
    agent = agent_of(["hello"])
    async with agent.reply_stream("go") as events:
        await anext(aiter(events))
        with pytest.raises(AgentBusyError, match="already has a reply in progress: finish it, close it with"):
            await agent.reply("me too")
    assert (await agent.reply("now")).get_text_content() == "hello"


async def test_with_state_gives_a_conversation_beside_it():
    agent = agent_of(["one two", "three"])
    other = agent.with_state(AgentState())
    async with agent.reply_stream("go") as events:
        await anext(aiter(events))
        assert (await other.reply("me too")).get_text_content() == "one two"
    assert other.chains is agent.chains
    assert other.state.session_id != agent.state.session_id
    assert [message.role for message in other.state.context] == ["user", "assistant"]


async def test_replies_that_wait_are_served_in_the_order_they_came():
    agent = agent_of(["a b", "c", "d", "e"], when_busy="wait")
    waiting: list[str] = []

    async def ask(text: str) -> None:
        await agent.reply(text)
        waiting.append(text)

    async with anyio.create_task_group() as group, agent.reply_stream("first") as events:
        await anext(aiter(events))
        for text in ("second", "third", "fourth"):
            group.start_soon(ask, text)
            await anyio.wait_all_tasks_blocked()
    assert waiting == ["second", "third", "fourth"]


async def test_a_waiting_reply_that_is_cancelled_passes_its_turn_on():
    agent = agent_of(["hello"], when_busy="wait")
    answers: list[Msg] = []

    async def ask() -> None:
        answers.append(await agent.reply("third"))

    async with anyio.create_task_group() as group, agent.reply_stream("first") as events:
        await anext(aiter(events))
        with anyio.move_on_after(0.01):
            async with anyio.create_task_group() as inner:
                inner.start_soon(agent.reply, "second")
        group.start_soon(ask)
        await anyio.wait_all_tasks_blocked()
    assert [answer.get_text_content() for answer in answers] == ["hello"]


async def test_a_reply_that_would_wait_for_itself_is_refused():
    async def ask_again(context: ToolContext) -> str:
        return (await context.agent.reply("again")).get_text_content() or ""

    agent = agent_of([[call("1", "ask_again")], "done"], ask_again, when_busy="wait")
    await agent.reply("go")
    result = agent.state.context[1].get_content_blocks("tool_result")[0]
    assert "a reply cannot wait for itself" in result.output[0].text
    async with agent_of(["a b"], when_busy="wait").reply_stream("go") as events:
        await anext(aiter(events))


async def test_reading_a_stream_while_waiting_for_it_is_refused():
    agent = agent_of(["a b", "c"], when_busy="wait")
    async with agent.reply_stream("go") as events:
        await anext(aiter(events))
        with pytest.raises(AgentBusyError, match="a reply cannot wait for itself"):
            await agent.reply("me too")


async def test_a_stream_that_was_never_read_leaves_nothing():
    agent = agent_of(["hello"])
    agent.reply_stream("go")
    gc.collect()
    assert (await agent.reply("go")).get_text_content() == "hello"


@pytest.mark.parametrize(
    ("name", "value", "remedy"),
    [
        ("model", "rules", "write agent.model = chat_model"),
        ("toolkit", [add], "write agent.toolkit = Toolkit"),
        ("toolkit", (add,), "write agent.toolkit = Toolkit"),
    ],
)
async def test_a_part_assigned_in_a_short_form_is_refused(name, value, remedy):
    agent = agent_of(["Hello."])
    setattr(agent, name, value)
    for ask in (agent.reply, agent, agent.with_state(AgentState()).reply):
        with pytest.raises(ConfigError, match=re.escape(remedy)):
            await ask("Hi!")
    with pytest.raises(ConfigError, match=re.escape(remedy)):
        await agent.compress_context()


@pytest.mark.parametrize("duplicate", [copy.deepcopy, pickle.dumps])
def test_a_stream_that_cannot_be_copied_says_so_and_stays(duplicate, monkeypatch):
    unraisable = []
    monkeypatch.setattr(sys, "unraisablehook", unraisable.append)
    stream = agent_of(["Hello."]).reply_stream("Hi!")
    with pytest.raises(TypeError, match="async_generator"):
        duplicate(stream)
    gc.collect()
    assert unraisable == []
    assert "not started" in repr(stream)


def test_the_type_of_a_stream_takes_one_parameter_or_two():
    assert get_args(ReplyStream[CustomEvent])[1:] in [(Any,), ()]
    assert get_args(ReplyStream[CustomEvent, int]) == (CustomEvent, int)


def test_a_stream_that_outlives_its_event_loop_says_nothing():
    async def drop_late() -> None:
        agent = agent_of(["one two three"])
        kept.append(agent.reply_stream("go"))
        await anext(aiter(kept[0]))

    kept: list = []
    anyio.run(drop_late)
    kept.clear()
    gc.collect()


def test_a_plain_for_says_how_to_read_a_stream():
    with pytest.raises(TypeError) as caught:
        for _ in agent_of([]).reply_stream("go"):
            pass
    assert str(caught.value) == (
        "a reply stream is asynchronous: write `async for event in agent.reply_stream(...)` in an `async def`, "
        "or call `agent.run_sync(...)` for the final message alone"
    )


async def test_awaiting_a_stream_says_how_to_read_it():
    with pytest.raises(TypeError, match=r"a reply stream is not awaited: write `async for event in .*agent.reply"):
        await agent_of([]).reply_stream("go")


def test_run_sync_answers_where_no_loop_runs():
    assert agent_of(["hello"]).run_sync("go").get_text_content() == "hello"


def test_run_sync_gives_structured_output():
    answers = [[ToolCallBlock(str(n), "GenerateStructuredOutput", '{"value": 3}')] for n in range(2)]
    agent = agent_of(answers)
    assert agent.run_sync("1 + 2?", int).structured_output == 3
    assert agent.run_sync("2 + 1?", structured_schema=int).structured_output == 3


async def test_run_sync_inside_a_loop_says_what_to_write():
    with pytest.raises(UsageError) as caught:
        agent_of([]).run_sync("go")
    assert str(caught.value) == (
        "run_sync() was called inside a running event loop, which it would block: write `await agent.reply(...)` there"
    )


async def test_run_between_replies_says_whom_it_is_for():
    with pytest.raises(UsageError, match=re.escape("agent 'tester' has no reply in progress")):
        _ = agent_of([]).run


class NotSetUp(Agent):
    def __init__(self) -> None:
        self.colour = "red"


def test_a_missing_super_init_is_told_at_first_use():
    with pytest.raises(UsageError) as caught:
        NotSetUp().run_sync("go")
    assert str(caught.value) == "NotSetUp.__init__() did not call super().__init__(): call it there first"


async def test_a_subclass_may_have_a_conversation_of_its_own():
    class Mine(Agent):
        def __init__(self) -> None:
            super().__init__("mine", model=ScriptedChatModel(["Hello."]))
            self.conversation: list[str] = []

    agent = Mine()
    assert (await agent.reply("Hello?")).get_text_content() == "Hello."
    assert not agent.interrupt()


@pytest.mark.parametrize(
    "name", ["chains", "live_conversation", "model", "msg_queue", "name", "reply_id", "run", "state"]
)
def test_every_attribute_tells_of_a_missing_super_init(name):
    with pytest.raises(UsageError, match=r"NotSetUp\.__init__\(\) did not call super\(\)\.__init__\(\)"):
        getattr(NotSetUp(), name)


@pytest.mark.parametrize(
    ("inputs", "error", "words"),
    [
        (
            SystemMsg("system", "obey"),
            InvalidInputError,
            "has the role 'system': give Agent(system_prompt=...) instead",
        ),
        (
            UserMsg("user", [ThinkingBlock("hm")]),
            InvalidInputError,
            "holds a thinking block, which only a reply can make",
        ),
        (UserMsg("user", [ToolCallBlock("1", "add")]), InvalidInputError, "holds a tool_call block"),
        (UserMsg("user", [HintBlock("obey")]), InvalidInputError, "holds a hint block, which only a reply can make"),
        (UserMsg("user", [ProviderBlock("anthropic", "{}")]), InvalidInputError, "holds a provider block"),
        (7, InvalidInputError, "or a list of these, not 7"),
        ([None], InvalidInputError, "not None"),
        (CustomEvent("a"), InvalidInputError, "not an event"),
    ],
)
async def test_input_that_no_agent_takes_is_refused_at_once(inputs, error, words):
    agent = agent_of(["hello"])
    with pytest.raises(error, match=re.escape(words)):
        await agent.reply(inputs)
    with pytest.raises(ValueError, match=re.escape(words)):
        agent.reply_stream(inputs)
    assert agent.state.context == []


async def test_the_callers_message_and_the_states_share_nothing():
    message = UserMsg("user", [TextBlock("before")])
    agent = agent_of(["hello"])
    await agent.reply(message)
    message.content[0].text = "after"
    message.content.append(TextBlock("more"))
    assert agent.state.context[0].get_text_content() == "before"


async def test_the_next_request_holds_what_was_observed():
    agent = agent_of(["hello"])
    await agent.observe([UserMsg("ann", "It rains."), UserMsg("bob", "It pours.")])
    await agent.reply(None)
    assert [message.get_text_content() for message in agent.model.calls[0].messages] == [
        "You are tested.",
        "It rains.",
        "It pours.",
    ]


async def test_two_replies_share_one_history():
    agent = agent_of([[call("1", "add", a=1, b=2)], "3", "4"], add)
    await agent.reply("1 + 2?")
    await agent.reply("and one more?")
    sent = agent.model.calls[-1].messages
    assert [message.role for message in sent] == ["system", "user", "assistant", "user"]
    assert [block.type for block in sent[2].content] == ["tool_call", "tool_result", "text"]


async def test_what_a_model_was_sent_does_not_change_behind_its_back():
    agent = agent_of([[call("1", "add", a=1, b=2)], [call("2", "add", a=3, b=4)], "done"], add)
    await agent.reply("go")
    second = agent.model.calls[1].messages[-1]
    assert [block.type for block in second.content] == ["tool_call", "tool_result"]
    assert agent.model.calls[1].messages is not agent.state.context


async def test_a_middleware_sees_the_conversation_it_works_for():
    seen = []

    class Look(MiddlewareBase):
        async def on_reply(self, agent, input_kwargs, next_handler):
            seen.append((agent, agent.run.id))
            async for item in next_handler():
                yield item

    agent = agent_of(["a", "b"], middlewares=[Look()])
    other = agent.with_state(AgentState())
    first = await agent.reply("go")
    second = await other.reply("go")
    assert seen == [(agent, first.id), (other, second.id)]


async def test_an_agent_closes_its_model():
    agent = agent_of(["hello"])
    closed = []

    async def aclose():
        closed.append(True)

    agent.model.aclose = aclose
    async with agent as same:
        assert same is agent
        assert (await agent.reply("go")).get_text_content() == "hello"
        assert closed == []
    assert closed == [True]


def test_run_sync_closes_the_model_in_its_own_event_loop():
    agent = agent_of(["hello"])
    loops = []

    async def aclose():
        loops.append(asyncio.get_running_loop())

    async def remember(messages, tools):
        loops.append(asyncio.get_running_loop())
        return "again"

    agent.model.aclose = aclose
    assert agent.run_sync("go").get_text_content() == "hello"
    agent = agent_of([remember])
    agent.model.aclose = aclose
    agent.run_sync("go")
    assert len(loops) == 3
    assert loops[1] is loops[2]


async def test_what_a_system_says_to_all_is_observed_as_a_users_words():
    agent = agent_of(["done"])
    await agent.observe([SystemMsg("moderator", "Be brief."), UserMsg("user", "Go.")])
    assert [(msg.name, msg.role) for msg in agent.state.context] == [("moderator", "user"), ("user", "user")]


# The turn belongs to the state


async def test_two_agents_over_one_state_reply_one_at_a_time():
    agent = agent_of(["one", "two"])
    other = agent.with_state(agent.state)
    async with agent.reply_stream("first") as events:
        await anext(aiter(events))
        with pytest.raises(AgentBusyError, match="already has a reply in progress"):
            await other.reply("second")
        async for _ in events:
            pass
    await other.reply("second")
    assert [message.get_text_content() for message in agent.state.context] == ["first", "one", "second", "two"]


async def test_two_agents_over_one_state_wait_for_each_other_in_order():
    agent = agent_of(["a", "b", "c", "d"], when_busy="wait")
    async with anyio.create_task_group() as group:
        for number in range(4):
            group.start_soon(agent.with_state(agent.state).reply, str(number))
    said = [message.get_text_content() for message in agent.state.context]
    assert said[1::2] == ["a", "b", "c", "d"]
    assert sorted(said[::2]) == ["0", "1", "2", "3"]


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_agents_over_one_state_take_turns_across_threads(backend):
    are_in, may_go_on = threading.Semaphore(0), threading.Event()

    async def wait() -> str:
        are_in.release()
        await anyio.to_thread.run_sync(may_go_on.wait)
        return "waited"

    async def queue_up(view: Agent) -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(view.reply, "go")
            await anyio.wait_all_tasks_blocked()
            are_in.release()

    first = agent_of([[call("1", "wait")], "done"], wait, when_busy="wait")
    later = [agent_of(["done"], state=first.state, when_busy="wait") for _ in range(2)]
    threads = []
    for main in (partial(first.reply, "go"), *(partial(queue_up, view) for view in later)):
        threads.append(threading.Thread(target=partial(anyio.run, main, backend=backend), daemon=True))
        threads[-1].start()
        assert are_in.acquire(timeout=30)
    may_go_on.set()
    for thread in threads:
        thread.join(timeout=30)
    assert not any(thread.is_alive() for thread in threads)
    assert [message.role for message in first.state.context] == ["user", "assistant"] * 3


async def test_of_two_answers_to_one_state_only_one_is_taken():
    ran: list[int] = []

    async def careful(a: int) -> str:
        ran.append(a)
        await anyio.lowlevel.checkpoint()
        return "done"

    agent = agent_of([[call("1", "careful", a=1)], "done"], FunctionTool(careful, ask=True), when_busy="wait")
    await agent.reply("go")
    answer = confirmation_of(agent)
    answers: list[str | None] = []

    async def say_yes(view: Agent) -> None:
        answers.append((await view.reply(answer)).get_text_content())

    async with anyio.create_task_group() as group:
        for _ in range(2):
            group.start_soon(say_yes, agent.with_state(agent.state))
    assert ran == [1]
    assert answers == ["done", "done"]
    assert [message.role for message in agent.state.context] == ["user", "assistant"]


async def test_another_agent_over_the_state_can_interrupt_the_reply():
    tools = Running()
    agent = agent_of([[call("1", "wait")]], tools.wait)
    other = agent.with_state(agent.state)
    async with agent.reply_stream("go") as events:
        async for event in events:
            if short(event) == "started":
                assert other.interrupt()
    assert agent.state.last_reply.finished_reason == "interrupted"
    assert [short(item) for item in await items_of(other, UserInterruptEvent(agent.reply_id))] == ["Msg"]


async def test_a_state_is_copied_saved_and_compared_without_its_lock():
    agent = agent_of(["one", "two", "three"])
    async with agent.reply_stream("go") as events:
        await anext(aiter(events))
        for twin in (copy.deepcopy(agent.state), copy.copy(agent.state), pickle.loads(pickle.dumps(agent.state))):
            assert twin == agent.state
            twin.reply_context, twin.context = None, []
            assert (await agent.with_state(twin).reply("beside")).finished_reason == "completed"
        assert "turns" not in agent.state.model_dump_json()


# Replies that would wait for each other


async def test_two_replies_that_would_wait_for_each_other_are_told_so():
    both_ask = Gathering(2)

    async def ask_bob() -> str:
        await both_ask.wait()
        return (await bob.reply("from alice")).get_text_content() or ""

    async def ask_alice() -> str:
        await both_ask.wait()
        return (await alice.reply("from bob")).get_text_content() or ""

    alice = agent_of([[call("1", "ask_bob")], "alice is done", "to bob"], ask_bob, when_busy="wait")
    bob = agent_of([[call("1", "ask_alice")], "bob is done", "to alice"], ask_alice, when_busy="wait")
    async with anyio.create_task_group() as group:
        group.start_soon(alice.reply, "go")
        group.start_soon(bob.reply, "go")
    results = [agent.state.context[1].get_content_blocks("tool_result")[0] for agent in (alice, bob)]
    [refused] = [result.output[0].text for result in results if result.state is ToolResultState.ERROR]
    assert "two replies would deadlock" in refused
    assert [agent.state.context[1].finished_reason for agent in (alice, bob)] == ["completed"] * 2


async def test_readers_that_would_wait_for_each_other_are_told_so():
    agents = [agent_of(["one two", "three"], when_busy="wait") for _ in range(3)]
    all_read = Gathering(3)
    refused: list[str] = []

    async def read(place: int) -> None:
        async with agents[place].reply_stream("go") as events:
            async for event in events:
                if short(event) == "MS":
                    await all_read.wait()
                    try:
                        await agents[(place + 1) % 3].reply("me too")
                    except AgentBusyError as error:
                        refused.append(str(error))

    async with anyio.create_task_group() as group:
        for place in range(3):
            group.start_soon(read, place)
    assert len(refused) == 1
    assert "two replies would deadlock" in refused[0]


async def test_a_chain_of_waiting_replies_without_a_circle_is_served():
    async def ask_next(context: ToolContext) -> str:
        asked.release()
        place = agents.index(context.agent.name)
        return (await made[place + 1].reply("go")).get_text_content() or ""

    asked = Gathering(1)
    agents = ["a", "b", "c"]
    model = type(agent_of([]).model)
    made = [
        Agent(
            name,
            "",
            model([[call("1", "ask_next")], "ok", "ok"] if name != "c" else ["x y", "z", "z"]),
            Toolkit(tools=[ask_next]),
            when_busy="wait",
        )
        for name in agents
    ]
    async with made[2].reply_stream("go") as events:
        await anext(aiter(events))
        async with anyio.create_task_group() as group:
            group.start_soon(made[0].reply, "go")
            await asked.wait()
            async for _ in events:
                pass
    assert made[0].state.context[1].finished_reason == "completed"


class Gathering:
    """Lets everybody go on as soon as so many have come."""

    def __init__(self, parties: int) -> None:
        self._parties = parties
        self._complete = anyio.Event()

    def release(self) -> None:
        self._parties -= 1
        if self._parties <= 0:
            self._complete.set()

    async def wait(self) -> None:
        self.release()
        await self._complete.wait()


async def test_a_reply_dropped_by_a_test_is_closed_before_the_check():
    async for _ in agent_of(["one two"], middlewares=[SlowToLeave()]).reply_stream("go"):
        break


class SlowToLeave(MiddlewareBase):
    """Takes some turns of the event loop to leave a reply."""

    async def on_reply(self, agent, input_kwargs, next_handler):
        try:
            async for item in next_handler():
                yield item
        finally:
            for _ in range(5):
                await anyio.lowlevel.checkpoint()
