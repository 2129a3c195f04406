"""The scripted model says what it was told to say, and remembers what it was asked."""

import itertools
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any

import anyio.lowlevel
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrt.errors import ConfigError, RateLimited, Transient, UsageError
from agentrt.message import DataBlock, HintBlock, Msg, TextBlock, ThinkingBlock, ToolCallBlock, URLSource, UserMsg
from agentrt.model import ChatResponse, ChatUsage, ScriptedChatModel
from agentrt.model.scripted import stream_response
from agentrt.types import JSONSchema, ToolChoice

HELLO = [UserMsg("user", "Hello")]


async def ask(model: ScriptedChatModel) -> list[ChatResponse]:
    """Return what the model gives for one call, streamed or not."""
    result = await model(HELLO)
    return [result] if isinstance(result, ChatResponse) else [piece async for piece in result]


def texts(pieces: list[ChatResponse]) -> list[str]:
    return [block.text for piece in pieces for block in piece.content if isinstance(block, TextBlock)]


def joined_text(pieces: list[ChatResponse]) -> str:
    return "".join(texts(pieces[:-1]))


async def test_a_str_streams_word_by_word_and_then_as_a_whole() -> None:
    pieces = await ask(ScriptedChatModel(["Hello big world"]))

    assert texts(pieces) == ["Hello ", "big ", "world", "Hello big world"]
    assert [piece.is_last for piece in pieces] == [False, False, False, True]


async def test_all_pieces_of_a_str_have_the_id_of_the_whole() -> None:
    pieces = await ask(ScriptedChatModel(["Hello big world"]))

    assert len({piece.content[0].id for piece in pieces}) == 1


async def test_only_the_last_piece_has_the_usage_which_is_estimated() -> None:
    *pieces, last = await ask(ScriptedChatModel(["Hello big world"]))

    assert all(piece.usage is None for piece in pieces)
    assert last.usage.estimated
    assert last.usage.input_tokens > 0
    assert last.usage.output_tokens > 0


async def test_more_text_is_estimated_to_be_more_tokens() -> None:
    (short,) = await ask(ScriptedChatModel(["word"], stream=False))
    (long,) = await ask(ScriptedChatModel(["word " * 100], stream=False))

    assert short.usage is not None
    assert long.usage.output_tokens > short.usage.output_tokens
    assert long.usage.input_tokens == short.usage.input_tokens


async def test_a_str_is_one_response_when_not_streaming() -> None:
    result = await ScriptedChatModel(["Hello big world"], stream=False)(HELLO)

    assert isinstance(result, ChatResponse)
    assert texts([result]) == ["Hello big world"]
    assert result.is_last


@pytest.mark.parametrize(("stream", "says"), [(None, True), (True, True), (False, False)])
def test_the_model_says_whether_it_streams(stream: bool | None, says: bool) -> None:
    assert ScriptedChatModel([], stream=stream).stream is says


@settings(deadline=None)
@given(st.text())
async def test_the_pieces_of_a_str_join_to_that_str_exactly(text: str) -> None:
    assert joined_text([piece async for piece in stream_response(ChatResponse([TextBlock(text)]))]) == text


async def test_responses_come_in_order() -> None:
    model = ScriptedChatModel(["one", "two"], stream=False)

    assert [texts(await ask(model)), texts(await ask(model))] == [["one"], ["two"]]


async def test_a_response_is_returned_as_it_is() -> None:
    response = ChatResponse([TextBlock("Hello")], usage=ChatUsage(3, 4))

    assert await ScriptedChatModel([response])(HELLO) is response


async def test_a_response_streams_in_pieces_when_asked_to() -> None:
    call = ToolCallBlock("1", "add", '{"first": 123456, "second": 789012}')
    response = ChatResponse([ThinkingBlock("Let me see"), TextBlock("One moment"), call])
    *pieces, last = await ask(ScriptedChatModel([response], stream=True))

    blocks = [block for piece in pieces for block in piece.content]
    calls = [block for block in blocks if isinstance(block, ToolCallBlock)]
    assert last is response
    assert [block.thinking for block in blocks if isinstance(block, ThinkingBlock)] == ["Let ", "me ", "see"]
    assert texts(pieces) == ["One ", "moment"]
    assert len(calls) > 1
    assert "".join(each.input for each in calls) == call.input
    assert {(each.id, each.name) for each in calls} == {("1", "add")}


async def test_a_call_without_input_streams_as_one_piece() -> None:
    pieces = await ask(ScriptedChatModel([ChatResponse([ToolCallBlock("1", "now")])], stream=True))

    assert [piece.content for piece in pieces] == [[ToolCallBlock("1", "now")]] * 2


async def test_data_streams_as_one_piece() -> None:
    image = DataBlock(URLSource("https://example.org/cat.png", "image/png"))
    pieces = await ask(ScriptedChatModel([[image]]))

    assert [piece.content for piece in pieces] == [[image]]


async def test_a_list_of_blocks_is_a_response_of_these_blocks() -> None:
    call = ToolCallBlock("1", "add", "{}")
    (response,) = await ask(ScriptedChatModel([[TextBlock("Let me add."), call]]))

    assert response.content[1] is call
    assert response.finished_reason == "tool_calls"
    assert response.usage is not None


@pytest.mark.parametrize("error", [Transient("cut"), Transient, RateLimited(retry_after=3.0), KeyError("x")])
async def test_an_exception_is_raised(error: Any) -> None:
    with pytest.raises(error if isinstance(error, type) else type(error)):
        await ask(ScriptedChatModel([error]))


async def test_one_exception_raised_twice_has_no_growing_traceback() -> None:
    error = Transient("again")
    model = ScriptedChatModel(itertools.repeat(error))
    depths = []
    for _ in range(3):
        with pytest.raises(Transient) as caught:
            await model(HELLO)
        assert caught.value is error
        depths.append(len(caught.traceback))

    assert len(set(depths)) == 1


async def test_a_list_streams_its_pieces_and_raises_its_exceptions() -> None:
    stream = await ScriptedChatModel([["Half ", Transient("cut")]])(HELLO)
    assert not isinstance(stream, ChatResponse)

    assert texts([await anext(stream)]) == ["Half "]
    with pytest.raises(Transient, match="cut"):
        await anext(stream)


async def test_a_list_without_a_last_piece_is_given_one() -> None:
    chunks = [
        ThinkingBlock("Hm"),
        ThinkingBlock("m", signature="s"),
        "Hel",
        ChatResponse([TextBlock("lo")], is_last=False),
        ToolCallBlock("1", "add", '{"a"'),
        ToolCallBlock("2", "now", "{}"),
        ToolCallBlock("1", "add", ": 1}"),
    ]
    *pieces, last = await ask(ScriptedChatModel([chunks]))

    assert [piece.is_last for piece in pieces] == [False] * 7
    assert last.is_last
    assert (last.content[0].thinking, last.content[0].signature) == ("Hmm", "s")
    assert last.content[1].text == "Hello"
    assert last.content[2:] == [ToolCallBlock("1", "add", '{"a": 1}'), ToolCallBlock("2", "now", "{}")]
    assert last.usage is not None


async def test_joining_the_pieces_leaves_the_script_as_it_was() -> None:
    first, second = TextBlock("Hel"), TextBlock("lo")
    model = ScriptedChatModel(itertools.repeat(["", first, second]))

    assert [texts(await ask(model))[-1], texts(await ask(model))[-1]] == ["Hello", "Hello"]
    assert (first.text, second.text) == ("Hel", "lo")


async def test_a_list_with_a_last_piece_ends_there() -> None:
    last = ChatResponse([TextBlock("Hello")])
    pieces = await ask(ScriptedChatModel([["Hel", "lo", last, "never said"]]))

    assert pieces[-1] is last
    assert joined_text(pieces) == "Hello"


async def test_a_list_is_joined_to_one_response_when_not_streaming() -> None:
    result = await ScriptedChatModel([["Hel", "lo"]], stream=False)(HELLO)

    assert isinstance(result, ChatResponse)
    assert texts([result]) == ["Hello"]


async def test_a_list_raises_at_once_when_not_streaming() -> None:
    with pytest.raises(Transient):
        await ScriptedChatModel([["Hel", Transient("cut")]], stream=False)(HELLO)


async def test_an_empty_list_is_an_answer_of_nothing() -> None:
    (last,) = await ask(ScriptedChatModel([[]]))

    assert last.is_last
    assert last.content == []


def echo(messages: list[Msg], tools: list[JSONSchema] | None) -> str:
    return f"{messages[-1].get_text_content()} with {len(tools or [])} tools"


async def echo_later(messages: list[Msg], tools: list[JSONSchema] | None) -> str:
    await anyio.lowlevel.checkpoint()
    return echo(messages, tools)


class Echo:
    async def __call__(self, messages: list[Msg], tools: list[JSONSchema] | None) -> str:
        return echo(messages, tools)


@pytest.mark.parametrize("function", [echo, echo_later, Echo()])
async def test_a_function_answers_from_what_is_asked(
    function: Callable[[list[Msg], list[JSONSchema] | None], str | Awaitable[str]],
) -> None:
    result = await ScriptedChatModel([function], stream=False)(HELLO, [{"name": "add"}])

    assert isinstance(result, ChatResponse)
    assert texts([result]) == ["Hello with 1 tools"]


@pytest.mark.parametrize("answer", [Transient("cut"), Transient])
async def test_an_exception_that_a_function_returns_is_raised(answer: Any) -> None:
    with pytest.raises(Transient):
        await ask(ScriptedChatModel([lambda messages, tools: answer]))


async def test_calls_are_remembered_with_all_that_was_asked() -> None:
    model = ScriptedChatModel(["one", "two"], stream=False)
    tools, choice = [{"name": "add"}], ToolChoice("required")
    await model(HELLO)
    await model(HELLO, tools, choice)

    first, second = model.calls
    assert (first.messages, first.tools, first.tool_choice) == (HELLO, None, None)
    assert (second.messages, second.tools, second.tool_choice) == (HELLO, tools, choice)


async def test_a_recorded_call_keeps_its_own_list_of_messages() -> None:
    model, messages = ScriptedChatModel(["one"], stream=False), list(HELLO)
    await model(messages)
    messages.append(UserMsg("user", "More"))

    assert model.calls[0].messages == HELLO


async def test_a_call_that_raises_is_remembered_too() -> None:
    model = ScriptedChatModel([Transient])
    with pytest.raises(Transient):
        await model(HELLO)

    assert len(model.calls) == 1


async def test_running_out_of_responses_quotes_the_call_that_has_none() -> None:
    model = ScriptedChatModel(["one"], model="actor", stream=False)
    await model(HELLO)

    with pytest.raises(
        UsageError, match=r"'actor' has no response left: 1 were scripted, and the last message of call 2 is 'Hello'"
    ):
        await model(HELLO)


async def test_a_script_may_be_endless() -> None:
    model = ScriptedChatModel(itertools.repeat("ok"), stream=False)

    assert [texts(await ask(model)) for _ in range(5)] == [["ok"]] * 5


async def test_calls_at_the_same_time_have_a_response_each() -> None:
    model = ScriptedChatModel((str(number) for number in range(10)), stream=False)
    heard: list[str] = []

    async def one_call() -> None:
        heard.extend(texts(await ask(model)))

    async with anyio.create_task_group() as group:
        for _ in range(10):
            group.start_soon(one_call)

    assert sorted(heard) == [str(number) for number in range(10)]


async def test_a_stream_may_be_closed_at_any_point() -> None:
    for items in range(4):
        stream = await ScriptedChatModel(["Hello big world"])(HELLO)
        assert not isinstance(stream, ChatResponse)
        for _ in range(items):
            await anext(stream)
        await stream.aclose()

        with pytest.raises(StopAsyncIteration):
            await anext(stream)


async def test_a_call_can_be_cancelled_and_then_uses_up_no_response() -> None:
    model = ScriptedChatModel(["one"], stream=False)
    with anyio.CancelScope() as scope:
        scope.cancel()
        await model(HELLO)

    assert scope.cancelled_caught
    assert texts(await ask(model)) == ["one"]


async def test_a_stream_can_be_read_in_another_task_than_the_callers() -> None:
    result: AsyncGenerator[ChatResponse, None] | ChatResponse = await ScriptedChatModel(["Hello big world"])(HELLO)
    heard: list[str] = []

    async def read() -> None:
        assert not isinstance(result, ChatResponse)
        heard.extend(texts([piece async for piece in result]))

    async with anyio.create_task_group() as group:
        group.start_soon(read)

    assert heard[-1] == "Hello big world"


@pytest.mark.parametrize("responses", ["Hello", ChatResponse([]), Transient("cut"), Transient, echo, None])
def test_a_script_that_is_not_a_list_of_responses_is_refused(responses: Any) -> None:
    with pytest.raises(ConfigError, match=r"write ScriptedChatModel\(\[...\]\)"):
        ScriptedChatModel(responses)


@pytest.mark.parametrize("response", [None, 42, {"text": "Hello"}, lambda messages, tools: None, HintBlock("x")])
async def test_a_response_of_another_kind_is_refused_when_it_is_due(response: Any) -> None:
    with pytest.raises(UsageError, match="a scripted response must be a str, a ChatResponse"):
        await ask(ScriptedChatModel([response]))


async def test_a_piece_of_another_kind_is_refused_when_it_is_due() -> None:
    with pytest.raises(UsageError, match="not 42"):
        await ask(ScriptedChatModel([["Hello", 42]]))
