"""The events of a reply rebuild its message, whatever the model, the tools, the layers and the reader do.

The first part plays random replies through a real agent and checks, after each, everything that holds for every reply.
The second part holds single scripts that are odd enough to be worth a name.
"""

import base64
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import chain, pairwise, repeat
from typing import Any

import anyio.lowlevel
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrt import Agent, AgentState, MiddlewareBase, Msg, Toolkit
from agentrt.agent import ReActConfig
from agentrt.errors import ChainContractError, InvalidInputError, Malformed, UsageError
from agentrt.event import AgentEvent, CustomEvent, ModelCallRetryEvent, ReplyEndEvent
from agentrt.message import (
    AssistantMsg,
    Base64Source,
    ContentBlock,
    DataBlock,
    HintBlock,
    TextBlock,
    ThinkingBlock,
    ToolCallBlock,
    ToolCallState,
    ToolResultBlock,
    ToolResultState,
    URLSource,
)
from agentrt.model import ChatResponse, ScriptedChatModel
from agentrt.state import InMemoryStateStore
from agentrt.tool import FunctionTool, ToolContext
from agentrt.types import ToolChunk, ToolResponse
from tests.loop.helpers import AgainReply, AgainRound, add, agent_of, call, items_of, rebuilt, short

# What every reply owes

FAMILIES = ("TEXT_BLOCK", "THINKING_BLOCK", "DATA_BLOCK", "TOOL_CALL", "TOOL_RESULT")
FINAL = {*ToolResultState} - {ToolResultState.RUNNING}
Items = list[AgentEvent | Msg]


def events_of(items: Items) -> list[AgentEvent]:
    return [item for item in items if not isinstance(item, Msg)]


def check_state(state: AgentState) -> None:
    """Check what holds for a conversation between two replies."""
    assert state.reply_context is None
    for message in state.context:
        assert message.content, "an empty message"
        check_calls(message)
    assert AgentState.model_validate_json(state.model_dump_json()) == state


def check_calls(message: Msg) -> None:
    """Check that each call has exactly one result, after it, and that the result says how it ended."""
    calls = message.get_content_blocks("tool_call")
    results = message.get_content_blocks("tool_result")
    assert sorted(each.id for each in calls) == sorted(each.id for each in results)
    assert len({each.id for each in calls}) == len(calls)
    assert all(each.state is ToolCallState.FINISHED for each in calls)
    assert all(each.state in FINAL for each in results)


def check_asked(model: ScriptedChatModel) -> None:
    """Check that the model never saw a call without its result."""
    for asked in model.calls:
        for message in asked.messages:
            check_calls(message)


def check_numbers(items: Items, before: int, *, whole: bool) -> None:
    numbers = [before, *(event.seq for event in events_of(items))]
    steps = [after - before for before, after in pairwise(numbers)]
    assert all(step > 0 for step in steps), numbers
    assert not whole or all(step == 1 for step in steps[1:]), numbers


def check_nesting(items: Items, *, whole: bool) -> None:
    """Check that each block begins, grows, ends, in this order, or is dropped; in a whole reply none stays open."""
    begun: set[tuple[str, str]] = set()
    ended: set[tuple[str, str]] = set()
    for event in events_of(items):
        if isinstance(event, ModelCallRetryEvent):
            begun = {block for block in begun if block[1] not in event.block_ids}
            ended = {block for block in ended if block[1] not in event.block_ids}
        family = next((each for each in FAMILIES if event.type.startswith(each)), None)
        if family is None:
            continue
        block = family, getattr(event, "tool_call_id", None) or event.block_id
        if event.type.endswith("_START"):
            assert block not in begun, f"{short(event)} began twice"
            begun.add(block)
        assert block in begun, f"{short(event)} before its start"
        assert block not in ended, f"{short(event)} after its end"
        if event.type.endswith("_END"):
            ended.add(block)
    if whole:
        assert begun == ended


def told_in(items: Items) -> list[str]:
    return [item.name for item in items if isinstance(item, CustomEvent) and item.value == "told"]


def check_reply(agent: Agent, items: Items, before: int) -> None:
    """Check what holds after each reply of which anything was seen."""
    ends = [item for item in items if isinstance(item, ReplyEndEvent)]
    whole = [short(end) for end in ends] in (["RE(completed)"], ["RE(exceed_max_iters)"])
    outcome = agent.state.last_reply
    check_state(agent.state)
    check_asked(agent.model)
    check_numbers(items, before, whole=whole)
    check_nesting(items, whole=whole)
    assert outcome.reply_id == items[0].reply_id
    assert [end.finished_reason for end in ends] in ([], [outcome.finished_reason])
    if ends:
        message = rebuilt(items)
        assert message == (agent.state.context[-1] if message.content else message)
        assert all(each.id != message.id for each in agent.state.context[:-1])
    if isinstance(items[-1], Msg):
        assert told_in(items) == items[-1].metadata.get("told", [])
        assert (items[-1].id, items[-1].finished_reason) == (outcome.reply_id, outcome.finished_reason)


# A random model


CALLS: list[tuple[str, str]] = [
    ("add", '{"a": 1, "b": 2}'),
    ("add", '{"a": "x", "b": 2}'),
    ("add", '{"a": 1'),
    ("nope", "{}"),
    ("fail", "{}"),
    ("count", "{}"),
    ("alone", "{}"),
    ("tell", '{"waits": true}'),
    ("draw", "{}"),
    ("", ""),
    ("finish", "{}"),
]
texts = st.text("ab \n", max_size=8)
data = st.binary(max_size=4).map(lambda each: base64.b64encode(each).decode())
pictures = st.builds(
    DataBlock,
    st.builds(Base64Source, data, st.just("image/png")) | st.just(URLSource("https://example.org/a", "image/png")),
    id=st.sampled_from("pq"),
)
words: st.SearchStrategy[ContentBlock] = st.one_of(
    st.builds(TextBlock, texts),
    st.builds(TextBlock, texts),
    st.builds(ThinkingBlock, texts, signature=st.none() | st.just("sig")),
    pictures,
)


@st.composite
def calls_in_pieces(draw: st.DrawFn) -> list[ToolCallBlock]:
    """Draw up to four calls, each cut into pieces, with the pieces of different calls mixed."""
    rows: list[list[ToolCallBlock]] = []
    for number, (name, text) in enumerate(draw(st.lists(st.sampled_from(CALLS), max_size=4))):
        places = sorted(draw(st.sets(st.integers(0, len(text)), max_size=2)))
        cuts = pairwise([0, *places, len(text)])
        rows.append([ToolCallBlock(str(number), name, text[start:end]) for start, end in cuts])
    order = draw(st.permutations([place for place, row in enumerate(rows) for _ in row]))
    return [rows[place].pop(0) for place in order]


@st.composite
def streams(draw: st.DrawFn) -> list[Any]:
    pieces: list[Any] = draw(st.lists(words, max_size=5)) + draw(calls_in_pieces()) + draw(st.lists(words, max_size=1))
    script = [ChatResponse([piece], is_last=False) for piece in pieces]
    cut = draw(st.none() | st.none() | st.integers(0, len(script)))
    return script if cut is None else [*script[:cut], ConnectionError("cut")]


whole_calls = st.builds(
    lambda name, call_id: ToolCallBlock(call_id, *name), st.sampled_from(CALLS), st.sampled_from(["0", "1", ""])
)
answers = st.builds(ChatResponse, st.lists(words | whole_calls, max_size=5))
responses = streams() | streams() | answers | st.just(ConnectionError("down")) | texts


OUTPUTS = {"add": "3", "count": "0 1 2 ", "alone": "worked alone", "tell": "told", "draw": "drawing drawing "}


def check_outputs(state: AgentState) -> None:
    """Check that each call that succeeded has what its tool puts out, once."""
    for message in state.context:
        for result in message.get_content_blocks("tool_result"):
            if result.state is ToolResultState.SUCCESS and result.name in OUTPUTS:
                texts = [block.text for block in result.output if isinstance(block, TextBlock)]
                assert "".join(texts) == OUTPUTS[result.name]


class Tools:
    async def fail(self) -> str:
        raise ValueError("broken")

    async def count(self) -> Any:
        for n in range(3):
            yield f"{n} "

    async def alone(self) -> str:
        return "worked alone"

    async def tell(self, context: ToolContext, waits: bool = False) -> str:
        context.emit(CustomEvent("begun"))
        if waits:
            await anyio.lowlevel.checkpoint()
        context.emit(CustomEvent("over"))
        return "told"

    async def draw(self) -> Any:
        for piece in (b"one", b"two"):
            source = Base64Source(base64.b64encode(piece).decode(), "image/png")
            yield ToolChunk([DataBlock(source, "a.png", "drawn"), TextBlock("drawing ", "said")])

    async def finish(self) -> ToolResponse:
        return ToolResponse([TextBlock("ok")], metadata={"response_msg": AssistantMsg("tool", "the end"), "n": 1})

    @property
    def toolkit(self) -> Toolkit:
        alone = FunctionTool(self.alone, is_concurrency_safe=False)
        return Toolkit(tools=[add, self.fail, self.count, alone, self.tell, self.draw, self.finish])


# Random layers


class Hint(MiddlewareBase):
    async def on_reply(self, agent, input_kwargs, next_handler):
        hints = iter(["sure?", "quite sure?"])
        async for item in next_handler():
            if short(item) == "ME" and (hint := next(hints, None)):
                agent.run.continue_with(hint)
            yield item


class Tell(MiddlewareBase):
    """Emits events where it may, from every hook, and notes them."""

    emits = True

    def _tell(self, agent, name):
        agent.run.emit(CustomEvent(name, "told"))
        agent.run.scratch(self).setdefault("told", []).append(name)

    async def on_reply(self, agent, input_kwargs, next_handler):
        self._tell(agent, "before")
        async for item in next_handler():
            if short(item) in ("MS", "TX_START"):
                self._tell(agent, f"saw {short(item)}")
            if isinstance(item, Msg):
                item.metadata["told"] = agent.run.scratch(self)["told"]
            yield item

    async def on_system_prompt(self, agent, current_prompt):
        self._tell(agent, "prompt")
        return current_prompt

    async def on_model_call(self, agent, input_kwargs, next_handler):
        self._tell(agent, "calling")
        await anyio.lowlevel.checkpoint()
        return await next_handler()

    async def on_acting(self, agent, input_kwargs, next_handler):
        self._tell(agent, "acting")
        async for item in next_handler():
            yield item


class Retry(MiddlewareBase):
    """Asks the model again when its stream is cut."""

    emits = True

    async def on_model_call(self, agent, input_kwargs, next_handler):
        async def stream(result):
            try:
                async for response in result:
                    yield response
            except ConnectionError:
                agent.run.emit(ModelCallRetryEvent("cut"))
                again = await next_handler()
                if isinstance(again, ChatResponse):
                    yield again
                    return
                async for response in again:
                    yield response

        result = await next_handler()
        return result if isinstance(result, ChatResponse) else stream(result)


class Judge(MiddlewareBase):
    """Is content with the second answer only."""

    async def on_reasoning(self, agent, input_kwargs, next_handler):
        async for item in next_handler():
            yield item
            if short(item) == "ME":
                break
        async for item in next_handler():
            yield item


class JudgeReply(MiddlewareBase):
    """Starts the reply again when it has read its first answer."""

    async def on_reply(self, agent, input_kwargs, next_handler):
        async for item in next_handler():
            yield item
            if short(item) == "ME":
                break
        async for item in next_handler():
            yield item


class Relay(MiddlewareBase):
    async def on_reasoning(self, agent, input_kwargs, next_handler):
        async for item in next_handler():
            yield item

    async def on_acting(self, agent, input_kwargs, next_handler):
        async for item in next_handler():
            yield item


LAYERS: list[type[MiddlewareBase]] = [Hint, Tell, Retry, AgainRound, AgainReply, Judge, JudgeReply, Relay]


class SlowStore(InMemoryStateStore):
    """Takes its time, so that saving may be cancelled too."""

    async def save(self, state: AgentState) -> None:
        await anyio.lowlevel.checkpoint()
        await super().save(state)


# A random reader


@dataclass
class Reader:
    """Reads a reply to its end, or stops after some items: by leaving the block, by a plain `break`, by cancelling."""

    how: str = "drain"
    after: int = 0
    items: Items = field(default_factory=list)

    async def read(self, agent: Agent) -> None:
        with suppress(ConnectionError, Malformed), anyio.CancelScope() as scope:
            stream = agent.reply_stream("go", yield_final_msg=True)
            if self.how == "break":
                async for item in stream:
                    self.items.append(item)
                    if len(self.items) == self.after:
                        break
                return
            async with stream:
                async for item in stream:
                    self.items.append(item)
                    if len(self.items) == self.after and self.how == "leave":
                        break
                    if len(self.items) == self.after:
                        scope.cancel()


drained = st.builds(Reader)
readers = drained | st.builds(Reader, st.sampled_from(["leave", "break", "cancel"]), st.integers(1, 40))


@dataclass
class Play:
    """Some replies of one conversation, one after the other."""

    script: list[Any]
    layers: list[type[MiddlewareBase]]
    max_iters: int
    is_saved: bool
    readers: list[Reader]

    async def run(self) -> None:
        for reader in self.readers:
            reader.items.clear()
        agent = Agent(
            "tester",
            "You are tested.",
            ScriptedChatModel(chain(self.script, repeat("done"))),
            Tools().toolkit,
            [layer() for layer in self.layers],
            react_config=ReActConfig(self.max_iters),
            state_store=SlowStore() if self.is_saved else None,
        )
        with anyio.fail_after(10):
            for reader in self.readers:
                before = agent.state.sequence
                await reader.read(agent)
                await closed(agent)
                check_reply(agent, reader.items, before)
                check_outputs(agent.state)
                await self.check_saved(agent)
            agent.model = ScriptedChatModel(repeat("done"))
            last = Reader()
            before = agent.state.sequence
            await last.read(agent)
            check_reply(agent, last.items, before)
            assert last.items[-1].get_text_content() == "done"
            await self.check_saved(agent)

    async def check_saved(self, agent: Agent) -> None:
        if agent.state_store is not None:
            assert await agent.state_store.load(agent.state.session_id) == agent.state


async def closed(agent: Agent) -> None:
    """Wait until a reply that was dropped is closed."""
    with suppress(UsageError):
        while agent.run:
            await anyio.lowlevel.checkpoint()


plays = st.builds(
    Play,
    st.lists(responses, max_size=6),
    st.lists(st.sampled_from(LAYERS), unique=True, max_size=3),
    st.integers(1, 3),
    st.booleans(),
    st.lists(readers, min_size=1, max_size=2),
)


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@settings(max_examples=60, deadline=None, database=None)
@given(plays)
def test_the_events_and_the_message_of_a_reply_say_the_same(backend, play):
    anyio.run(play.run, backend=backend)


# Odd scripts

RICH: list[Any] = [
    [
        ChatResponse([piece], is_last=False)
        for piece in (ThinkingBlock("hm"), TextBlock("so"), ToolCallBlock("1", "add"))
    ],
    ChatResponse(
        [TextBlock("see"), call("1", "add", a=1, b=2), ToolCallBlock("2", "count"), ToolCallBlock("3", "alone")]
    ),
    [ThinkingBlock("hm"), DataBlock(Base64Source("YQ==", "image/png"))],
]


@pytest.mark.parametrize("how", ["leave", "break", "cancel"])
async def test_a_reader_may_stop_at_every_single_item(how):
    whole = Reader()
    await whole.read(Agent("tester", "", ScriptedChatModel(RICH), Tools().toolkit))
    assert {short(item).split(":")[0] for item in whole.items} >= {
        "RS",
        "RESULT_END",
        "CALL_END",
        "DATA_BLOCK_END",
        "Msg",
    }
    for after in range(1, len(whole.items) + 1):
        await Play(RICH, [], 3, True, [Reader(how, after)]).run()


@pytest.mark.parametrize("how", ["leave", "break"])
async def test_leaving_between_start_and_delta_keeps_no_empty_text(how):
    """Providers refuse an empty text block, and the conversation with it, for good."""
    agent = agent_of(["hello", "more"])
    reader = Reader(how, 3)
    await reader.read(agent)
    await closed(agent)
    assert short(reader.items[-1]) == "TX_START"
    assert [
        block for message in agent.state.context for block in message.get_content_blocks("text") if not block.text
    ] == []


async def test_a_reply_cancelled_while_its_end_is_saved_is_saved():
    class Held(InMemoryStateStore):
        async def save(self, state: AgentState) -> None:
            if state.last_reply is not None and not scope.cancel_called:
                scope.cancel()
                await anyio.lowlevel.checkpoint()
            await super().save(state)

    agent = agent_of(["hello"], state_store=Held())
    with anyio.CancelScope() as scope:
        await agent.reply("go")
    assert scope.cancelled_caught
    assert await agent.state_store.load(agent.state.session_id) == agent.state


@pytest.mark.parametrize("name", ["", "no such tool"])
async def test_a_call_of_an_unknown_tool_gets_an_error_result(name):
    agent = agent_of([[ToolCallBlock("1", name)], "done"], add)
    items = await items_of(agent)
    assert items[-1].get_text_content() == "done"
    check_reply(agent, items, 0)


async def test_a_block_that_no_model_writes_ends_the_reply_cleanly():
    for block in (HintBlock("x"), ToolResultBlock("1", "add", "3")):
        agent = agent_of([[ChatResponse([TextBlock("so"), block], is_last=False)], "done"], add)
        with pytest.raises(ChainContractError, match="an answer holds text, thinking, data and tool calls"):
            await agent.reply("go")
        check_state(agent.state)
        assert (await agent.reply("again")).get_text_content() == "done"


@pytest.mark.parametrize("content", ["the end", "", []])
async def test_a_tool_may_end_the_reply_with_a_message(content):
    async def finish() -> ToolResponse:
        return ToolResponse([TextBlock("ok")], metadata={"response_msg": AssistantMsg("tool", content)})

    agent = agent_of([[call("1", "finish"), call("2", "finish")], "more"], finish)
    items = await items_of(agent)
    assert (items[-1].get_text_content() or "") == (content or "")
    assert len(agent.model.calls) == 1
    check_reply(agent, items, 0)


async def test_a_tool_that_ends_the_reply_with_a_call_makes_no_loop():
    async def finish() -> ToolResponse:
        return ToolResponse(metadata={"response_msg": AssistantMsg("tool", [call("9", "add", a=1, b=2)])})

    agent = agent_of([[call("1", "finish")], "more"], finish, add)
    items = []
    with anyio.fail_after(30), suppress(ChainContractError, InvalidInputError):
        async with agent.reply_stream("go") as events:
            async for event in events:
                items.append(event)
                assert len(items) < 100, "no end in sight"
    check_state(agent.state)


async def test_a_hint_after_a_tools_answer_in_the_last_round_ends_it():
    class Nag(MiddlewareBase):
        async def on_reply(self, agent, input_kwargs, next_handler):
            agent.run.continue_with("sure?")
            async for item in next_handler():
                yield item

    calls = [[call("0", "add", a=1, b=2)], [ToolCallBlock("1", "finish")]]
    agent = Agent("t", "", ScriptedChatModel(calls), Tools().toolkit, [Nag()], react_config=ReActConfig(1))
    items = await items_of(agent)
    assert items[-1].get_text_content()
    check_reply(agent, items, 0)


@pytest.mark.parametrize("last", [ChatResponse([]), ChatResponse([ThinkingBlock("hm")])], ids=["nothing", "thinking"])
async def test_a_last_request_answered_without_words_ends_in_words(last):
    agent = agent_of([[call("1", "add", a=1, b=2)], last], add, react_config=ReActConfig(1))
    final = await agent.reply("go")
    assert final.finished_reason == "exceed_max_iters"
    assert final.get_text_content() == "I used up the rounds that I have for one reply and could not finish."


async def test_the_final_message_and_the_conversation_share_nothing():
    agent = agent_of(["hello"])
    final = await agent.reply("go")
    final.content[0].text = "changed"
    final.metadata["changed"] = True
    assert agent.state.context[-1].get_text_content() == "hello"


async def test_half_a_surrogate_pair_does_not_end_the_conversation():
    """A provider that streams JSON in pieces may cut an emoji in two, and no state takes half of one."""
    agent = agent_of(["half \ud83d", "fine"], state_store=InMemoryStateStore())
    with suppress(Exception):
        await agent.reply("go")
    assert (await agent.reply("again")).get_text_content() == "fine"
    check_state(agent.state)


async def test_a_failed_reply_raises_its_own_error_if_its_save_fails():
    class Full(InMemoryStateStore):
        async def save(self, state: AgentState) -> None:
            if state.last_reply is not None:
                raise OSError("disk full")

    agent = agent_of([ConnectionError("the model is down")], state_store=Full())
    items: Items = []
    with pytest.raises(ConnectionError, match="the model is down"):
        async with agent.reply_stream("go") as events:
            async for event in events:
                items.append(event)
    assert short(items[-1]) == "RE(error)"


async def test_thinking_cut_before_its_signature_is_dropped_everywhere():
    cut = [ChatResponse([ThinkingBlock("", signature="sig")], is_last=False), ConnectionError("cut")]
    agent = agent_of([cut])
    reader = Reader()
    await reader.read(agent)
    check_reply(agent, reader.items, 0)


# Odd layers


class Layer(MiddlewareBase):
    """Makes an on_reply layer of a function."""

    def __init__(self, play: Any) -> None:
        self.play = play

    async def on_reply(self, agent, input_kwargs, next_handler):
        async for item in self.play(agent, next_handler):
            yield item


TWO_CALLS = [[call("1", "add", a=1, b=2), call("2", "add", a=1, b=2)], "done", "more"]


@pytest.mark.parametrize("at", ["CALL_START:1", "CALL_END:2", "ME", "RESULT_START:1", "RESULT_END:1(success)"])
@pytest.mark.parametrize("how", ["raise", "answer", "end"])
async def test_a_layer_that_stops_a_reply_leaves_no_open_call(how, at):
    async def play(agent, next_handler):
        async for item in next_handler():
            yield item
            if short(item) == at:
                break
        if how == "raise":
            raise ConnectionError("budget used up")
        if how == "end":
            yield ReplyEndEvent(agent.run.id, agent.state.session_id, "interrupted")
        yield AssistantMsg("layer", "stopped")

    agent = agent_of(TWO_CALLS, add, middlewares=[Layer(play)])
    reader = Reader()
    await reader.read(agent)
    check_state(agent.state)
    check_nesting(reader.items, whole=False)
    await reader.read(agent)
    check_asked(agent.model)


@pytest.mark.parametrize(
    "at", ["TX_START", "CALL_START:1", "RESULT_START:1", "RESULT_DELTA:1", "RESULT_END:1(success)"]
)
async def test_the_events_of_a_reply_broken_off_still_make_a_message(at):
    """The layer breaks off instead of passing the item on, so the listener has not seen it; what follows must fit."""

    async def play(agent, next_handler):
        async for item in next_handler():
            if short(item) == at:
                raise ConnectionError("budget used up")
            yield item

    agent = agent_of([[TextBlock("see"), call("1", "add", a=1, b=2)], "more"], add, middlewares=[Layer(play)])
    reader = Reader()
    await reader.read(agent)
    assert short(reader.items[-1]) == "RE(error)"
    assert rebuilt(reader.items).finished_reason == "error"
    check_state(agent.state)


async def test_an_end_from_a_layer_inside_the_reply_is_refused():
    class Early(MiddlewareBase):
        async def on_reasoning(self, agent, input_kwargs, next_handler):
            yield ReplyEndEvent(agent.run.id, agent.state.session_id)
            async for item in next_handler():
                yield item

    agent = agent_of(["hello", "more"], middlewares=[Early()])
    with pytest.raises(ChainContractError):
        await agent.reply("go")
    check_state(agent.state)


@pytest.mark.parametrize("how", ["answer", "raise"])
async def test_an_unfinished_reply_is_closed_before_the_core_runs(how):
    saved: list[str] = []

    class Keep(InMemoryStateStore):
        async def save(self, state: AgentState) -> None:
            saved.append(state.model_dump_json())

    async def play(agent, next_handler):
        if how == "raise":
            raise ConnectionError("too early")
        yield AssistantMsg("door", "We are closed.")

    await agent_of(TWO_CALLS, add, state_store=Keep()).reply("go")
    left = AgentState.model_validate_json(next(state for state in saved if "pending" in state))
    agent = agent_of([], add, middlewares=[Layer(play)], state=left)
    await Reader().read(agent)
    check_state(agent.state)


async def test_a_reply_begins_once_if_a_layer_speaks_before_the_core():
    async def play(agent, next_handler):
        yield CustomEvent("early")
        async for item in next_handler():
            yield item

    agent = agent_of(["hello"], middlewares=[Layer(play)])
    items = await items_of(agent)
    assert [short(item) for item in items].count("RS") == 1
    assert rebuilt(items) == agent.state.context[-1]
    check_numbers(items, 0, whole=False)


async def test_events_that_a_layer_inserts_are_numbered_as_they_leave():
    async def play(agent, next_handler):
        async for item in next_handler():
            if short(item) in ("MS", "ME"):
                yield CustomEvent("before")
            yield item

    items = await items_of(agent_of(["hello"], middlewares=[Layer(play)]))
    check_numbers(items, 0, whole=False)


@pytest.mark.parametrize("how", ["add", "swallow"])
async def test_no_number_repeats_whatever_a_layer_does_after_the_end(how):
    async def play(agent, next_handler):
        async for item in next_handler():
            if not (how == "swallow" and isinstance(item, ReplyEndEvent)):
                yield item
            if how == "add" and isinstance(item, ReplyEndEvent):
                yield CustomEvent("audited")

    agent = agent_of(["one", "two"], middlewares=[Layer(play)])
    items = [item for _ in range(2) for item in await items_of(agent)]
    check_numbers(items, 0, whole=False)


async def test_a_layer_that_ends_the_reply_and_reads_on_is_refused():
    async def play(agent, next_handler):
        async for item in next_handler():
            yield item
            if short(item) == "ME":
                yield ReplyEndEvent(agent.run.id, agent.state.session_id)

    agent = agent_of(TWO_CALLS, add, middlewares=[Layer(play)])
    items: Items = []
    with pytest.raises(ChainContractError, match="ended the reply itself, but kept reading"):
        async with agent.reply_stream("go") as events:
            async for event in events:
                items.append(event)
    check_state(agent.state)
    assert short(items[-1]) == "RE(error)"


async def test_a_message_instead_of_the_models_answer_becomes_events():
    class Cached(MiddlewareBase):
        async def on_reasoning(self, agent, input_kwargs, next_handler):
            if agent.run.scratch(self):
                async for item in next_handler():
                    yield item
                return
            agent.run.scratch(self)["answered"] = True
            picture = DataBlock(Base64Source("YQ==", "image/png"))
            yield AssistantMsg("cache", [TextBlock("see"), picture, call("1", "add", a=1, b=2)])

    agent = agent_of(["done"], add, middlewares=[Cached()])
    items = await items_of(agent)
    check_reply(agent, items, 0)
    assert "CALL_START:1 CALL_DELTA:1 CALL_END:1" in " ".join(map(short, items))


async def test_a_layer_may_speak_for_itself_and_ask_the_model_as_well():
    class Both(MiddlewareBase):
        async def on_reasoning(self, agent, input_kwargs, next_handler):
            yield AssistantMsg("layer", "own words")
            async for item in next_handler():
                yield item

    agent = agent_of([[call("1", "add", a=1, b=2)], "done"], add, middlewares=[Both()])
    items = await items_of(agent)
    check_reply(agent, items, 0)
    assert items[-1].get_text_content() == "own words\ndone"


class Responding(MiddlewareBase):
    def __init__(self, response: ToolResponse) -> None:
        self.response = response

    async def on_acting(self, agent, input_kwargs, next_handler):
        yield self.response


async def test_a_result_that_a_layer_calls_running_is_final():
    layer = Responding(ToolResponse([TextBlock("x")], ToolResultState.RUNNING))
    agent = agent_of([[call("1", "add", a=1, b=2)], "done"], add, middlewares=[layer])
    await agent.reply("go")
    check_state(agent.state)


async def test_metadata_without_a_json_form_makes_an_error_result():
    layer = Responding(ToolResponse([TextBlock("x")], metadata={"a": object()}))
    responses = [[call("1", "add", a=1, b=2)], "done", "done"]
    agent = agent_of(responses, add, middlewares=[layer], state_store=InMemoryStateStore())
    with suppress(Exception):
        await agent.reply("go")
    assert (await agent.reply("again")).get_text_content() == "done"
    check_state(agent.state)


# Odd emitters


class Upstream(MiddlewareBase):
    """Does something after the first response of the model's stream."""

    emits = True

    def __init__(self, play: Any) -> None:
        self.play = play

    async def on_model_call(self, agent, input_kwargs, next_handler):
        result = await next_handler()
        return self._stream(agent.run.emit, result)

    async def _stream(self, emit, result):
        responses = aiter(result)
        yield await anext(responses)
        await self.play(emit)
        async for response in responses:
            yield response


async def test_what_a_layer_emits_in_mid_stream_is_seen_while_it_waits():
    seen = anyio.Event()

    async def play(emit):
        emit(CustomEvent("waiting"))
        await seen.wait()

    agent = agent_of(["one two"], middlewares=[Upstream(play)])
    async with agent.reply_stream("go") as events:
        async for event in events:
            if short(event) == "waiting":
                seen.set()


async def test_what_was_emitted_before_an_error_is_seen_before_the_end():
    async def play(emit):
        emit(CustomEvent("giving up"))
        raise ConnectionError("cut")

    reader = Reader()
    await reader.read(agent_of(["one two"], middlewares=[Upstream(play)]))
    assert [short(item) for item in reader.items][-2:] == ["giving up", "RE(error)"]


@pytest.mark.parametrize("at", ["RS", "TX_END", "ME", "EXCEED"])
async def test_what_a_layer_emits_at_any_item_before_the_end_is_seen(at):
    async def play(agent, next_handler):
        async for item in next_handler():
            if short(item) == at:
                agent.run.emit(CustomEvent("emitted"))
            yield item

    responses = [[call("1", "add", a=1, b=2)], "words"]
    agent = agent_of(responses, add, middlewares=[Layer(play)], react_config=ReActConfig(1))
    items = await items_of(agent)
    check_reply(agent, items, 0)
    assert "emitted" in [short(item) for item in items]


async def test_what_a_layer_emits_before_it_answers_by_itself_is_seen():
    async def play(agent, next_handler):
        agent.run.emit(CustomEvent("cache hit"))
        yield AssistantMsg("cache", "known")

    items = await items_of(agent_of([], middlewares=[Layer(play)]))
    said = ["TX_START", "TX_DELTA", "TX_END"]
    assert [short(item) for item in items] == ["RS", "cache hit", *said, "RE(completed)", "Msg"]


async def test_a_tool_may_pass_on_all_the_events_of_another_agent():
    inner = agent_of(["inner words"])

    async def delegate(context: ToolContext) -> str:
        """Ask another agent, and pass on everything that it does."""
        async with inner.reply_stream("go") as events:
            async for event in events:
                context.emit(replace(event))
        return "asked"

    agent = agent_of([[call("1", "delegate")], "done"], delegate)
    items = await items_of(agent)
    own = [item for item in items if isinstance(item, Msg) or item.reply_id == items[0].reply_id]
    assert rebuilt(own) == agent.state.context[-1]
    assert own[-1].get_text_content() == "done"
    check_state(agent.state)
    assert "REPLY_END" in [item.type for item in items if item not in own]


async def test_a_retry_of_another_agent_withdraws_nothing_here():
    inner = agent_of([["half ", ConnectionError("cut")], "whole"], middlewares=[Retry()])

    async def delegate(context: ToolContext) -> str:
        async with inner.reply_stream("go") as events:
            async for event in events:
                if isinstance(event, ModelCallRetryEvent):
                    context.emit(replace(event))
        return "asked"

    agent = agent_of([[call("1", "delegate")], [call("1", "add", a=1, b=2)], "done"], delegate, add)
    retry = next(item for item in await items_of(agent) if isinstance(item, ModelCallRetryEvent))
    assert all(each.startswith(retry.reply_id) for each in retry.block_ids)
    check_state(agent.state)


async def test_an_error_of_the_model_blames_no_layer():
    class Plain(MiddlewareBase):
        async def on_model_call(self, agent, input_kwargs, next_handler):
            return await next_handler()

    with pytest.raises(ConnectionError) as caught:
        await agent_of([ConnectionError("down")], middlewares=[Plain()]).reply("go")
    assert getattr(caught.value, "__notes__", []) == []
