"""What leaves on_reply is what is announced, shown and kept, whatever the layers do."""

import io
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, nullcontext, redirect_stdout
from dataclasses import replace
from typing import Any

import pytest

from agentrt import Agent, AgentState, MiddlewareBase, Msg, Toolkit
from agentrt.agent import ReActConfig
from agentrt.console import show
from agentrt.errors import SessionIOError
from agentrt.event import (
    AgentEvent,
    BlocksWithdrawnEvent,
    CustomEvent,
    DataBlockDeltaEvent,
    HintBlockEvent,
    ReplyEndEvent,
    ReplyStartEvent,
    TextBlockDeltaEvent,
    TextBlockEndEvent,
    TextBlockStartEvent,
    ThinkingBlockDeltaEvent,
    ToolCallDeltaEvent,
    ToolResultTextDeltaEvent,
)
from agentrt.message import (
    BLOCKS,
    AssistantMsg,
    Base64Source,
    DataBlock,
    ProviderBlock,
    TextBlock,
    ThinkingBlock,
    URLSource,
)
from agentrt.model import ChatResponse, ScriptedChatModel
from agentrt.state import FileStateStore, InMemoryStateStore
from agentrt.tool import FunctionTool
from tests.loop.helpers import add, agent_of, call, confirmation_of, items_of, short

Play = Callable[[Any, Any], AsyncGenerator[Any, None]]
PICTURE = DataBlock(Base64Source("AAAA", "image/png"), "a.png")
SAID = ["TX_START", "TX_DELTA", "TX_END"]
FORM = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}


class OnReply(MiddlewareBase):
    def __init__(self, play: Play) -> None:
        self.play = play

    async def on_reply(self, agent, input_kwargs, next_handler):
        async with aclosing(self.play(agent, next_handler)) as items:
            async for item in items:
                yield item


class OnReasoning(MiddlewareBase):
    def __init__(self, play: Play) -> None:
        self.play = play

    async def on_reasoning(self, agent, input_kwargs, next_handler):
        async with aclosing(self.play(agent, next_handler)) as items:
            async for item in items:
                yield item


def said(blocks: Any) -> list[Any]:
    """Return what blocks say, without their ids."""
    content = [TextBlock(blocks)] if isinstance(blocks, str) else blocks
    kinds = {TextBlock: "text", ThinkingBlock: "thinking", DataBlock: "source"}
    return [getattr(block, kinds[type(block)]) for block in content if type(block) in kinds]


def rebuilt(items: list[Any]) -> Msg:
    """Return the message that a listener builds, from the JSON of the events."""
    message = AssistantMsg("", [], id=items[0].reply_id)
    for item in items:
        if isinstance(item, AgentEvent):
            message.append_event(AgentEvent.from_json(item.to_json()))
    return message


async def check(make: Callable[[], Agent], inputs: Any = "go", rounds: int = 1) -> list[Any]:
    """Check that reply(), the events, what is shown, the state and the store agree; return the items."""
    agent = make()
    answer = await agent.reply(inputs)
    agent = make()
    agent.state_store = store = InMemoryStateStore()
    items = await items_of(agent, inputs)
    *events, final = items
    kept = agent.state.context[-1]
    assert short(events[-1]) == "RE(completed)"
    assert sum(isinstance(event, ReplyEndEvent) for event in events) == 1
    assert [event.seq for event in events] == sorted({event.seq for event in events})
    assert kept.id == final.id == agent.state.last_reply.reply_id
    assert rebuilt(items) == kept
    assert said(answer.content) == said(final.content) == said(kept.content)[-len(said(final.content)) :]
    assert final.finished_reason == kept.finished_reason == "completed"
    assert final.structured_output == kept.structured_output == events[-1].structured_output
    assert [message.get_text_content() for message in agent.state.context[:-1]] == ["go"]
    saved = await store.load(agent.state.session_id)
    assert saved.context == agent.state.context
    assert saved.sequence >= events[-1].seq
    with redirect_stdout(io.StringIO()) as shown:
        returned = await show(make().reply_stream(inputs), color=False)
    assert said(returned.content)[-len(said(final.content)) :] == said(final.content)
    assert all(text in shown.getvalue() for text in said(final.content) if isinstance(text, str))
    again = await agent.with_state(saved).reply(inputs, reply_id=final.id)
    assert said(again.content) == said(final.content)
    return items


# Answers of a layer's own


ANSWERS = {
    "a text": "We are closed.",
    "a block": [TextBlock("We are closed.")],
    "several blocks": [ThinkingBlock("It is Sunday."), TextBlock("We are"), PICTURE, TextBlock("closed.")],
    "data alone": [PICTURE],
}


@pytest.mark.parametrize("content", ANSWERS.values(), ids=ANSWERS)
async def test_a_short_circuit_is_announced_shown_and_kept(content):
    async def play(agent, next_handler):
        yield Msg("door", content, "assistant")

    items = await check(lambda: agent_of([], middlewares=[OnReply(play)]))
    assert isinstance(items[0], ReplyStartEvent)


async def test_a_message_that_a_layer_returns_again_is_not_changed():
    cached = AssistantMsg("cache", "known", metadata={"hits": 1})

    async def play(agent, next_handler):
        yield cached

    agent = agent_of([], middlewares=[OnReply(play)])
    first, second = await agent.reply("one"), await agent.reply("two")
    assert (cached.content, cached.finished_reason, cached.usage) == ("known", None, None)
    assert first.metadata == {"hits": 1}
    assert len({first.id, second.id, cached.id}) == 3
    assert [message.get_text_content() for message in agent.state.context] == ["one", "known", "two", "known"]


async def test_what_a_layer_announces_itself_is_not_announced_again():
    async def play(agent, next_handler):
        yield TextBlockStartEvent(agent.run.id, "b")
        yield TextBlockDeltaEvent(agent.run.id, "b", "We are ")
        yield TextBlockDeltaEvent(agent.run.id, "b", "closed.")
        yield TextBlockEndEvent(agent.run.id, "b")
        yield ReplyEndEvent(agent.run.id, agent.state.session_id)
        yield AssistantMsg("door", "We are closed.")

    items = await check(lambda: agent_of([], middlewares=[OnReply(play)]))
    assert [short(item) for item in items] == ["RS", "TX_START", "TX_DELTA", *SAID[1:], "RE(completed)", "Msg"]


async def test_a_layer_that_stops_the_answer_withdraws_its_beginning():
    async def play(agent, next_handler):
        async for item in next_handler():
            yield item
            if isinstance(item, TextBlockDeltaEvent):
                break
        yield AssistantMsg("guard", "I cannot say that.")

    items = await check(lambda: agent_of(["the secret is 42"], middlewares=[OnReply(play)]))
    assert [short(item) for item in items] == [
        *["RS", "MS", "TX_START", "TX_DELTA", "BLOCKS_WITHDRAWN", *SAID, "RE(completed)", "Msg"]
    ]


async def test_a_layer_that_answers_for_a_model_that_failed():
    async def play(agent, next_handler):
        try:
            async for item in next_handler():
                yield item
        except ConnectionError:
            yield AssistantMsg("guard", "Sorry.")

    script = [[ChatResponse([TextBlock("half an ")], is_last=False), ConnectionError("cut")]]
    await check(lambda: agent_of(list(script), middlewares=[OnReply(play)]))


async def test_a_short_circuit_has_a_structured_answer():
    async def play(agent, next_handler):
        yield AssistantMsg("cache", '{"city": "Bonn"}', structured_output={"city": "Bonn"})

    agent = agent_of([], middlewares=[OnReply(play)])
    answer = await agent.reply("where?", FORM)
    assert answer.structured_output == agent.state.context[-1].structured_output == {"city": "Bonn"}


async def test_a_short_circuit_that_cannot_be_saved_is_an_error():
    class Broken(InMemoryStateStore):
        async def save(self, state: AgentState) -> None:
            raise SessionIOError("full")

    async def play(agent, next_handler):
        yield AssistantMsg("door", "We are closed.")

    agent = agent_of([], middlewares=[OnReply(play)], state_store=Broken())
    with pytest.raises(SessionIOError):
        await agent.reply("go")
    assert agent.state.reply_context is None


# Another message in the place of the core's


def rewriting(content: Any) -> OnReply:
    async def play(agent, next_handler):
        async for item in next_handler():
            yield Msg(item.name, content, "assistant") if isinstance(item, Msg) else item

    return OnReply(play)


@pytest.mark.parametrize("content", ANSWERS.values(), ids=ANSWERS)
@pytest.mark.parametrize("script", [["the secret"], [[ThinkingBlock("hm"), TextBlock("the secret"), PICTURE]]])
async def test_a_rewritten_message_takes_the_place_of_what_was_said(script, content):
    items = await check(lambda: agent_of(list(script), middlewares=[rewriting(content)]))
    assert any(isinstance(item, BlocksWithdrawnEvent) for item in items)


async def test_what_was_said_and_done_before_the_answer_stays():
    script = [[TextBlock("Let me see."), call("1", "add", a=1, b=2)], "it is three"]
    agent = agent_of(script, add, middlewares=[rewriting("***")])
    items = await items_of(agent)
    kept = agent.state.context[-1]
    assert rebuilt(items) == kept
    assert [block.type for block in kept.content] == ["text", "tool_call", "tool_result", "text"]
    assert said(kept.content) == ["Let me see.", "***"]


async def test_a_message_that_is_changed_in_place_counts_as_another():
    async def play(agent, next_handler):
        async for item in next_handler():
            if isinstance(item, Msg):
                for block in item.get_content_blocks("text"):
                    block.text = block.text.replace("secret", "***")
            yield item

    script = [[ThinkingBlock("hm", signature="s"), TextBlock("the secret")]]
    items = await check(lambda: agent_of(list(script), middlewares=[OnReply(play)]))
    assert said(items[-1].content) == ["hm", "the ***"]
    withdrawn = [item.block_ids for item in items if isinstance(item, BlocksWithdrawnEvent)]
    assert [len(ids) for ids in withdrawn] == [1]  # what was thought stays


async def test_events_and_message_that_were_changed_alike_are_kept():
    async def play(agent, next_handler):
        async for item in next_handler():
            if isinstance(item, TextBlockDeltaEvent):
                item.delta = item.delta.upper()
            if isinstance(item, Msg):
                item.content = item.get_text_content().upper()
            yield item

    items = await check(lambda: agent_of(["one two three"], middlewares=[OnReply(play)]))
    assert items[-1].content == "ONE TWO THREE"
    assert not any(isinstance(item, BlocksWithdrawnEvent) for item in items)


@pytest.mark.parametrize("layer", [OnReply, OnReasoning])
async def test_where_only_events_were_changed_the_message_follows(layer):
    async def play(agent, next_handler):
        async for item in next_handler():
            if isinstance(item, TextBlockDeltaEvent):
                item.delta = item.delta.upper()
            yield item

    items = await check(lambda: agent_of(["one two"], middlewares=[layer(play)]))
    assert items[-1].get_text_content() == "ONE TWO"
    assert not any(isinstance(item, BlocksWithdrawnEvent) for item in items)


def with_stars(item: Any) -> Any:
    """Put stars in the place of each secret of an event."""
    for name in ("delta", "hint", "content"):
        if isinstance(getattr(item, name, None), str):
            setattr(item, name, getattr(item, name).replace("secret", "***"))
    if isinstance(item, DataBlockDeltaEvent):
        item.url = item.url.replace("secret", "***")
    return item


async def test_a_block_of_any_class_is_kept_as_it_left():
    seen = []

    async def look(word: str) -> str:
        seen.append(word)
        return f"a {word} found"

    async def play(agent, next_handler):
        async for item in next_handler():
            yield with_stars(item)

    class Hints(MiddlewareBase):
        async def on_reasoning(self, agent, input_kwargs, next_handler):
            if len(agent.state.reply_context.blocks) == 0:
                yield HintBlockEvent(agent.run.id, "h", "a secret hint")
            async for item in next_handler():
                yield item

    picture = DataBlock(URLSource("https://example.org/secret.png", "image/png"))
    words = [ThinkingBlock("a secret thought"), TextBlock("a secret"), picture, ProviderBlock("x", '"secret"')]
    model = ScriptedChatModel([[*words, call("1", "look", word="secret")], "done"])
    layers = [OnReply(play), Hints()]
    agent = Agent("t", "", model, Toolkit(tools=[look]), layers, state_store=InMemoryStateStore())
    items = await items_of(agent)
    kept = agent.state.context[-1]
    assert {type(block) for block in kept.content} == set(BLOCKS)
    assert rebuilt(items) == kept == (await agent.state_store.load(agent.state.session_id)).context[-1]
    assert "secret" not in kept.to_json()
    assert kept.to_json().count("***") == len(BLOCKS)
    assert seen == ["secret"]  # the call ends with its result, and ran with what the model wrote
    assert "secret" not in repr(model.calls[-1].messages[-1].content)


async def test_what_a_layer_leaves_out_of_calls_and_results_is_kept():
    async def play(agent, next_handler):
        async for item in next_handler():
            if not isinstance(item, (ToolCallDeltaEvent, ToolResultTextDeltaEvent)):
                yield item

    agent = looking(add, middlewares=[OnReply(play)])
    await items_of(agent)
    _, called, result, _ = agent.state.context[-1].content
    assert (called.input, said(result.output)) == ('{"a": 1, "b": 2}', ["3"])


async def test_an_answer_held_back_is_announced_with_its_message():
    async def play(agent, next_handler):
        async for item in next_handler():
            if not short(item).startswith("TX"):
                yield item

    items = await check(lambda: agent_of(["one two"], middlewares=[OnReply(play)]))
    assert [short(item) for item in items] == ["RS", "MS", "ME", *SAID, "RE(completed)", "Msg"]


async def test_thoughts_that_a_layer_holds_back_stay_hidden():
    async def play(agent, next_handler):
        async for item in next_handler():
            if not short(item).startswith("TH"):
                yield item

    agent = agent_of([[ThinkingBlock("hm"), TextBlock("one")]], middlewares=[OnReply(play)])
    names = [short(item) for item in await items_of(agent)]
    assert names == ["RS", "MS", *SAID, "ME", "RE(completed)", "Msg"]
    assert said(agent.state.context[-1].content) == ["hm", "one"]


async def test_what_a_layer_adds_to_the_events_alone_is_withdrawn():
    async def play(agent, next_handler):
        yield TextBlockStartEvent(agent.run.id, "b")
        yield TextBlockDeltaEvent(agent.run.id, "b", "Searching ...")
        yield TextBlockEndEvent(agent.run.id, "b")
        async for item in next_handler():
            yield item

    await check(lambda: agent_of(["found"], middlewares=[OnReply(play)]))


def censored(fail: bool = False) -> MiddlewareBase:
    """Return a layer that puts stars in the place of a secret, in events and message, and may fail in the end."""

    async def play(agent, next_handler):
        async for item in next_handler():
            if isinstance(item, TextBlockDeltaEvent):
                item.delta = item.delta.replace("secret", "***")
            elif isinstance(item, Msg):
                for block in item.get_content_blocks("text"):
                    block.text = block.text.replace("secret", "***")
            yield item
        if fail:
            raise RuntimeError("too late")

    return OnReply(play)


def looking(*tools: Any, **options: Any) -> Agent:
    return agent_of([[TextBlock("a secret look"), call("1", "add", a=1, b=2)], "a secret sum"], *tools, **options)


async def test_text_of_earlier_rounds_is_kept_as_it_left():
    items = await check(lambda: looking(add, middlewares=[censored()]))
    assert not any(isinstance(item, BlocksWithdrawnEvent) for item in items)
    assert said(rebuilt(items).content) == ["a *** look", "a *** sum"]


async def test_text_of_a_reply_that_fails_is_kept_as_it_left():
    agent = looking(add, middlewares=[censored(fail=True)], state_store=InMemoryStateStore())
    events = []
    with pytest.raises(RuntimeError, match="too late"):
        async for event in agent.reply_stream("go"):
            events.append(event)
    saved = await agent.state_store.load(agent.state.session_id)
    assert rebuilt(events) == agent.state.context[-1] == saved.context[-1]
    assert said(saved.context[-1].content) == ["a *** look", "a *** sum"]


@pytest.mark.parametrize("fail", [False, True])
async def test_message_changed_after_its_end_is_saved_in_a_journal(tmp_path, fail):
    store = FileStateStore(tmp_path)
    agent = looking(add, middlewares=[censored(fail)], state_store=store)
    with pytest.raises(RuntimeError, match="too late") if fail else nullcontext():
        await agent.reply("go")
    loaded = await store.load(agent.state.session_id)
    assert loaded == agent.state
    assert said(loaded.context[-1].content) == ["a *** look", "a *** sum"]


async def test_text_of_a_reply_that_waits_is_kept_as_it_left():
    agent = looking(FunctionTool(add, ask=True), middlewares=[censored()], state_store=InMemoryStateStore())
    items = await items_of(agent)
    saved = await agent.state_store.load(agent.state.session_id)
    assert said(saved.reply_context.blocks) == said(agent.state.reply_context.blocks) == ["a *** look"]
    answer = confirmation_of(agent)
    items += [answer, *await items_of(agent, answer)]
    saved = await agent.state_store.load(agent.state.session_id)
    assert rebuilt(items) == agent.state.context[-1] == saved.context[-1]


@pytest.mark.parametrize("is_left", [False, True], ids=["interrupted", "left"])
async def test_text_of_a_reply_that_is_stopped_is_kept_as_it_left(is_left):
    agent = looking(add, middlewares=[censored()], state_store=InMemoryStateStore())
    events = []
    async with agent.reply_stream("go") as stream:
        async for event in stream:
            events.append(event)
            if isinstance(event, TextBlockDeltaEvent):
                if is_left:
                    break
                agent.interrupt()
    saved = await agent.state_store.load(agent.state.session_id)
    assert saved.last_reply.finished_reason == "interrupted"
    assert saved.context == agent.state.context
    assert said(saved.context[-1].content) == ["a *** look"]
    assert is_left or rebuilt(events) == saved.context[-1]


async def test_text_that_a_layer_adds_to_a_failing_reply_is_withdrawn():
    async def play(agent, next_handler):
        async for item in next_handler():
            yield item
            if isinstance(item, TextBlockEndEvent):
                yield TextBlockStartEvent(agent.run.id, "b")
                yield TextBlockDeltaEvent(agent.run.id, "b", "more")
                raise RuntimeError("no more")

    agent = agent_of(["one"], middlewares=[OnReply(play)], state_store=InMemoryStateStore())
    events = []
    with pytest.raises(RuntimeError, match="no more"):
        async for event in agent.reply_stream("go"):
            events.append(event)
    saved = await agent.state_store.load(agent.state.session_id)
    assert rebuilt(events) == agent.state.context[-1] == saved.context[-1]
    assert said(saved.context[-1].content) == ["one"]
    assert saved.sequence >= events[-1].seq


async def test_text_that_a_layer_adds_to_a_waiting_reply_is_withdrawn():
    async def play(agent, next_handler):
        async for item in next_handler():
            yield item
            if isinstance(item, TextBlockEndEvent):
                yield TextBlockStartEvent(agent.run.id, "b")
                yield TextBlockDeltaEvent(agent.run.id, "b", "more")

    agent = looking(FunctionTool(add, ask=True), middlewares=[OnReply(play)], state_store=InMemoryStateStore())
    items = await items_of(agent)
    saved = await agent.state_store.load(agent.state.session_id)
    assert rebuilt(items).content == saved.reply_context.blocks
    assert saved.sequence == items[-2].seq


@pytest.mark.parametrize("asks", [False, True], ids=["ends", "waits"])
async def test_no_later_process_repeats_a_number_sent_after_a_save(asks):
    async def play(agent, next_handler):
        async for item in next_handler():
            if isinstance(item, Msg):
                yield TextBlockStartEvent(agent.run.id, "b")
                yield TextBlockDeltaEvent(agent.run.id, "b", "more")
                item.content = [*item.get_content_blocks(), TextBlock("and more")]
            yield item

    agent = looking(FunctionTool(add, ask=asks), middlewares=[OnReply(play)], state_store=InMemoryStateStore())
    async with agent.reply_stream("go") as stream:
        async for event in stream:
            saved = await agent.state_store.load(agent.state.session_id)
            if saved is not None and (saved.reply_context is None or saved.reply_context.parked):
                assert saved.sequence >= event.seq
    saved = await agent.state_store.load(agent.state.session_id)
    assert saved.sequence == event.seq


async def test_signed_thoughts_are_kept_in_their_own_words():
    async def play(agent, next_handler):
        async for item in next_handler():
            if isinstance(item, ThinkingBlockDeltaEvent):
                item.delta = "..."
            yield item

    script = [[ThinkingBlock("hm", signature="s"), ThinkingBlock("so"), call("1", "add", a=1, b=2)], "three"]
    agent = agent_of(script, add, middlewares=[OnReply(play)])
    await items_of(agent)
    assert said(agent.state.context[-1].content) == ["hm", "...", "three"]


async def test_an_answer_is_headed_as_the_reply_is():
    async def play(agent, next_handler):
        yield Msg("other", "mine", "user", id="x", finished_reason="error", error="none")

    agent = agent_of([], middlewares=[OnReply(play)])
    *_, end, final = await items_of(agent)
    kept = agent.state.context[-1]
    heads = [(each.name, each.role, each.id, each.finished_reason, each.error) for each in (final, kept)]
    assert heads == [("tester", "assistant", end.reply_id, "completed", None)] * 2


@pytest.mark.parametrize(
    "content",
    [[TextBlock("one"), ThinkingBlock("hm"), TextBlock("two")], [PICTURE, TextBlock("one"), PICTURE]],
    ids=["thoughts later", "one block twice"],
)
async def test_blocks_of_an_answer_keep_their_order(content):
    async def play(agent, next_handler):
        async for item in next_handler():
            yield AssistantMsg("", content) if isinstance(item, Msg) else item

    await check(lambda: agent_of([[ThinkingBlock("hm"), TextBlock("two")]], middlewares=[OnReply(play)]))


async def test_changed_metadata_alone_is_not_announced():
    async def play(agent, next_handler):
        async for item in next_handler():
            if isinstance(item, Msg):
                item.metadata["checked"] = True
            yield item

    items = await check(lambda: agent_of(["one"], middlewares=[OnReply(play)]))
    assert [short(item) for item in items] == ["RS", "MS", *SAID, "ME", "RE(completed)", "Msg"]
    assert items[-1].metadata == {"checked": True}


@pytest.mark.parametrize("text", [None, "In ***."])
async def test_a_structured_answer_that_is_rewritten_is_kept_so(text):
    async def play(agent, next_handler):
        async for item in next_handler():
            if isinstance(item, Msg):
                item.structured_output = {"city": "***"}
                item.content = text or item.content
            yield item

    script = [[call("1", "GenerateStructuredOutput", city="Bonn")]]
    agent = agent_of(script, middlewares=[OnReply(play)], state_store=InMemoryStateStore())
    async with agent.reply_stream("where?", FORM, yield_final_msg=True) as stream:
        items = [item async for item in stream]
    saved = await agent.state_store.load(agent.state.session_id)
    assert rebuilt(items) == saved.context[-1] == agent.state.context[-1]
    outputs = [each.structured_output for each in (items[-1], items[-2], saved.context[-1])]
    assert outputs == [{"city": "***"}] * 3
    assert said(saved.context[-1].content) == ([text] if text else [])


async def test_an_answer_about_the_end_may_be_rewritten_too():
    script = [[TextBlock("Let me see."), call("1", "add", a=1, b=2)]] * 2
    agent = agent_of(script, add, middlewares=[rewriting("Ask a person.")], react_config=ReActConfig(max_tool_calls=1))
    items = await items_of(agent)
    assert items[-1].finished_reason == "exceed_max_tool_calls"
    assert rebuilt(items) == agent.state.context[-1]
    assert said(agent.state.context[-1].content) == ["Let me see.", "Let me see.", "Ask a person."]


async def test_an_answer_that_is_rewritten_to_nothing_is_gone():
    agent = agent_of(["the secret"], middlewares=[rewriting([])])
    assert [short(item) for item in await items_of(agent)][-3:] == ["BLOCKS_WITHDRAWN", "RE(completed)", "Msg"]
    assert [message.get_text_content() for message in agent.state.context] == ["go"]


async def test_of_two_layers_that_rewrite_the_outer_is_announced():
    layers = [rewriting("outer"), rewriting("inner")]
    items = await check(lambda: agent_of(["core"], middlewares=layers))
    assert [short(item) for item in items][6:] == ["BLOCKS_WITHDRAWN", *SAID, "RE(completed)", "Msg"]


def redacting() -> OnReply:
    async def play(agent, next_handler):
        async for item in next_handler():
            yield replace(item, content=[TextBlock("(redacted)")]) if isinstance(item, Msg) else item

    return OnReply(play)


async def test_a_rewritten_answer_is_saved_before_the_old_is_withdrawn():
    store = InMemoryStateStore()
    agent = agent_of(["a secret"], middlewares=[redacting()], state_store=store)
    async with agent.reply_stream("go") as events:
        async for event in events:
            if isinstance(event, BlocksWithdrawnEvent):
                saved = await store.load(agent.state.session_id)
    again = await agent.with_state(saved).reply("go", reply_id=agent.reply_id)
    assert again.get_text_content() == "(redacted)"


@pytest.mark.parametrize("layers", [[], [redacting()]], ids=["bare", "rewritten"])
async def test_an_end_that_cannot_be_saved_becomes_an_error(layers):
    class Full(InMemoryStateStore):
        async def save(self, state: AgentState) -> None:
            if len(state.context) > 1 and state.context[-1].get_text_content() == text:
                raise SessionIOError("full")
            await super().save(state)

    text = "(redacted)" if layers else "a secret"
    agent = agent_of(["a secret"], middlewares=layers, state_store=Full())
    items: list[Any] = []
    with pytest.raises(SessionIOError):
        async for event in agent.reply_stream("go"):
            items.append(event)
    assert short(items[-1]) == "RE(error)"
    assert agent.state.last_reply.error == agent.state.context[-1].error == "SessionIOError"
    assert rebuilt(items) == agent.state.context[-1]


async def test_what_comes_after_the_end_is_seen_before_it():
    async def play(agent, next_handler):
        async for item in next_handler():
            yield item
        yield CustomEvent("audited")
        yield item

    names = [short(item) for item in await items_of(agent_of(["one"], middlewares=[OnReply(play)]))]
    assert names[-3:] == ["audited", "RE(completed)", "Msg"]


async def test_a_reply_without_layers_is_told_of_its_end_at_once():
    async with agent_of(["one"]).reply_stream("go") as stream:
        items = [item async for item in stream]
    assert [short(item) for item in items] == ["RS", "MS", *SAID, "ME", "RE(completed)"]


async def test_printing_shows_the_answer_that_left():
    shown: list[str] = []

    class Prints(Agent):
        async def print(self, msg, last=True, speech=None):
            if last:
                shown.append(msg.get_text_content())

    agent = Prints("p", model=ScriptedChatModel(["secret"]), middlewares=[rewriting("***")])
    agent.set_console_output_enabled(True)
    await agent.reply("go")
    assert shown == ["***"]


# Replies that wait


def waiting_agent(play: Play) -> Agent:
    async def write() -> str:
        return "written"

    agent = agent_of([[TextBlock("Well."), call("1", "write")], "done"], FunctionTool(write, ask=True))
    return Agent("tester", "", agent.model, agent.toolkit, [OnReply(play)], state_store=InMemoryStateStore())


async def test_an_answer_instead_of_a_confirmation_leaves_the_question():
    may_pass = False

    async def play(agent, next_handler):
        if may_pass or agent.state.reply_context is None:
            async for item in next_handler():
                yield item
        else:
            yield AssistantMsg("guard", "You may not approve.")

    agent = waiting_agent(play)
    items = await items_of(agent)
    yes = confirmation_of(agent)
    refused = await items_of(agent, yes)
    assert [short(item) for item in refused] == [*SAID, "Msg"]
    assert refused[-1].get_text_content() == "You may not approve."
    assert agent.state.reply_context.parked
    saved = await agent.state_store.load(agent.state.session_id)
    assert said(saved.reply_context.message.content) == ["Well.", "You may not approve."]
    may_pass = True
    done = await items_of(agent.with_state(saved), yes)
    assert rebuilt([*items, *refused, yes, *done]) == saved.context[-1]
    assert said(saved.context[-1].content) == ["Well.", "You may not approve.", "done"]
    numbers = [item.seq for item in [*items, *refused, *done] if isinstance(item, AgentEvent)]
    assert numbers == sorted(set(numbers))


async def test_a_rewritten_answer_after_a_confirmation_is_kept():
    async def play(agent, next_handler):
        async for item in next_handler():
            is_answer = isinstance(item, Msg) and agent.state.reply_context is None
            yield AssistantMsg(item.name, "***") if is_answer else item

    agent = waiting_agent(play)
    items = await items_of(agent)
    yes = confirmation_of(agent)
    done = await items_of(agent, yes)
    assert rebuilt([*items, yes, *done]) == agent.state.context[-1]
    assert said(agent.state.context[-1].content) == ["Well.", "***"]


# Rounds


async def test_a_round_without_tool_calls_ends_with_its_message():
    seen: list[Any] = []

    async def play(agent, next_handler):
        async for item in next_handler():
            seen.append(item)
            yield item

    script = [[TextBlock("Let me see."), call("1", "add", a=1, b=2)], [ThinkingBlock("hm"), TextBlock("three")]]
    items = await check(lambda: agent_of(list(script), add, middlewares=[OnReasoning(play)]))
    messages = [item for item in seen if isinstance(item, Msg)]
    assert [said(message.content) for message in messages] == [["hm", "three"]] * (len(messages))
    assert not any(isinstance(item, BlocksWithdrawnEvent) for item in items)
    assert messages[0].name == "tester"


@pytest.mark.parametrize("stream", [True, False])
async def test_another_message_takes_the_place_of_what_the_round_said(stream):
    async def play(agent, next_handler):
        async for item in next_handler():
            yield AssistantMsg(item.name, "***") if isinstance(item, Msg) else item

    def make() -> Agent:
        return Agent("t", model=ScriptedChatModel(["the secret"], stream=stream), middlewares=[OnReasoning(play)])

    items = await check(make)
    assert items[-1].get_text_content() == "***"
    assert sum(isinstance(item, BlocksWithdrawnEvent) for item in items) == 1


async def test_a_layer_may_pass_on_the_message_of_a_round_alone():
    async def play(agent, next_handler):
        async for item in next_handler():
            if isinstance(item, Msg):
                yield item

    items = await check(lambda: agent_of(["one two"], middlewares=[OnReasoning(play)]))
    assert items[-1].get_text_content() == "one two"


async def test_a_replaced_round_that_is_started_again_says_one_thing():
    async def inner(agent, next_handler):
        async for item in next_handler():
            yield AssistantMsg(item.name, item.get_text_content() + "!") if isinstance(item, Msg) else item

    async def outer(agent, next_handler):
        async for item in next_handler():
            yield item
        async for item in next_handler():
            yield item

    layers = [OnReasoning(outer), OnReasoning(inner)]
    items = await check(lambda: agent_of(["one", "two"], middlewares=layers))
    assert items[-1].get_text_content() == "two!"
