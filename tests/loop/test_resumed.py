"""A reply goes on after its process died: numbers never repeat, and whoever listens comes to the message that is kept.

A process dies here at each event in turn: what its store holds then is all that the next one gets. The model says
something else in each process.
"""

from collections.abc import Sequence
from itertools import repeat
from typing import Any

import pytest

from agentrt import Agent, AgentState, MiddlewareBase, Msg, Toolkit
from agentrt._runtime.conversation.progress import Phase
from agentrt.errors import InvalidInputError, ResumeError
from agentrt.event import (
    AgentEvent,
    CustomEvent,
    ReplyEndEvent,
    ReplyResumedEvent,
    ReplyStartEvent,
    RequireUserConfirmEvent,
    UserInterruptEvent,
)
from agentrt.message import AssistantMsg, Base64Source, DataBlock, TextBlock, ThinkingBlock, UserMsg
from agentrt.model import ScriptedChatModel
from agentrt.state import InMemoryStateStore
from agentrt.tool import FunctionTool
from tests.loop.helpers import add, agent_of, call, confirmation_of, elsewhere, items_of, rebuilt, short


class Speaks(MiddlewareBase):
    async def on_reply(self, agent, input_kwargs, next_handler):
        yield CustomEvent("first")
        async for item in next_handler():
            yield item


class Adds(MiddlewareBase):
    async def on_reply(self, agent, input_kwargs, next_handler):
        async for item in next_handler():
            yield item
            if isinstance(item, (ReplyEndEvent, RequireUserConfirmEvent)):
                yield CustomEvent("more")


class Conceals(MiddlewareBase):
    async def on_reply(self, agent, input_kwargs, next_handler):
        async for item in next_handler():
            if not isinstance(item, (ReplyStartEvent, ReplyResumedEvent)):
                yield item


LAYERS = pytest.mark.parametrize(
    "layers", [[], [Speaks], [Adds], [Conceals]], ids=["bare", "speaks", "adds", "conceals"]
)


async def careful(a: int) -> int:
    return a


def life(state: AgentState, number: int, layers: Sequence[type[MiddlewareBase]] = ()) -> Agent:
    """Return the agent of one process, which has its own words."""

    def respond(messages: Sequence[Msg], tools: object) -> Any:
        called = [block for message in messages for block in message.get_content_blocks("tool_call")]
        if not called:
            thinking = ThinkingBlock(f"hm {number}", signature=str(number))
            return [thinking, TextBlock(f"looking in process {number}"), call(f"{number}-a", "add", a=number, b=1)]
        if len(called) == 1:
            picture = DataBlock(Base64Source("YQ==", "image/png"))
            return [TextBlock(f"asking in process {number}"), picture, call(f"{number}-b", "careful", a=number)]
        return f"done in process {number}"

    tools = Toolkit(tools=[add, FunctionTool(careful, ask=True)])
    model = ScriptedChatModel(repeat(respond))
    middlewares = [layer() for layer in layers]
    return Agent("tester", "", model, tools, middlewares=middlewares, state=state, state_store=Keeps(state))


class Keeps(InMemoryStateStore):
    """Holds what was saved, as JSON, for whoever comes after the process."""

    def __init__(self, state: AgentState) -> None:
        super().__init__()
        state.revision = 0  # this store has nothing yet
        self.session_id = state.session_id
        self.left: AgentState | None = None

    async def save(self, state: AgentState) -> None:
        await super().save(state)
        self.left = await self.load(self.session_id)


class Listener:
    """Rebuilds the message of the reply from all that it is sent, by all processes."""

    def __init__(self) -> None:
        self.message = AssistantMsg("", [])
        self.numbers: list[int] = []

    async def hear(self, agent: Agent, events: int, **options: Any) -> AgentState | None:
        """Listen to that many events of the process, which then dies; return what it has left."""
        state, store = agent.state, agent.state_store
        before = state.revision
        while True:
            left = state.reply_context
            inputs: Any = None if left is not None else "go"
            if left is not None and left.parked:
                inputs = confirmation_of(agent)
                self.message.append_event(inputs)
            async with agent.reply_stream(inputs, **options) as stream:
                async for event in stream:
                    self.take(event)
                    events -= 1
                    if events <= 0:
                        return store.left if store.left is not None or before else None
            if state.reply_context is None:
                return store.left

    def take(self, event: AgentEvent) -> None:
        self.numbers.append(event.seq)
        self.message.append_event(event)

    def check(self, state: AgentState) -> None:
        assert state.reply_context is None
        assert self.message == next(message for message in state.context if message.id == self.message.id)
        assert self.numbers == sorted(set(self.numbers))


async def events_of_a_life(layers: Sequence[type[MiddlewareBase]]) -> int:
    listener = Listener()
    state = await listener.hear(life(AgentState(), 0, layers), 10_000)
    assert state is not None
    listener.check(state)
    return len(listener.numbers)


@pytest.fixture
def listener() -> Listener:
    return Listener()


async def test_an_interrupt_of_what_a_dead_process_left_announces_all(listener):
    left = await listener.hear(life(AgentState(), 0), 14)  # its first call is running
    assert left.reply_context is not None
    agent = life(left, 1)
    async for event in agent.reply_stream(UserInterruptEvent(left.reply_context.reply_id)):
        listener.take(event)
    assert listener.message.get_content_blocks("tool_result")[0].state == "unknown"
    assert listener.message.finished_reason == "interrupted"
    listener.check(agent.state)


async def test_a_parked_reply_that_a_layer_starts_again_is_in_progress():
    class Again(MiddlewareBase):
        async def on_reply(self, agent, input_kwargs, next_handler):
            async for _ in next_handler():
                pass
            phases.append((agent.live_conversation.run.progress.phase, agent.state.reply_context.parked))
            async for item in next_handler():
                phases.append(
                    (
                        agent.live_conversation.run.progress.phase,
                        agent.state.reply_context and agent.state.reply_context.parked,
                    )
                )
                yield item

    phases: list[Any] = []
    agent = agent_of([[call("1", "careful", a=1)], "done"], FunctionTool(careful, ask=True), middlewares=[Again()])
    await agent.reply("go")
    assert phases[0] == (Phase.WAITING, True)
    assert phases[1] == (Phase.OPEN, False)
    assert agent.state.reply_context is None


class ResumesAgain(MiddlewareBase):
    """Leaves a reply that resumes at one of its items, and calls `next_handler` again."""

    def __init__(self, item_number: int) -> None:
        self.item_number = item_number
        self.left_at: str | None = None

    async def on_reply(self, agent, input_kwargs, next_handler):
        if not isinstance(input_kwargs["inputs"], Msg):
            stream = next_handler()
            for _ in range(self.item_number):
                yield await anext(stream)
            self.left_at = short(await anext(stream))
        async for item in next_handler():
            yield item


async def test_a_layer_may_resume_a_resumed_reply_again():
    runs: list[int] = []

    async def careful(a: int) -> str:
        runs.append(a)
        return f"did {a}"

    for layer in map(ResumesAgain, range(8)):
        runs.clear()
        script = [[call("1", "careful", a=1)], "done", "done"]
        agent = agent_of(script, FunctionTool(careful, ask=True), middlewares=[layer])
        asking = await items_of(agent, UserMsg("user", "go"))
        confirmed = confirmation_of(agent)
        heard = rebuilt([*asking, *await items_of(agent, confirmed)])
        message = agent.state.context[-1]
        [result] = message.get_content_blocks("tool_result")
        assert (len(runs), result.state) in {(0, "unknown"), (1, "unknown"), (1, "success")}, layer.left_at
        assert message.get_text_content() == "done", layer.left_at
        assert heard.content == message.content, layer.left_at


async def test_a_reply_that_is_resumed_again_asks_again():
    class LeavesAtQuestion(MiddlewareBase):
        async def on_reply(self, agent, input_kwargs, next_handler):
            if not isinstance(input_kwargs["inputs"], Msg):
                async for item in next_handler():
                    if isinstance(item, RequireUserConfirmEvent):
                        break
            async for item in next_handler():
                yield item

    script = [[call("1", "careful", a=1)], [call("2", "careful", a=2)]]
    agent = agent_of(script, FunctionTool(careful, ask=True), middlewares=[LeavesAtQuestion()])
    await items_of(agent, UserMsg("user", "go"))
    confirmed = confirmation_of(agent)
    *_, question, message = await items_of(agent, confirmed)
    assert isinstance(question, RequireUserConfirmEvent)
    assert question.seq == agent.waiting().seq
    assert [each.id for each in question.tool_calls] == [each.id for each in message.get_content_blocks("tool_call")]


@LAYERS
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_listener_rebuilds_the_message_after_any_crash(layers):
    for cut in range(1, await events_of_a_life(layers) + 1):
        listener = Listener()
        left = await listener.hear(life(AgentState(), 1, layers), cut)
        if left is None or left.reply_context is None:
            continue  # nothing of it was saved, or all
        state = await listener.hear(life(left, 2, layers), 10_000)
        assert state is not None
        listener.check(state)


@LAYERS
async def test_numbers_do_not_repeat_after_several_crashes(layers, listener):
    state: AgentState | None = AgentState()
    for number, cut in enumerate([9, 2, 1, 1, 12, 3, 10_000], 1):
        state = await listener.hear(life(state, number, layers), cut)
        assert state is not None
    listener.check(state)


async def test_a_listener_of_the_resumed_reply_alone_rebuilds_it(listener):
    left = await Listener().hear(life(AgentState(), 1), 12)
    assert left is not None
    state = await listener.hear(life(left, 2), 10_000)
    assert state is not None
    listener.check(state)


async def test_after_a_crash_numbers_are_above_all_that_were_sent(listener):
    left = await listener.hear(life(AgentState(), 1), 12)
    assert left is not None
    items = await items_of(agent_of(["hello"], state=left), "something else")
    assert items[0].seq > listener.numbers[-1]
    assert short(items[0]) == "RS"


async def test_block_ids_do_not_repeat_with_another_text(listener):
    left = await listener.hear(life(AgentState(), 1), 6)
    shown = {block.id for block in listener.message.get_content_blocks()}
    assert shown
    assert left is not None
    events = [item for item in await items_of(life(left, 2), None) if not isinstance(item, Msg)]
    assert short(events[0]) == "RESUMED"
    assert shown.isdisjoint({event.block_id for event in events if short(event) in ("TX_START", "TH_START")})


async def test_an_answer_to_a_parked_reply_goes_on_without_saying_so():
    agent = life(AgentState(), 1)
    items = await items_of(agent)
    later = await items_of(agent, confirmation_of(agent))
    assert "RESUMED" not in [short(item) for item in later]
    assert later[0].seq == items[-2].seq + 1


async def test_a_resumed_reply_is_printed_with_its_beginning():
    left = await Listener().hear(life(AgentState(), 1), 22)
    assert left is not None
    agent = life(left, 2)
    agent.set_msg_queue_enabled(True)
    await items_of(agent, None)
    texts = []
    while not agent.msg_queue.empty():
        message, _, _ = await agent.msg_queue.get()
        texts.append(message.get_text_content())
    assert "looking in process 1" in texts[-1]


async def test_numbers_begin_above_what_the_listener_has():
    agent = agent_of(["hello", "again"])
    async with agent.reply_stream("go", after=100) as events:
        assert (await anext(aiter(events))).seq == 101
    async with agent.reply_stream("go", after=50) as events:
        assert (await anext(aiter(events))).seq == agent.state.sequence + 1 > 101


# The same reply asked for again

ASKED = [[TextBlock("let me see"), call("1", "add", a=1, b=2)], "three"]


@pytest.mark.parametrize("saved", [False, True])
async def test_a_reply_asked_for_again_repeats_its_message(saved):
    agent = agent_of(ASKED, add)
    first = await agent.reply("1 + 2?", reply_id="key:1")
    assert first.id == agent.reply_id == "key:1"
    if saved:
        agent = elsewhere(agent)
    again = await agent.reply("1 + 2?", reply_id="key:1")
    assert again.get_text_content() == first.get_text_content() == "three"
    assert (again.id, again.finished_reason, again.usage) == (first.id, first.finished_reason, first.usage)
    assert [short(item) for item in await stream_of(agent, "other words", reply_id="key:1")] == ["Msg"]
    assert len(agent.model.calls) == 2
    assert len(agent.state.context) == 2


async def stream_of(agent: Agent, inputs: Any, **options: Any) -> list[AgentEvent | Msg]:
    async with agent.reply_stream(inputs, yield_final_msg=True, **options) as stream:
        return [item async for item in stream]


async def test_a_repeated_reply_leaves_the_history_as_it_is():
    agent = agent_of(["three"])
    await agent.reply("1 + 2?", reply_id="k")
    message = agent.state.context[-1]
    message.content = "left out"
    assert (await agent.reply("1 + 2?", reply_id="k")).get_text_content() == "left out"
    assert agent.state.context[-1] is message
    assert message.content == "left out"


async def test_an_answer_with_a_form_comes_again_with_it():
    form = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    agent = agent_of([[call("1", "GenerateStructuredOutput", n=3)]])
    first = await agent.reply("1 + 2?", form, reply_id="k")
    again = await agent.reply("1 + 2?", form, reply_id="k")
    assert again.structured_output == first.structured_output == {"n": 3}
    assert again.get_text_content() == first.get_text_content()


async def test_a_reply_that_failed_is_not_run_again_under_its_id():
    agent = agent_of([ConnectionError("down"), "never"])
    with pytest.raises(ConnectionError):
        await agent.reply("go", reply_id="k")
    again = await agent.reply("go", reply_id="k")
    assert (again.finished_reason, again.error, again.content) == ("error", "ConnectionError", [])
    assert len(agent.model.calls) == 1


async def test_the_id_of_a_reply_in_progress_resumes_it(listener):
    left = await listener.hear(life(AgentState(), 1), 12, reply_id="k")
    assert left is not None
    agent = life(left, 2)
    items = await stream_of(agent, "go", reply_id="k")
    assert short(items[0]) == "RESUMED"
    assert [message.role for message in left.context] == ["user"]
    question = await agent.reply("go", reply_id="k")
    assert question.get_text_content() == items[-1].get_text_content() == "Waiting for an answer about 'careful' (2-b)."
    assert [block.id for block in question.get_content_blocks("tool_call")] == ["2-b"]
    answer = confirmation_of(agent)
    assert (await agent.reply(answer, reply_id="k")).get_text_content() == "done in process 2"


async def test_the_id_of_a_reply_that_others_came_after_is_refused():
    agent = agent_of(["one", "two", "three"])
    await agent.reply("go", reply_id="a")
    await agent.reply("go", reply_id="b")
    with pytest.raises(ResumeError, match="'a' is over, and others came after it") as caught:
        await agent.reply("go", reply_id="a")
    assert caught.value.code == "conflict"
    assert (await agent.reply("go", reply_id="c")).get_text_content() == "three"


async def test_an_input_that_goes_on_with_another_reply_is_refused():
    agent = life(AgentState(), 1)
    await agent.reply("go", reply_id="k")
    answer = confirmation_of(agent)
    for inputs in (answer, None):
        with pytest.raises(ResumeError, match="reply_id='other' names another one") as caught:
            await agent.reply(inputs, reply_id="other")
        assert caught.value.code == "mismatch"
    with pytest.raises(ResumeError, match="waits for an answer") as caught:
        await agent.reply("something else", reply_id="other")
    assert caught.value.code == "pending"


async def test_the_same_id_in_two_conversations_is_two_replies():
    inner = Agent("inner", "", ScriptedChatModel(["inner"]), when_busy="wait")

    async def delegate() -> str:
        return (await inner.reply("go", reply_id="k")).get_text_content() or ""

    outer = agent_of([[call("1", "delegate")], "outer"], delegate, when_busy="wait")
    await outer.reply("go", reply_id="k")
    assert outer.state.context[1].get_content_blocks("tool_result")[0].output[0].text == "inner"
    await outer.observe(inner.state.context[1])
    assert (await outer.reply("go", reply_id="k")).get_text_content() == "outer"


async def test_a_class_of_ones_own_is_given_the_id_as_well():
    class Own(Agent):
        async def reply(self, msg=None):
            return await super().reply(msg)

    agent = Own("own", "", ScriptedChatModel(["hello"]))
    assert (await agent.reply("go", reply_id="k")).id == "k"
    assert (await agent("go", reply_id="k")).get_text_content() == "hello"


@pytest.mark.parametrize("reply_id", ["", "a b", "a/b", "x" * 129, "\u00e4", "a\n", 7])
def test_an_id_that_names_no_reply_is_refused(reply_id):
    with pytest.raises(InvalidInputError, match="reply_id must be a str of 1 to 128 letters"):
        agent_of([]).reply_stream("go", reply_id=reply_id)


@pytest.mark.parametrize("after", [-1, 1.5, True, "7", 2**53, None])
def test_a_number_that_no_event_has_is_refused(after):
    with pytest.raises(InvalidInputError, match="after must be the number of an event"):
        agent_of([]).reply_stream("go", after=after)
