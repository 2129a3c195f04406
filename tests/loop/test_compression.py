"""Compression: when it happens, what it keeps, and what it costs; nothing of it shows in the reader's stream."""

import json
import logging
from itertools import pairwise, repeat
from typing import Any

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrt import Agent, AgentState, MiddlewareBase, Msg, Toolkit, UserMsg
from agentrt._runtime.conversation import context_usage
from agentrt.agent import ContextConfig
from agentrt.errors import AgentBusyError, ChainError, ContextOverflow, Transient
from agentrt.event import ConfirmResult, CustomEvent, TextBlockDeltaEvent, UserConfirmResultEvent
from agentrt.message import (
    AssistantMsg,
    HintBlock,
    ProviderBlock,
    TextBlock,
    ToolCallBlock,
    ToolResultBlock,
    ToolResultState,
)
from agentrt.model import ChatResponse, ChatUsage, ScriptedChatModel
from agentrt.state import FileStateStore
from agentrt.tool import FunctionTool
from tests.loop.helpers import add, call, items_of, order_of, rebuilt, short

SUMMARISE = "Summarise."
SMALL = 1_000  # tokens, so four thousand characters
PROMPT = "You are tested"


def talk(times: int, size: int = 400) -> list[Msg]:
    """Return as many exchanges, of `size` characters each."""
    pairs = [
        (UserMsg("user", f"q{n}".ljust(size // 2, ".")), AssistantMsg("tester", f"a{n}".ljust(size // 2, ".")))
        for n in range(times)
    ]
    return [message for pair in pairs for message in pair]


class Model(ScriptedChatModel):
    """Answers what `Summarise.` asks with the next of `summaries`, and everything else by script."""

    def __init__(self, responses: Any, summaries: Any = (), size: int = SMALL) -> None:
        super().__init__(responses)
        self.summaries = iter(summaries or repeat("SUMMARY"))
        self.context_size = size
        self.asked: list[list[Msg]] = []
        self.summarised: list[str] = []

    def _next_response(self) -> Any:
        messages = self.calls[-1].messages
        if messages[0].content == SUMMARISE:
            assert not self.calls[-1].tools
            self.summarised.append(messages[1].content)
            return next(self.summaries)
        self.asked.append(messages)
        return super()._next_response()


def agent_with(model: Model, *tools: Any, context: list[Msg] | None = None, **options: Any) -> Agent:
    config = options.pop("context_config", ContextConfig(instructions=SUMMARISE))
    state = AgentState(context=context or [])
    return Agent("tester", PROMPT, model, Toolkit(tools=list(tools)), state=state, context_config=config, **options)


def texts(messages: list[Msg]) -> list[str]:
    """Return the beginnings of the messages, `SUMMARY` for a summary."""
    return [_text(message) for message in messages]


def _text(message: Msg) -> str:
    if message.has_content_blocks("hint") and message.role == "user":
        [block] = message.get_content_blocks("hint")
        assert block.source == "summary"
        return f"<{block.hint.partition('of its own.')[2].strip()}>"
    return (message.get_text_content() or "").rstrip(".")


def check_well_formed(messages: list[Msg]) -> None:
    """Fail unless each call has its result after it, and each result its call before it."""
    open_calls: set[str] = set()
    for block in [block for message in messages for block in message.get_content_blocks()]:
        if isinstance(block, ToolCallBlock):
            open_calls.add(block.id)
        elif isinstance(block, ToolResultBlock):
            assert block.id in open_calls, "a result without its call"
            open_calls.remove(block.id)
    assert not open_calls, "a call without its result"


def at_the_limit(more: int) -> Agent:
    """Return an agent whose first request has exactly the size that is allowed, and so many characters more."""
    limit = int(SMALL * 0.8) * 4 + 3  # characters; the next one begins another token
    question = "go"
    context = [*talk(1), AssistantMsg("tester", "")]
    context[-1].content = "x" * (limit + more - len(PROMPT) - len(question) - 400)
    return agent_with(Model(["fine"]), context=context)


async def test_it_happens_exactly_when_the_threshold_is_crossed():
    for more, summaries in ((0, 0), (1, 1)):
        agent = at_the_limit(more)
        await agent.reply("go")
        assert len(agent.model.summarised) == summaries


async def test_what_the_provider_counted_stands_above_the_estimate():
    def used(tokens: int) -> ChatResponse:
        return ChatResponse([call("1", "add", a=1, b=2)], usage=ChatUsage(tokens - 5, 5))

    for tokens, summaries in ((800, 0), (801, 1)):
        agent = agent_with(Model([used(tokens), "done"]), add, context=talk(2))
        await agent.reply("go")
        assert len(agent.model.summarised) == summaries


async def test_the_newest_part_that_fits_into_the_reserve_is_kept():
    config = ContextConfig(reserve_ratio=0.25, instructions=SUMMARISE)  # a thousand characters
    agent = agent_with(Model(["fine"]), context=talk(9), context_config=config)
    await agent.reply("go")
    assert texts(agent.model.asked[0]) == [PROMPT, "<SUMMARY>", "q7", "a7", "q8", "a8", "go"]
    assert texts(agent.state.context) == ["q7", "a7", "q8", "a8", "go", "fine"]
    assert "a6" in agent.model.summarised[0]
    assert "q7" not in agent.model.summarised[0]


async def test_the_summary_is_no_part_of_the_system_prompt():
    agent = agent_with(Model(["fine"]), context=talk(9))
    await agent.reply("go")
    system, summary, *_ = agent.model.asked[0]
    assert system.content == PROMPT
    assert summary.role == "user"
    assert [block.source for block in summary.get_content_blocks("hint")] == ["summary"]


async def test_the_last_message_of_the_user_stays_however_long_it_is():
    agent = agent_with(Model(["fine"]), context=talk(4))
    await agent.reply("long".ljust(2_500, "."))
    assert texts(agent.model.asked[0]) == [PROMPT, "<SUMMARY>", "long"]


async def test_a_second_compression_folds_in_the_first():
    agent = agent_with(Model(repeat("fine"), ["FIRST", "SECOND"]), context=talk(9))
    await agent.reply("go")
    agent.state.context += talk(9)
    await agent.reply("again")
    assert agent.state.summary == "SECOND"
    assert "<summary_so_far>\nFIRST\n</summary_so_far>" in agent.model.summarised[1]
    assert texts(agent.model.asked[1])[:2] == [PROMPT, "<SECOND>"]


async def test_requests_between_compressions_only_grow_at_their_end():
    agent = agent_with(Model(repeat("fine")), context=talk(9))
    for n in range(4):
        await agent.reply(f"question {n}")
    requests = [texts(messages) for messages in agent.model.asked]
    assert len(agent.model.summarised) == 1
    assert all(later[: len(former)] == former for former, later in pairwise(requests))


def say(size: int) -> str:
    return "s" * size


async def test_long_reply_sends_fewer_rounds_but_keeps_its_message():
    rounds = [[call(f"c{n}", "say", size=600)] for n in range(12)]
    agent = agent_with(Model([*rounds, "done"]), say)
    items = await items_of(agent, "go")
    assert 2 <= len(agent.model.summarised) <= 3
    for messages in agent.model.asked:
        check_well_formed(messages)
        assert texts(messages)[:2] in ([PROMPT, "go"], [PROMPT, "<SUMMARY>"])
        assert "go" in texts(messages)
    heard = rebuilt(items)
    assert [block.id for block in heard.get_content_blocks("tool_call")] == [f"c{n}" for n in range(12)]
    [question, answer] = agent.state.context
    assert question.content == "go"
    kept = [block.id for block in answer.get_content_blocks("tool_call")]
    assert kept == [f"c{n}" for n in range(12)][-len(kept) :]
    assert 0 < len(kept) < 12
    assert heard.usage == answer.usage


async def test_the_round_that_the_model_has_not_seen_yet_is_kept_whole():
    rounds = [[call("a", "say", size=1_500)], [call("b", "say", size=1_500), call("c", "say", size=1_500)]]
    agent = agent_with(Model([*rounds, "done"]), say)
    await agent.reply("go")
    last = agent.model.asked[-1][-1]
    assert [block.id for block in last.get_content_blocks("tool_result")] == ["b", "c"]
    assert len(agent.model.summarised) == 1


async def test_nothing_older_is_kept_than_what_is_summarised():
    rounds = [[call("a", "say", size=2_800)], [call("b", "say", size=300)]]
    agent = agent_with(Model([*rounds, "done"]), say, context=talk(1, size=20))
    await agent.reply("go")
    assert texts(agent.model.asked[-1]) == [PROMPT, "<SUMMARY>", "go", ""]
    assert "q0" in agent.model.summarised[0]


async def test_provider_counts_end_with_the_history_they_were_made_of():
    used = ChatResponse([TextBlock("fine")], usage=ChatUsage(790, 5))
    agent = agent_with(Model([used, "fine"]), context=talk(1))
    await agent.reply("go")
    agent.state.context[:] = talk(2)
    await agent.reply("again")
    assert agent.model.summarised == []


BLOCK_SIZES = st.integers(0, 900)


@st.composite
def histories(draw: Any) -> list[Msg]:
    messages: list[Msg] = []
    for n in range(draw(st.integers(0, 6))):
        messages.append(UserMsg("user", "q" * draw(BLOCK_SIZES)))
        blocks: list[Any] = []
        for m in range(draw(st.integers(0, 4))):
            ids = [f"h{n}-{m}-{k}" for k in range(draw(st.integers(1, 3)))]
            blocks += [ToolCallBlock(each, "say", "{}") for each in ids]
            blocks += [ToolResultBlock(each, "say", "r" * draw(BLOCK_SIZES)) for each in ids]
        if draw(st.booleans()) and blocks:  # as other runtimes keep them: the results in a message of their own
            calls = [block for block in blocks if isinstance(block, ToolCallBlock)]
            messages.append(AssistantMsg("tester", calls))
            blocks = [block for block in blocks if isinstance(block, ToolResultBlock)]
            messages.append(Msg("tester", blocks, draw(st.sampled_from(["user", "assistant"]))))
        else:
            messages.append(AssistantMsg("tester", [*blocks, TextBlock("a" * draw(BLOCK_SIZES))]))
    return messages


@settings(max_examples=50)
@given(histories(), st.lists(st.lists(BLOCK_SIZES, min_size=1, max_size=3), max_size=8), st.booleans())
def test_every_request_is_well_formed(history, rounds, fails):
    calls = [[call(f"r{n}-{k}", "say", size=size) for k, size in enumerate(sizes)] for n, sizes in enumerate(rounds)]
    summaries = repeat(Transient("down") if fails else "SUMMARY")
    agent = agent_with(Model([*calls, "done"], summaries), say, context=history)
    agent.run_sync("the question")
    assert len(agent.model.asked) == len(rounds) + 1
    for messages in agent.model.asked:
        check_well_formed(messages)
        assert sum(text == "the question" for text in texts(messages)) == 1
        assert messages[0].content == PROMPT
    for sizes, messages in zip(calls, agent.model.asked[1:], strict=True):
        seen = {block.id for block in messages[-1].get_content_blocks("tool_result")}
        assert {each.id for each in sizes} <= seen, "the model was not shown what it had asked for"
    assert agent.state.reply_context is None
    check_well_formed(agent.state.context)


@settings(max_examples=50)
@given(histories())
def test_what_is_left_of_a_history_is_well_formed(history):
    agent = agent_with(Model([]), context=history)
    anyio.run(agent.compress_context)
    check_well_formed(agent.state.context)
    kept = {message.id for message in agent.state.context}
    questions = [each for each in history if each.role == "user" and not each.has_content_blocks("tool_result")]
    assert {each.id for each in [*history[-1:], *questions[-1:]]} <= kept


async def test_where_there_is_no_summary_the_oldest_part_is_left_out(caplog):
    secret = "key-of-a-customer"
    agent = agent_with(Model(["fine", "fine"], repeat(Transient(secret))), context=talk(9))
    with caplog.at_level(logging.WARNING, "agentrt"):
        assert (await agent.reply("go")).get_text_content() == "fine"
        agent.state.context += talk(9)
        await agent.reply("again")
    assert agent.state.summary.count("missing here") == 1
    assert "Transient" in caplog.text
    assert secret not in caplog.text
    assert texts(agent.model.asked[0])[1].startswith("<[A part of the conversation is missing here")


@pytest.mark.parametrize("answer", ["", [TextBlock("half"), Transient("cut")], [call("1", "say", size=1)]])
async def test_half_a_summary_is_none(answer):
    agent = agent_with(Model(["fine"], [answer]), context=talk(9))
    await agent.reply("go")
    assert "missing here" in agent.state.summary
    assert "half" not in agent.state.summary


async def test_material_too_long_to_summarise_is_shortened_to_fit():
    lengths: list[int] = []

    def overflow(messages: list[Msg], tools: Any) -> Any:
        lengths.append(len(messages[1].content))
        return "SUMMARY" if len(lengths) == 3 else ContextOverflow("too long")

    blocks = [ToolCallBlock("1", "say"), ToolResultBlock("1", "say", "r" * 50_000), TextBlock("NEWEST")]
    history = [UserMsg("user", "o" * 9_000), AssistantMsg("tester", blocks)]
    agent = agent_with(Model(["fine"], repeat(overflow)), context=history)
    await agent.reply("go")
    assert agent.state.summary == "SUMMARY"
    assert lengths[0] <= SMALL * 4
    assert lengths[0] > lengths[1] > lengths[2]
    assert all("NEWEST" in each for each in agent.model.summarised)


async def test_a_summary_that_is_too_long_itself_is_cut():
    agent = agent_with(Model(["fine"], ["s" * 50_000]), context=talk(9))
    await agent.reply("go")
    assert len(agent.state.summary) < SMALL * 4 * 0.4


class Hanging:
    """A summary that never comes; `begun` is set when it is asked for."""

    def __init__(self) -> None:
        self.begun = anyio.Event()

    async def __call__(self, messages: list[Msg], tools: Any) -> str:
        self.begun.set()
        await anyio.sleep_forever()
        raise AssertionError


def as_it_is(agent: Agent) -> tuple[list[str], str]:
    return [message.id for message in agent.state.context], agent.state.summary


async def test_a_cancelled_compression_leaves_the_state_as_it_was():
    hanging = Hanging()
    agent = agent_with(Model([], [hanging]), context=talk(9))
    before = as_it_is(agent)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(agent.compress_context)
        await hanging.begun.wait()
        tasks.cancel_scope.cancel()
    assert as_it_is(agent) == before
    hanging = Hanging()
    agent.model.summaries = iter([hanging])
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(agent.reply, "go")
        await hanging.begun.wait()
        tasks.cancel_scope.cancel()
    ids, summary = as_it_is(agent)
    assert (ids[:-1], summary) == before


async def interrupted_order(agent: Agent, hanging: Hanging) -> str:
    """Interrupt the reply where it waits for its summary, and return the order of its items."""
    orders: list[str] = []

    async def read() -> None:
        orders.append(await order_of(agent))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(read)
        await hanging.begun.wait()
        agent.interrupt()
    return orders[0]


async def test_interrupt_during_a_summary_ends_the_reply_tidily():
    hanging = Hanging()
    agent = agent_with(Model([], [hanging]), context=talk(9))
    assert await interrupted_order(agent, hanging) == "RS RE(interrupted) Msg"
    assert (agent.state.summary, len(agent.state.context)) == ("", 19)


async def test_interrupt_after_an_overflow_ends_the_reply_tidily():
    hanging = Hanging()
    agent = agent_with(Model([["half ", ContextOverflow("too long")]], [hanging]), context=talk(3))
    order = await interrupted_order(agent, hanging)
    assert order == "RS MS TX_START TX_DELTA RETRY ME RE(interrupted) Msg"
    assert texts(agent.state.context)[-1] == "go"


async def test_interrupted_compression_by_hand_changes_nothing():
    hanging = Hanging()
    agent = agent_with(Model(["fine"], [hanging]), context=talk(3))
    before = as_it_is(agent)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(agent.compress_context)
        await hanging.begun.wait()
        with pytest.raises(AgentBusyError):
            await agent.reply("go")
        assert agent.interrupt()
    assert as_it_is(agent) == before
    assert (await agent.reply("go")).get_text_content() == "fine"


async def test_request_that_is_too_long_is_sent_again_compressed():
    agent = agent_with(Model([ContextOverflow("too long"), "fine"]), context=talk(3))
    assert await order_of(agent) == "RS MS+ TX_START TX_DELTA TX_END ME RE(completed) Msg"
    assert len(agent.model.summarised) == 1
    assert texts(agent.model.asked[1]) == [PROMPT, "<SUMMARY>", "go"]


async def test_what_was_said_before_the_overflow_does_not_count():
    agent = agent_with(Model([["half ", ContextOverflow("too long")], "fine"]), context=talk(3))
    assert await order_of(agent) == "RS MS TX_START TX_DELTA RETRY MS TX_START TX_DELTA TX_END ME RE(completed) Msg"
    assert texts(agent.state.context)[-1] == "fine"


async def test_a_second_overflow_in_the_same_round_is_raised():
    agent = agent_with(Model([ContextOverflow("too long"), ContextOverflow("still"), "fine"]), context=talk(3))
    with pytest.raises(ContextOverflow, match="still"):
        await agent.reply("go")
    assert len(agent.model.summarised) == 1
    assert (await agent.reply("once more")).get_text_content() == "fine"
    assert len(agent.model.summarised) == 1


async def test_each_round_may_overflow_once():
    responses = [ContextOverflow("1"), [call("a", "say", size=500)], ContextOverflow("2"), "fine"]
    agent = agent_with(Model(responses), say, context=talk(3))
    assert (await agent.reply("go")).get_text_content() == "fine"


class Layer(MiddlewareBase):
    def __init__(self, skips: bool = False) -> None:
        self.skips = skips
        self.entered: list[dict[str, Any]] = []
        self.internal: list[bool] = []

    async def on_compress_context(self, agent, input_kwargs, next_handler):
        self.entered.append(dict(input_kwargs))
        if not self.skips:
            await next_handler()

    async def on_model_call(self, agent, input_kwargs, next_handler):
        self.internal.append(agent.run.is_internal)
        return await next_handler()


async def test_layers_of_on_model_call_see_that_the_call_is_internal():
    layer = Layer()
    agent = agent_with(Model(["fine"]), context=talk(9), middlewares=[layer])
    await agent.reply("go")
    assert layer.internal == [True, False]
    assert layer.entered == [{"context_config": agent.context_config, "instructions": None}]


@pytest.mark.parametrize("first", ["fine", ContextOverflow("too long")])
async def test_a_layer_may_leave_the_conversation_as_it_is(first):
    layer = Layer(skips=True)
    agent = agent_with(Model([first, "fine"]), context=talk(9), middlewares=[layer])
    if isinstance(first, str):
        await agent.reply("go")
    else:
        with pytest.raises(ContextOverflow):
            await agent.reply("go")
    assert len(layer.entered) == 1
    assert agent.state.summary == ""
    await agent.reply("again")
    assert len(layer.entered) == 2


async def test_a_layer_may_shrink_the_conversation_by_its_own_means():
    class Forget(MiddlewareBase):
        async def on_compress_context(self, agent, input_kwargs, next_handler):
            del agent.state.context[:-1]

    agent = agent_with(Model(["fine"]), context=talk(9), middlewares=[Forget()])
    await agent.reply("go")
    assert texts(agent.model.asked[0]) == [PROMPT, "go"]


async def test_a_long_system_prompt_of_a_layer_counts():
    class Long(MiddlewareBase):
        asked = 0

        async def on_system_prompt(self, agent, current_prompt):
            self.asked += 1
            return current_prompt + "p" * 1_600

    layer = Long()
    agent = agent_with(Model(["fine", "fine"]), context=talk(2), middlewares=[layer])
    await agent.reply("go")
    assert (layer.asked, len(agent.model.summarised)) == (1, 0)
    agent.state.context += talk(2)
    await agent.reply("again")
    assert (layer.asked, len(agent.model.summarised)) == (3, 1)


async def test_the_prompt_is_assembled_once_more_near_the_limit():
    class Numbered(MiddlewareBase):
        asked = 0

        async def on_system_prompt(self, agent, current_prompt):
            self.asked += 1
            return f"{current_prompt} {self.asked}"

    def sent(agent: Agent) -> list[str]:
        return [texts(messages)[0].rpartition(" ")[2] for messages in agent.model.asked]

    layer = Numbered()
    agent = agent_with(Model(["fine"] * 4), context=talk(1), middlewares=[layer])
    await agent.reply("one")
    await agent.reply("two")
    assert (sent(agent), agent.model.summarised) == (["1", "2"], [])
    agent.state.context += talk(9)
    await agent.reply("three")
    assert sent(agent) == ["1", "2", "4"]  # the third was for counting, and the request for a summary had none
    assert len(agent.model.summarised) == 1
    loaded = agent_with(Model(["fine"]), context=talk(4), middlewares=[layer])
    await loaded.reply("four")
    assert (sent(loaded), loaded.model.summarised) == (["6"], [])


class Announcing(MiddlewareBase):
    emits = True

    async def on_model_call(self, agent, input_kwargs, next_handler):
        if agent.run.is_internal:
            agent.run.emit(CustomEvent("summarising", None))
        return await next_handler()


async def test_stream_shows_only_what_layers_emit_during_a_summary():
    items = await items_of(agent_with(Model(["fine"]), context=talk(9), middlewares=[Announcing()]))
    assert [short(item) for item in items[:3]] == ["RS", "summarising", "MS"]
    assert "".join(item.delta for item in items if isinstance(item, TextBlockDeltaEvent)) == "fine"


async def test_what_a_layer_emits_is_seen_while_it_is_summarised():
    agent = agent_with(Model(["fine"], [Hanging()]), context=talk(9), middlewares=[Announcing()])
    async with agent.reply_stream("go") as stream:
        async for item in stream:
            if isinstance(item, CustomEvent):
                break
    assert agent.state.summary == ""


async def test_the_usage_of_the_summary_is_not_the_replys():
    summary = ChatResponse([TextBlock("SUMMARY")], usage=ChatUsage(700, 70))
    fine = ChatResponse([TextBlock("fine")], usage=ChatUsage(30, 3))
    agent = agent_with(Model([fine], [summary]), context=talk(9))
    assert (await agent.reply("go")).usage == ChatUsage(30, 3)


async def test_a_compressed_conversation_goes_on_in_another_process(tmp_path):
    store = FileStateStore(tmp_path)
    agent = agent_with(
        Model([[call("1", "say", size=2_000)], [call("2", "add", a=1, b=2)]]),
        say,
        FunctionTool(add, ask=True),
        context=talk(9),
        state_store=store,
    )
    await agent.reply("go")
    loaded = await store.load(agent.state.session_id)
    assert loaded == agent.state
    waiting = loaded.reply_context
    assert waiting.summarised == 0
    other = agent_with(Model(["done"]), say, FunctionTool(add, ask=True)).with_state(loaded)
    await other.compress_context()
    assert waiting.summarised == 2
    [question] = [each for each in waiting.message.get_content_blocks("tool_call") if each.id == "2"]
    answer = UserConfirmResultEvent(waiting.reply_id, [ConfirmResult(True, question)])
    assert (await other.reply(answer)).get_text_content() == "done"
    check_well_formed(other.model.asked[0])
    assert texts(other.model.asked[0])[:2] == [PROMPT, "<SUMMARY>"]
    assert [each.id for each in loaded.context[-1].get_content_blocks("tool_call")] == ["2"]


async def test_compression_by_hand_happens_at_any_length(tmp_path):
    store = FileStateStore(tmp_path)
    agent = agent_with(Model([]), context=talk(3), state_store=store)
    await agent.compress_context("Summarise.")
    assert await store.load(agent.state.session_id) == agent.state
    assert (texts(agent.state.context), agent.state.summary) == (["q2", "a2"], "SUMMARY")
    await agent.compress_context()
    assert len(agent.model.summarised) == 1  # nothing is left that could be
    with pytest.raises(RuntimeError, match="no reply in progress"):
        _ = agent.run


async def test_by_hand_it_takes_the_conversations_turn():
    agent = agent_with(Model(["fine"]), context=talk(3))
    async with agent.reply_stream("go") as stream:
        await anext(stream)
        with pytest.raises(AgentBusyError):
            await agent.compress_context()
    assert agent.model.summarised == []


async def test_what_is_observed_meanwhile_is_kept():
    observing: list[Agent] = []

    async def summary(messages: list[Msg], tools: Any) -> str:
        await observing[0].observe("by the way")
        return "SUMMARY"

    agent = agent_with(Model([], [summary]), context=talk(3))
    observing.append(agent)
    await agent.compress_context()
    assert texts(agent.state.context) == ["q2", "a2", "by the way"]


async def test_a_call_without_a_result_is_never_summarised():
    blocks = [ToolCallBlock("1", "say"), ToolResultBlock("1", "say", [], ToolResultState.RUNNING)]
    rounds = [[call(f"c{n}", "say", size=900)] for n in range(5)]
    agent = agent_with(Model([*rounds, "done"]), say, context=[*talk(2), AssistantMsg("tester", blocks), *talk(1)])
    await agent.compress_context()
    assert agent.state.context[0].content is blocks
    await agent.reply("go")
    assert len(agent.model.summarised) > 1
    assert agent.state.context[0].content is blocks


async def test_hints_and_pictures_survive_the_telling():
    sources = ProviderBlock("openai", '{"type": "citations", "citations": [{"url": "https://tea.test"}]}')
    told = [HintBlock("mind the gap"), TextBlock("so"), ProviderBlock("anthropic", "{}"), sources]
    agent = agent_with(Model([]), context=[AssistantMsg("tester", told), *talk(3)])
    await agent.compress_context()
    (shown,) = agent.model.summarised
    assert "[note: mind the gap]\nso\n[uses a tool of anthropic]\n[sources: https://tea.test]" in shown


async def test_a_long_history_is_counted_once(monkeypatch):
    counted: list[int] = []
    real = context_usage.characters_of

    def counting(block: Any) -> int:
        counted.append(1)
        return real(block)

    history = [AssistantMsg("tester", [TextBlock(f"m{n}")]) for n in range(5_000)]
    monkeypatch.setattr(context_usage, "characters_of", counting)
    rounds = [[call(f"c{n}", "add", a=n, b=n)] for n in range(20)]
    agent = agent_with(Model([*rounds, "done", *rounds, "done"], size=10**6), add, context=history)
    await agent.reply("go")
    assert 5_000 <= len(counted) <= 5_000 + 100
    await agent.reply("again")
    assert len(counted) <= 5_000 + 200


def test_a_state_without_a_summary_is_a_state():
    state = AgentState(summary="SUMMARY")
    assert AgentState.model_validate_json(state.model_dump_json()).summary == "SUMMARY"
    text = json.loads(state.model_dump_json())
    del text["summary"]
    assert AgentState.model_validate_json(json.dumps(text)).summary == ""


async def test_a_layer_that_passes_on_no_context_config_is_named():
    class Wrong(MiddlewareBase):
        async def on_compress_context(self, agent, input_kwargs, next_handler):
            await next_handler(context_config={"trigger_ratio": 0.5})

    agent = Agent("tester", "", ScriptedChatModel(["one", "two", "a summary"]), middlewares=[Wrong()])
    for letter in "ab":
        await agent.reply(letter * 2_000)
    with pytest.raises(ChainError, match=r"^Wrong\.on_compress_context passed context_config=.* must be ContextConfig"):
        await agent.compress_context()
