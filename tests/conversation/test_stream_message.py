"""The final message of a stream, and the text of a reply as it comes."""

import gc
from typing import Any

import anyio
import pytest

from agentrt import Agent, AgentState, MiddlewareBase, Toolkit
from agentrt.errors import Transient, UsageError
from agentrt.event import TextBlockDeltaEvent, UserInterruptEvent
from agentrt.message import AssistantMsg, TextBlock
from agentrt.middleware import RetryMiddleware
from agentrt.model import ScriptedChatModel
from agentrt.tool import FunctionTool, ToolContext
from tests.loop.helpers import Passing, add, agent_of, call, confirmation_of

LAYERS: list[Any] = [[], [Passing()]]


async def texts_of(agent: Agent, inputs: Any = "go", **options: Any) -> list[str]:
    return [text async for text in agent.reply_stream(inputs, **options).text()]


# The message


@pytest.mark.parametrize("layers", LAYERS)
@pytest.mark.parametrize("yields_message", [False, True])
async def test_message_is_there_after_the_end(layers: Any, yields_message: bool) -> None:
    agent = agent_of([[call("1", "add", a=1, b=2)], "three"], add, middlewares=layers)
    items = []
    async with agent.reply_stream("go", yield_final_msg=yields_message) as stream:
        async for item in stream:
            items.append(item)
    assert (stream.message.get_text_content(), stream.message.finished_reason) == ("three", "completed")
    assert (items[-1] is stream.message) is yields_message


@pytest.mark.parametrize("layers", LAYERS)
async def test_drained_stream_has_its_message(layers: Any) -> None:
    stream = agent_of(["hello"], middlewares=layers).reply_stream("go")
    await stream.drain()
    assert stream.message.get_text_content() == "hello"


@pytest.mark.parametrize("layers", LAYERS)
async def test_parked_reply_has_a_message_with_its_calls(layers: Any) -> None:
    agent = agent_of([[call("1", "add", a=1, b=2)], "three"], FunctionTool(add, ask=True), middlewares=layers)
    stream = agent.reply_stream("go")
    await stream.drain()
    assert [block.id for block in stream.message.get_content_blocks("tool_call")] == ["1"]
    resumed = agent.reply_stream(confirmation_of(agent))
    await resumed.drain()
    assert resumed.message.get_text_content() == "three"


@pytest.mark.parametrize("layers", LAYERS)
async def test_interrupted_reply_has_a_message(layers: Any) -> None:
    agent = agent_of(["hello there"], middlewares=layers)
    async with agent.reply_stream("go") as stream:
        async for event in stream:
            if isinstance(event, TextBlockDeltaEvent):
                agent.interrupt()
    assert stream.message.finished_reason == "interrupted"


async def test_interrupt_of_nothing_has_a_message() -> None:
    agent = agent_of(["hello"])
    await agent.reply("go")
    stream = agent.reply_stream(UserInterruptEvent("of another"))
    await stream.drain()
    assert stream.message.finished_reason == "interrupted"


async def test_repeated_reply_has_its_message_without_events() -> None:
    agent = agent_of(["hello"])
    await agent.reply("go", reply_id="first")
    stream = agent.reply_stream("go", reply_id="first")
    assert [item async for item in stream] == []
    assert stream.message.get_text_content() == "hello"


async def test_message_of_a_layer_that_answers_by_itself() -> None:
    class Refusing(MiddlewareBase):
        async def on_reply(self, agent, input_kwargs, next_handler):
            yield AssistantMsg(agent.name, "no")

    stream = agent_of([], middlewares=[Refusing()]).reply_stream("go")
    await stream.drain()
    assert stream.message.get_text_content() == "no"


async def test_printed_stream_has_its_message(capsys: Any) -> None:
    agent = agent_of(["hello"])
    agent.set_console_output_enabled(True)
    stream = agent.reply_stream("go")
    await stream.drain()
    assert stream.message.get_text_content() == "hello"
    assert "hello" in capsys.readouterr().out


async def test_message_before_the_end_says_what_to_do() -> None:
    stream = agent_of(["hello"]).reply_stream("go")
    with pytest.raises(UsageError, match=r"before the end of the reply, .*`await stream\.drain"):
        _ = stream.message
    async with stream:
        await anext(stream)
        with pytest.raises(UsageError, match="before the end of the reply"):
            _ = stream.message


async def test_failed_or_closed_stream_has_no_message() -> None:
    failed = agent_of([Transient("503")]).reply_stream("go")
    with pytest.raises(Transient):
        await failed.drain()
    closed = agent_of(["hello"]).reply_stream("go")
    await anext(closed)
    await closed.aclose()
    never_read = agent_of(["hello"]).reply_stream("go")
    await never_read.aclose()
    for stream in (failed, closed, never_read):
        with pytest.raises(UsageError, match="failed or its stream was closed before the end"):
            _ = stream.message


async def test_message_at_the_last_event_says_to_read_on() -> None:
    agent = agent_of(["hello", "again"])
    async with agent.reply_stream("go") as stream:
        async for event in stream:
            if event.type == "REPLY_END":
                with pytest.raises(UsageError, match="which comes after its last event: read all events without a"):
                    _ = stream.message
                break
    with pytest.raises(UsageError, match="as by a `break` at its last event; what it had said by then"):
        _ = stream.message


# The text


@pytest.mark.parametrize("layers", LAYERS)
@pytest.mark.parametrize("yields_message", [False, True])
async def test_text_is_that_of_all_blocks_as_it_comes(layers: Any, yields_message: bool) -> None:
    agent = agent_of([[TextBlock("Let me see. "), call("1", "add", a=1, b=2)], ["th", "ree"]], add, middlewares=layers)
    assert await texts_of(agent, yield_final_msg=yields_message) == ["Let me see. ", "th", "ree"]


async def test_text_leaves_the_message_behind() -> None:
    stream = agent_of(["hello"]).reply_stream("go")
    assert "".join([text async for text in stream.text()]) == "hello" == stream.message.get_text_content()


async def test_text_is_not_that_of_other_replies() -> None:
    inner = agent_of(["from inside"])

    async def ask(context: ToolContext) -> str:
        async with inner.reply_stream("go") as events:
            async for event in events:
                context.emit(event)
        return "asked"

    assert await texts_of(agent_of([[call("1", "ask")], "done"], ask)) == ["done"]


async def test_text_of_a_resumed_reply_is_its_rest() -> None:
    agent = agent_of([[TextBlock("May I? "), call("1", "add", a=1, b=2)], "three"], FunctionTool(add, ask=True))
    stream = agent.reply_stream("go")
    assert [text async for text in stream.text()] == ["May I? "]
    assert await texts_of(agent, confirmation_of(agent)) == ["three"]


async def test_text_of_a_given_up_attempt_is_not_taken_back() -> None:
    model = ScriptedChatModel([["Half an ", Transient("cut")], ["The whole."]])
    agent = Agent("tester", "", model, Toolkit(), [RetryMiddleware(initial_delay=0.0)])
    stream = agent.reply_stream("go")
    assert [text async for text in stream.text()] == ["Half an ", "The whole."]
    assert stream.message.get_text_content() == "The whole."


async def test_break_out_of_the_text_closes_a_reply_that_nobody_holds() -> None:
    agent = agent_of([["one ", "two"], "next"])
    async for _ in agent.reply_stream("go").text():
        break
    assert (await agent.reply("and now?")).get_text_content() == "next"
    assert agent.state.context[1].get_text_content() == "one "


async def test_break_out_of_the_text_leaves_a_stream_that_is_held_open() -> None:
    agent = agent_of([["one ", "two"]])
    async with agent.reply_stream("go") as stream:
        async for _ in stream.text():
            break
        assert [text async for text in stream.text()] == ["two"]  # the rest of it


@pytest.mark.parametrize("closing", ["block", "aclose", "block of the stream"])
async def test_closing_the_text_closes_the_reply(closing: str) -> None:
    agent = agent_of([["one ", "two"], "next"])
    stream = agent.reply_stream("go")
    text = stream.text()
    if closing == "block":
        async with text:
            assert await anext(text) == "one "
    elif closing == "aclose":
        assert await anext(text) == "one "
        await text.aclose()
    else:
        async with stream:
            assert await anext(text) == "one "
    assert agent.state.last_reply.finished_reason == "interrupted"
    assert [piece async for piece in text] == []


async def test_failure_of_the_reply_leaves_its_text() -> None:
    stream = agent_of([["one ", Transient("503")]]).reply_stream("go")
    read = []
    with pytest.raises(Transient):
        async for text in stream.text():
            read.append(text)
    assert read == ["one "]


@pytest.mark.slow
async def test_text_that_is_cancelled_while_it_waits_closes_the_reply() -> None:
    async def wait() -> str:
        await anyio.sleep_forever()
        return "never"

    agent = agent_of([[TextBlock("one "), call("1", "wait")], "next"], wait)
    with anyio.move_on_after(0.2) as scope:
        async for _ in agent.reply_stream("go").text():
            pass
    assert scope.cancelled_caught
    gc.collect()
    assert (await agent.reply("and now?")).get_text_content() == "next"


def test_text_says_how_it_is_read() -> None:
    stream = agent_of([]).reply_stream("go")
    with pytest.raises(TypeError, match="async for text in stream"):
        list(stream.text())  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="is not awaited"):
        stream.text().__await__()


async def test_text_of_concurrent_conversations_stays_apart() -> None:
    first = agent_of([["a", "b"], ["a", "b"]])
    second = first.with_state(AgentState())
    one, two = first.reply_stream("go").text(), second.reply_stream("go").text()
    assert [await anext(one), await anext(two), await anext(one), await anext(two)] == ["a", "a", "b", "b"]
    await one.aclose()
    await two.aclose()
