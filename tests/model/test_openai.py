"""The adapter for OpenAI's API: what it sends, and how it reads every dialect of the answer."""

import json
from base64 import b64encode
from functools import partial
from itertools import pairwise
from typing import Any

import anyio
import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from agentrt import Agent, Toolkit
from agentrt.agent import ReActConfig
from agentrt.errors import ConfigError, ContextOverflow, Malformed, ModelError, RateLimited, Refused, Transient
from agentrt.message import (
    AssistantMsg,
    Base64Source,
    DataBlock,
    Msg,
    TextBlock,
    ThinkingBlock,
    ToolCallBlock,
    ToolResultBlock,
)
from agentrt.model import AnthropicChatModel, ChatUsage, OpenAIChatModel, Quirks, TokenPrices
from agentrt.model.presets import PRESETS
from agentrt.types import ToolChoice
from tests.model.wire_openai import (
    DONE,
    HELLO,
    KEY,
    URL,
    Answer,
    answer_of,
    body_of,
    call,
    completion,
    delta,
    events,
    json_of,
    model_of,
    says,
    stream_of,
    usage,
)

TOOLS = [{"type": "function", "function": {"name": "add", "description": "Add.", "parameters": {"type": "object"}}}]


async def request_body(tool_choice: ToolChoice | None = None, tools: Any = None, **options: Any) -> dict[str, Any]:
    model, server = model_of(says("ok"), **options)
    await answer_of(model, HELLO, tools, tool_choice)
    return server.bodies[0]


async def last_response(*data: Any) -> Any:
    return (await answer_of(model_of(stream_of(*data))[0]))[-1]


async def calls_in(*data: Any) -> list[tuple[str, str, str]]:
    """Return id, name and input of the calls, which the pieces must add up to as well."""
    pieces = await answer_of(model_of(stream_of(*data, delta("tool_calls")))[0])
    whole = [block for block in pieces[-1].content if isinstance(block, ToolCallBlock)]
    streamed: dict[str, str] = {}
    for piece in pieces[:-1]:
        for block in piece.content:
            if isinstance(block, ToolCallBlock):
                streamed[block.id] = streamed.get(block.id, "") + block.input
    assert streamed == {block.id: block.input for block in whole if block.id in streamed}
    assert len({block.id for block in whole}) == len(whole)
    return [(block.id, block.name, block.input) for block in whole]


async def test_nothing_is_sent_that_was_not_asked_for() -> None:
    assert await request_body() == {
        "model": "gpt-test",
        "messages": [{"role": "user", "content": "Hello"}],
        "stream": True,
        "stream_options": {"include_usage": True},
    }


async def test_settings_are_sent_under_the_names_of_the_api() -> None:
    body = await request_body(
        temperature=0.0,
        top_p=0.5,
        max_tokens=7,
        stop=("END",),
        seed=3,
        reasoning_effort="low",
        extra_body={"top_k": 4, "temperature": 1.0},
    )

    assert body | {"temperature": 1.0, "top_p": 0.5, "max_tokens": 7, "stop": ["END"], "seed": 3} == body
    assert body | {"reasoning_effort": "low", "top_k": 4} == body


async def test_openai_itself_gets_its_own_name_for_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)

    assert (await request_body(base_url=None, max_tokens=7))["max_completion_tokens"] == 7
    assert (await request_body(base_url="https://api.openai.com/v1/", max_tokens=7))["max_completion_tokens"] == 7


@pytest.mark.parametrize("wrong", ["must_call", {}, {"must_call": False}, Quirks])
def test_quirks_of_another_type_are_refused_at_once(wrong: Any) -> None:
    with pytest.raises(ConfigError, match=r"OpenAIChatModel\(quirks=...\) must be a Quirks, as in"):
        OpenAIChatModel("gpt-test", api_key=KEY, quirks=wrong)


@pytest.mark.parametrize("options", [{"reasoning_effort": 5}, {"parallel_tool_calls": 1}, {"seed": float("inf")}])
def test_options_of_another_type_are_refused_at_once(options: dict[str, Any]) -> None:
    [name] = options
    with pytest.raises(ConfigError, match=rf"OpenAIChatModel\({name}=\.\.\.\) must be a "):
        OpenAIChatModel("gpt-test", api_key=KEY, **options)


async def test_stream_options_go_only_to_servers_that_know_them() -> None:
    assert "stream_options" not in await request_body(quirks=Quirks(stream_usage=False))


@pytest.mark.parametrize(
    ("choice", "wanted"),
    [
        (None, None),
        (ToolChoice("auto"), "auto"),
        (ToolChoice("none"), "none"),
        (ToolChoice("required"), "required"),
        (ToolChoice("add"), {"type": "function", "function": {"name": "add"}}),
    ],
)
async def test_a_tool_choice_is_sent_as_the_api_says_it(choice: ToolChoice | None, wanted: Any) -> None:
    body = await request_body(choice, TOOLS)

    assert body["tools"] == TOOLS
    assert body.get("tool_choice") == wanted


async def test_without_tools_there_is_nothing_to_choose() -> None:
    assert (
        not {"tools", "tool_choice", "parallel_tool_calls"}
        & (await request_body(ToolChoice("required"), [], parallel_tool_calls=False)).keys()
    )


async def test_a_server_that_cannot_be_made_to_call_is_asked_to() -> None:
    assert (await request_body(ToolChoice("add"), TOOLS, quirks=Quirks(must_call=False)))["tool_choice"] == "auto"


async def test_headers_of_the_user_go_with_every_request() -> None:
    model, server = model_of(says("ok"), extra_headers={"x-title": "mine"})
    await answer_of(model)

    assert server.requests[0].headers["x-title"] == "mine"
    assert str(server.requests[0].url) == "http://test.invalid/v1/chat/completions"


async def test_text_streams_in_pieces_of_one_block_and_then_as_a_whole() -> None:
    *pieces, whole = await answer_of(
        model_of(stream_of(delta(content="Hel"), delta(content="lo"), delta("stop"), usage(3, 2)))[0]
    )

    assert [piece.content[0].text for piece in pieces] == ["Hel", "lo"]  # type: ignore[union-attr]  # text
    assert whole.content == [TextBlock("Hello", pieces[0].content[0].id)]
    assert (whole.is_last, whole.finished_reason, whole.id) == (True, "stop", "chatcmpl-1")
    assert whole.usage == ChatUsage(3, 2)


async def test_an_answer_that_is_not_streamed_is_the_same() -> None:
    calls = [{"id": "c1", "function": {"name": "add", "arguments": "{}"}}, {"function": {"name": "add"}}]
    model, server = model_of(completion("tool_calls", content="Hi", reasoning="Hm", tool_calls=calls), stream=False)
    (whole,) = await answer_of(model)

    thinking, text, first, second = whole.content
    assert (thinking.thinking, text.text) == ("Hm", "Hi")  # type: ignore[union-attr]  # by their places
    assert isinstance(first, ToolCallBlock)
    assert isinstance(second, ToolCallBlock)
    assert (first.id, first.input, second.name, second.input) == ("c1", "{}", "add", "")
    assert "stream_options" not in server.bodies[0]


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning"])
async def test_reasoning_becomes_thinking(name: str) -> None:
    whole = await last_response(delta(**{name: "Let me"}), delta(**{name: " see"}), delta(content="4"), delta("stop"))

    assert [type(block) for block in whole.content] == [ThinkingBlock, TextBlock]
    assert whole.content[0].thinking == "Let me see"


FRAGMENTS: dict[str, tuple[list[dict[str, Any]], list[tuple[str, str, str]]]] = {
    "id only in the first": (
        [call(0, "c1", "add", ""), call(0, arguments='{"a"'), call(0, arguments=": 1}")],
        [("c1", "add", '{"a": 1}')],
    ),
    "id and name in every fragment": (
        [call(0, "c1", "add", '{"a"'), call(0, "c1", "add", ": 1}")],
        [("c1", "add", '{"a": 1}')],
    ),
    "no index": (
        [call(None, "c1", "add", '{"a"'), call(None, None, None, ": 1}"), call(None, "c2", "sub", "{}")],
        [("c1", "add", '{"a": 1}'), ("c2", "sub", "{}")],
    ),
    "a name in parts": (
        [call(0, "c1", "add_"), call(0, None, "numbers"), call(0, arguments="{}")],
        [("c1", "add_numbers", "{}")],
    ),
    "a name again and again": (
        [call(0, "c1", "add"), call(0, "c1", "add"), call(0, "c1", "add", "{}")],
        [("c1", "add", "{}")],
    ),
    "arguments as an object": ([call(0, "c1", "add", {"a": "é"})], [("c1", "add", '{"a": "é"}')]),
    "no arguments": ([call(0, "c1", "now")], [("c1", "now", "")]),
    "two interleaved": (
        [call(0, "c1", "add", "{"), call(1, "c2", "sub", "{"), call(0, arguments="}"), call(1, arguments=" }")],
        [("c1", "add", "{}"), ("c2", "sub", "{ }")],
    ),
    "one index for all": (
        [call(0, "c1", "add", '{"a":'), call(0, arguments="1}"), call(0, "c2", "add", '{"a":2}')],
        [("c1", "add", '{"a":1}'), ("c2", "add", '{"a":2}')],
    ),
}


@pytest.mark.parametrize("fragments", FRAGMENTS)
async def test_tool_calls_are_joined_from_fragments_of_every_dialect(fragments: str) -> None:
    deltas, wanted = FRAGMENTS[fragments]

    assert await calls_in(*(delta(**each) for each in deltas)) == wanted


async def test_a_second_object_begins_a_call_of_the_same_index() -> None:
    found = await calls_in(delta(**call(0, None, "add", {"a": 1})), delta(**call(0, None, "add", '{"a": 2}')))

    assert [call[1:] for call in found] == [("add", '{"a": 1}'), ("add", '{"a": 2}')]


async def test_calls_that_share_an_id_get_ids_of_their_own() -> None:
    found = await calls_in(delta(**call(0, "call_0", "add", "{}")), delta(**call(1, "call_0", "sub", "{}")))

    assert [call[1:] for call in found] == [("add", "{}"), ("sub", "{}")]


@pytest.mark.parametrize(
    ("fields", "wanted"),
    [
        ({"prompt_tokens_details": {"cached_tokens": 2}}, ChatUsage(3, 2, 2)),
        ({"prompt_cache_hit_tokens": 2, "prompt_cache_miss_tokens": 1}, ChatUsage(3, 2, 2)),
        ({"prompt_tokens_details": None}, ChatUsage(3, 2)),
    ],
)
async def test_cached_tokens_are_counted_in_every_dialect(fields: dict[str, Any], wanted: ChatUsage) -> None:
    assert (await last_response(delta(content="Hi"), delta("stop"), usage(3, 2, **fields))).usage == wanted


async def test_missing_usage_is_estimated() -> None:
    whole = await last_response(delta(content="word " * 100), delta("stop"))

    assert whole.usage.estimated
    assert whole.usage.output_tokens > 100


@pytest.mark.parametrize(("said", "wanted"), [("stop", "stop"), ("length", "length"), ("other", "other")])
async def test_reasons_for_stopping_have_the_words_of_the_runtime(said: str, wanted: str) -> None:
    assert (await last_response(delta(said, content="Hi"))).finished_reason == wanted


HALF_CALLS = [["", ""], ["", '{"a": '], ["{}", "  "], ["{}", "[1]"], ["{}", "{} {"]]


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    ("arguments", "finish", "wanted"),
    [
        *((each, None, "length") for each in HALF_CALLS),
        *((each, "length", "length") for each in HALF_CALLS),
        *((each, "stop", "tool_calls") for each in HALF_CALLS),
        (["", "{}"], None, None),
        (["", "{}"], "stop", "tool_calls"),
    ],
)
async def test_half_a_call_at_the_end_means_that_the_answer_was_cut(
    arguments: list[str], finish: str | None, wanted: str, stream: bool
) -> None:
    calls = [call(index, f"c{index}", "wipe", each) for index, each in enumerate(arguments)]
    if stream:
        played = stream_of(*(delta(**each) for each in calls), delta(finish))
    else:
        played = completion(finish, tool_calls=[each["tool_calls"][0] for each in calls])

    assert (await answer_of(model_of(played, stream=stream)[0]))[-1].finished_reason == wanted


async def test_text_that_comes_in_parts_is_put_together() -> None:
    parts = [{"type": "text", "text": "Hel"}, {"type": "reference"}, {"type": "text", "text": "lo"}]

    assert (await last_response(delta(content=parts), delta("stop"))).content[0].text == "Hello"


async def test_an_answer_in_one_piece_to_a_stream_request_is_read() -> None:
    played = completion(content="Hello", tool_calls=[{"id": "c1", "function": {"name": "add", "arguments": "{}"}}])
    played.chunks = [b"\xef\xbb\xbf \n", *split_bytes(next(iter(played.chunks)), [1, 9, 40])]
    (whole,) = await answer_of(model_of(played)[0])

    assert [block.type for block in whole.content] == ["text", "tool_call"]
    assert (whole.is_last, whole.finished_reason, whole.usage) == (True, "tool_calls", ChatUsage(3, 2))


@pytest.mark.parametrize(
    ("answer", "kind", "words"),
    [
        (json_of({"error": {"message": "too long", "code": "context_length_exceeded"}}), ContextOverflow, "too long"),
        (json_of({"error": {"message": "slow down", "code": 429}}), RateLimited, "slow down"),
        (json_of({"error": "overloaded"}), Transient, "overloaded"),
        (json_of({"models": []}), Malformed, "without 'choices'"),
        (Answer([b'{"choices": [{"mess']), Transient, "breaks off"),
        (Answer([b'{"choices": [{mess']), Malformed, "not valid JSON"),
        (Answer([b"event: error\ndata: everything is on fire\n\n"]), Transient, "everything is on fire"),
        (Answer([b'event: error\ndata: {"message": "full", "code": 503}\n\n']), Transient, "503.*full"),
        (Answer([b'event: error\ndata: {"code": "rate_limit_exceeded"}\n\n']), RateLimited, "rate_limit"),
        (Answer([b'event: error\ndata: ["odd"]\n\n']), Transient, "odd"),
    ],
)
async def test_an_error_in_place_of_a_stream_is_classified(answer: Answer, kind: type[ModelError], words: str) -> None:
    with pytest.raises(kind, match=words) as caught:
        await answer_of(model_of(answer)[0])
    assert type(caught.value) is kind


@pytest.mark.parametrize("stream", [True, False])
async def test_the_model_may_be_an_application_in_this_process(stream: bool) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        asked = json.loads(await body_of(receive))
        assert (scope["path"], asked["stream"]) == ("/v1/chat/completions", stream)
        said = asked["messages"][-1]["content"].upper()
        played = says(said) if stream else completion(content=said)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for chunk in played.chunks:
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    client = partial(httpx2.AsyncClient, transport=httpx2.ASGITransport(app))
    model = OpenAIChatModel("gpt-test", api_key="x", base_url="http://app/v1", stream=stream, http_client=client)
    async with Agent("tester", model=model) as agent:
        reply = await agent.reply("Hello")

    assert (reply.get_text_content(), reply.usage) == ("HELLO", ChatUsage(3, 2))


async def test_an_answer_with_calls_always_finishes_with_tool_calls() -> None:
    assert (await last_response(delta("stop", **call(0, "c1", "add", "{}")))).finished_reason == "tool_calls"


@pytest.mark.parametrize(
    ("data", "kind", "words"),
    [
        ([delta(refusal="I can"), delta(refusal="not."), delta("stop")], Refused, "I cannot"),
        ([delta(content="Well"), delta("content_filter")], Refused, "content_filter"),
        ([delta("insufficient_system_resource", content="W")], Transient, "resource"),
        ([{"error": {"message": "Too busy", "code": 503}}], Transient, "503.*Too busy"),
        ([delta(**call(0, "c1", None, "{}")), delta("tool_calls")], Malformed, "without saying which"),
        ([{"choices": []}], Malformed, "no choices"),
        ([{"choices": "none"}], Malformed, "'choices' is 'none'"),
        ([{"choices": [5]}], Malformed, "an object"),
        ([delta(content=["Hi"])], Malformed, "'content"),
        ([delta(content={"text": "Hi"})], Malformed, "'content'"),
        ([delta(tool_calls={"index": 0})], Malformed, "'tool_calls'"),
        ([delta(**call(0, "c1", "add", 5))], Malformed, "'arguments' is 5"),
        (["text"], Malformed, "JSON object"),
    ],
)
async def test_a_body_without_an_answer_is_an_error_of_the_tree(
    data: list[Any], kind: type[ModelError], words: str
) -> None:
    with pytest.raises(kind, match=rf"(?s)gpt-test.*{words}") as caught:
        await last_response(*data)
    assert type(caught.value) is kind


async def test_an_error_body_with_status_200_is_an_error() -> None:
    with pytest.raises(Transient, match="overloaded"):
        await answer_of(model_of(json_of({"error": "overloaded"}), stream=False)[0])


@pytest.mark.parametrize("stream", [True, False])
async def test_a_page_in_place_of_an_answer_is_quoted_in_the_error(stream: bool) -> None:
    page = Answer([b"<!doctype html><title>Log in</title>"], headers={"content-type": "text/html"})

    with pytest.raises(Malformed, match="doctype"):
        await answer_of(model_of(page, stream=stream)[0])


def test_a_missing_key_is_refused_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)

    with pytest.raises(ConfigError, match="set OPENAI_API_KEY or give api_key="):
        OpenAIChatModel("gpt-test")


def test_the_url_is_found_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", "http://proxy.invalid/v1")

    assert OpenAIChatModel("gpt-test", api_key="x").base_url == "http://proxy.invalid/v1"


ROUNDS = (
    [
        delta(role="assistant", content=""),
        delta(reasoning_content="Ich überlege 🤔"),
        delta(content="Ich rechne — "),
        delta(content="sofort."),
        delta(**call(0, "c1", "add")),
        delta(**call(0, arguments='{"a": 1, ')),
        delta(**call(1, "c2", "add", '{"a": 5')),
        delta(**call(0, arguments='"b": 2}')),
        delta(**call(1, arguments=', "b": 6}')),
        delta("tool_calls"),
        usage(20, 10),
    ],
    [delta(content="3 und 11 ✓"), delta("stop"), usage(40, 5)],
)


async def add(a: int, b: int) -> int:
    return a + b


async def reply_of(*answers: Answer) -> Msg:
    model, server = model_of(*answers)
    try:
        agent = Agent("tester", model=model, toolkit=Toolkit(tools=[add]))
        await agent.reply("go")
    finally:
        await model.aclose()
    assert not server.open
    return agent.state.context[-1]


def shape_of(msg: Msg) -> list[Any]:
    """Return the message's content without the ids that differ from reply to reply."""
    return [
        (block.type, getattr(block, "output", None) or getattr(block, "text", None) or getattr(block, "thinking", None))
        if not isinstance(block, ToolCallBlock)
        else (block.id, block.name, block.input)
        for block in msg.get_content_blocks()
    ]


def split_bytes(data: bytes, cuts: list[int]) -> list[bytes]:
    places = sorted({0, len(data), *(cut % len(data) for cut in cuts)})
    return [data[start:end] for start, end in pairwise(places)]


def split_texts(data: dict[str, Any], place: int) -> list[dict[str, Any]]:
    """Return the same event as two, parted within its text or its arguments."""
    if not data["choices"]:
        return [data]
    fields = data["choices"][0]["delta"]
    for name in ("content", "reasoning_content"):
        if fields.get(name):
            cut = place % len(fields[name])
            return [delta(**{name: fields[name][:cut]}), delta(**{name: fields[name][cut:]})]
    if "tool_calls" in fields and fields["tool_calls"][0]["function"].get("arguments"):
        (fragment,) = fields["tool_calls"]
        text = fragment["function"]["arguments"]
        cut = place % len(text)
        rest = call(fragment["index"], None, None, text[cut:])
        return [
            delta(**call(fragment["index"], fragment.get("id"), fragment["function"].get("name"), text[:cut])),
            delta(**rest),
        ]
    return [data]


@given(
    st.lists(st.integers(0, 3000), max_size=40),
    st.lists(st.integers(0, 50), min_size=11, max_size=11),
    st.sampled_from([b"\n", b"\r\n", b"\r"]),
)
def test_however_a_response_is_cut_up_the_message_is_the_same(cuts: list[int], places: list[int], end: bytes) -> None:
    first = [part for data, place in zip(ROUNDS[0], places, strict=True) for part in split_texts(data, place)]
    answers = [events(*first) + DONE, events(*ROUNDS[1]) + DONE]
    played = [Answer(split_bytes(each.replace(b"\n", end), cuts)) for each in answers]

    msg = anyio.run(reply_of, *played)

    assert shape_of(msg) == [
        ("thinking", "Ich überlege 🤔"),
        ("text", "Ich rechne — sofort."),
        ("c1", "add", '{"a": 1, "b": 2}'),
        ("c2", "add", '{"a": 5, "b": 6}'),
        ("tool_result", [TextBlock("3", msg.content[4].output[0].id)]),  # type: ignore[union-attr]  # a result
        ("tool_result", [TextBlock("11", msg.content[5].output[0].id)]),  # type: ignore[union-attr]  # a result
        ("text", "3 und 11 ✓"),
    ]
    assert msg.usage == ChatUsage(60, 15)


NAMES = ["choices", "delta", "message", "index", "content", "refusal", "finish_reason", "error", "code", "id"]
NAMES += ["tool_calls", "function", "name", "arguments", "usage", "prompt_tokens", "prompt_tokens_details"]
SCALARS = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.sampled_from(["stop", "c1"])
)
json_values: st.SearchStrategy[Any] = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=4),
    max_leaves=12,
)
garbage = st.binary(max_size=60) | json_values.map(events) | st.just(events(*ROUNDS[0][:6]))


async def failure_of(answer: Answer, **options: Any) -> ModelError | None:
    """Return the error of the tree that a call raises, if it does; anything else is raised."""
    model, server = model_of(answer, **options)
    try:
        await answer_of(model)
    except ModelError as failure:
        return failure
    finally:
        assert not server.open
    return None


@given(st.lists(garbage, max_size=5), st.booleans(), st.sampled_from([200, 400, 429, 500]))
async def test_garbage_raises_only_model_errors(chunks: list[bytes], stream: bool, status: int) -> None:
    failure = await failure_of(Answer(chunks, status), stream=stream)
    assert failure is None or "gpt-test" in str(failure)


@given(json_values, st.booleans())
async def test_json_of_the_wrong_shape_raises_only_model_errors(value: Any, stream: bool) -> None:
    body = {"choices": [{"index": 0, "delta": value, "message": value, "finish_reason": "stop"}]}
    failure = await failure_of(stream_of(body) if stream else json_of(body), stream=stream)
    assert failure is None or "gpt-test" in str(failure)


async def test_a_call_that_was_cut_short_never_runs() -> None:
    ran: list[str] = []

    async def delete(path: str) -> str:
        ran.append(path)
        return "deleted"

    truncated = stream_of(delta(**call(0, "c1", "delete", '{"path": "/tmp')), delta("length"))
    model, server = model_of(truncated, says("It was cut."))
    agent = Agent("tester", model=model, toolkit=Toolkit(tools=[delete]))
    await agent.reply("go")
    await model.aclose()

    assert ran == []
    (result,) = agent.state.context[-1].get_content_blocks("tool_result")
    assert isinstance(result, ToolResultBlock)
    assert result.state == "error"
    assert "not valid JSON" in str(result.output)
    arguments = server.bodies[1]["messages"][-2]["tool_calls"][0]["function"]["arguments"]
    assert json.loads(arguments) == {"invalid_arguments": '{"path": "/tmp'}


async def test_what_the_model_said_can_be_sent_back_to_it() -> None:
    model, server = model_of(*(stream_of(*data) for data in ROUNDS))
    await Agent("tester", model=model, toolkit=Toolkit(tools=[add])).reply("go")
    await model.aclose()

    assistant, *results = server.bodies[1]["messages"][1:]
    assert assistant == {
        "role": "assistant",
        "content": "Ich rechne — sofort.",
        "tool_calls": [
            {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1, "b": 2}'}},
            {"id": "c2", "type": "function", "function": {"name": "add", "arguments": '{"a": 5, "b": 6}'}},
        ],
    }
    assert [(each["role"], each["tool_call_id"], each["content"]) for each in results] == [
        ("tool", "c1", "3"),
        ("tool", "c2", "11"),
    ]


async def test_reasoning_goes_back_where_the_server_wants_it() -> None:
    model, server = model_of(*(stream_of(*data) for data in ROUNDS), quirks=Quirks(reasoning_back=True))
    await Agent("tester", model=model, toolkit=Toolkit(tools=[add])).reply("go")
    await model.aclose()

    assert server.bodies[1]["messages"][1]["reasoning_content"] == "Ich überlege 🤔"


async def test_an_answer_without_a_reason_has_none() -> None:
    assert (await last_response(delta(content="Hi"))).finished_reason is None
    assert (await answer_of(model_of(completion(None, content="Hi"), stream=False)[0]))[-1].finished_reason is None


@pytest.mark.parametrize("quirks", [Quirks(says_reason=True), PRESETS["deepseek"].quirks, PRESETS["dashscope"].quirks])
async def test_without_a_reason_a_stream_of_some_servers_was_cut(quirks: Quirks) -> None:
    model, server = model_of(stream_of(delta(content="Hi")), quirks=quirks)
    with pytest.raises(Transient, match="ended without a finish_reason"):
        await answer_of(model)
    assert not server.open
    whole = (await answer_of(model_of(completion(None, content="Hi"), stream=False, quirks=quirks)[0]))[-1]
    assert whole.finished_reason is None


def test_openai_itself_always_gives_a_reason() -> None:
    assert OpenAIChatModel("gpt-test", api_key=KEY).quirks.says_reason
    assert not OpenAIChatModel("gpt-test", api_key=KEY, base_url=URL).quirks.says_reason


@pytest.mark.parametrize("rest", ['{"id": "c1", "choices": [{"index": 0, "del', '{"id"', "{", '{"a": tru'])
async def test_half_an_event_in_mid_stream_is_transient(rest: str) -> None:
    played = Answer([events(delta(content="Hi")), f"data: {rest}\n\n".encode(), DONE])
    with pytest.raises(Transient, match="breaks off"):
        await answer_of(model_of(played)[0])


async def test_without_named_choice_only_the_named_tool_is_sent() -> None:
    other = {"type": "function", "function": {"name": "sub", "description": "", "parameters": {"type": "object"}}}
    quirks = Quirks(named_choice=False)
    body = await request_body(ToolChoice("add"), [other, *TOOLS], quirks=quirks)
    assert (body["tools"], body["tool_choice"]) == (TOOLS, "required")
    body = await request_body(ToolChoice("auto"), [other, *TOOLS], quirks=quirks)
    assert (body["tools"], body["tool_choice"]) == ([other, *TOOLS], "auto")
    assert (await request_body(ToolChoice("gone"), TOOLS, quirks=quirks))["tools"] == TOOLS


async def test_structured_output_is_forced_without_a_named_choice() -> None:
    class Sum(BaseModel):
        total: int

    final = [delta(**call(0, "c1", "GenerateStructuredOutput", '{"total": 3}')), delta("tool_calls")]
    model, server = model_of(says("three"), stream_of(*final), quirks=Quirks(named_choice=False))
    agent = Agent("tester", model=model, toolkit=Toolkit(tools=[add]), react_config=ReActConfig(max_iters=1))
    assert (await agent.reply("1 + 2?", structured_schema=Sum)).structured_output == Sum(total=3)
    await model.aclose()

    forced = server.bodies[-1]
    assert forced["tool_choice"] == "required"
    assert [tool["function"]["name"] for tool in forced["tools"]] == ["GenerateStructuredOutput"]


@pytest.mark.parametrize(
    ("base_url", "is_named"),
    [
        ("http://localhost:9000/v1", False),
        ("http://192.168.1.5:9000/v1", False),
        ("http://model-server:9000/v1", False),
        ("https://models.example.com/v1", True),
    ],
)
def test_an_unknown_local_server_is_not_asked_for_a_tool_by_name(base_url: str, is_named: bool) -> None:
    assert OpenAIChatModel("m", api_key=KEY, base_url=base_url).quirks.named_choice is is_named
    assert AnthropicChatModel("m", api_key=KEY, base_url=base_url).rules.named_choice is is_named


def test_prices_that_are_given_replace_the_published_ones() -> None:
    model = OpenAIChatModel("gpt-5-mini", api_key=KEY, prices=TokenPrices(1, 2))
    assert model.capabilities.prices == TokenPrices(1, 2)
    assert model.capabilities.tools  # which is still known


THOUGHT = {"type": "thinking", "thinking": [{"type": "text", "text": "Hm"}, {"type": "text", "text": "m."}]}


@pytest.mark.parametrize("thought", [THOUGHT, {"type": "thinking", "thinking": "Hmm."}])
@pytest.mark.parametrize("stream", [True, False])
async def test_thinking_among_the_parts_of_an_answer_is_kept(thought: dict[str, Any], stream: bool) -> None:
    parts = [thought, {"type": "text", "text": "Tea."}, {"type": "reference", "reference_ids": [1]}]
    played = stream_of(delta(content=parts), delta("stop")) if stream else completion("stop", content=parts)
    whole = (await answer_of(model_of(played, stream=stream)[0]))[-1]

    thinking, text = whole.content
    assert isinstance(thinking, ThinkingBlock)
    assert isinstance(text, TextBlock)
    assert (thinking.thinking, text.text) == ("Hmm.", "Tea.")


async def test_an_answer_that_is_an_object_is_its_json() -> None:
    (answer,) = await answer_of(model_of(completion(content={"city": "Köln"}), stream=False)[0])
    assert [block.text for block in answer.content if isinstance(block, TextBlock)] == ['{"city": "Köln"}']


SOUND = {"extra_body": {"modalities": ["text", "audio"], "audio": {"voice": "alloy", "format": "pcm16"}}}


@pytest.mark.parametrize("stream", [True, False])
async def test_a_spoken_answer_becomes_its_transcript_and_the_audio(stream: bool) -> None:
    if stream:
        spoken = [
            {"id": "audio_1", "transcript": "Drink "},
            {"data": b64encode(b"abcd").decode()},
            {"transcript": "tea."},
            {"data": b64encode(b"ef").decode(), "expires_at": 1},
        ]
        played = stream_of(*(delta(audio=each) for each in spoken), delta("stop"))
    else:
        whole_sound = {"id": "audio_1", "transcript": "Drink tea.", "data": b64encode(b"abcdef").decode()}
        played = completion("stop", content=None, audio=whole_sound)
    model = model_of(played, says("Bye"), stream=stream, **SOUND)[0]
    reply = await Agent("tester", model=model).reply("What should I drink?")

    text, sound = reply.content
    assert isinstance(text, TextBlock)
    assert isinstance(sound, DataBlock)
    assert text.text == "Drink tea."
    assert sound.source == Base64Source(b64encode(b"abcdef").decode(), "audio/pcm;rate=24000")


async def test_audio_that_is_not_base64_is_malformed() -> None:
    with pytest.raises(Malformed, match="base64"):
        await last_response(delta(audio={"data": "?"}), delta("stop"))


@pytest.mark.parametrize("stream", [True, False])
async def test_the_older_form_of_a_call_is_read(stream: bool) -> None:
    pieces = [{"name": "add", "arguments": ""}, {"arguments": '{"a": 1'}, {"arguments": "}"}]
    call_of_function = {"name": "add", "arguments": '{"a": 1}'}
    streamed = stream_of(*(delta(function_call=piece) for piece in pieces), delta("function_call"), usage(3, 2))
    model, _ = model_of(
        streamed if stream else completion("function_call", function_call=call_of_function), stream=stream
    )
    answer = (await answer_of(model))[-1]
    (block,) = answer.content
    assert isinstance(block, ToolCallBlock)
    assert (block.name, block.input, answer.finished_reason) == ("add", '{"a": 1}', "tool_calls")


@pytest.mark.parametrize(
    ("last", "counts"),
    [
        (usage(20, 5, prompt_tokens_details={"cached_tokens": 8, "cache_write_tokens": 4}), ChatUsage(20, 5, 8, 4)),
        ({"choices": [], "x_groq": {"usage": {"prompt_tokens": 3, "completion_tokens": 2}}}, ChatUsage(3, 2)),
        (
            {"choices": [{"index": 0, "delta": {}, "usage": {"prompt_tokens": 3, "completion_tokens": 2}}]},
            ChatUsage(3, 2),
        ),
    ],
)
async def test_tokens_are_counted_where_servers_say_them(last: dict[str, Any], counts: ChatUsage) -> None:
    model, _ = model_of(stream_of(delta(content="A"), delta("stop"), last))
    assert (await answer_of(model))[-1].usage == counts


@pytest.mark.parametrize(
    ("choice", "kind", "words"),
    [
        ({"finish_reason": "error"}, Transient, "finish_reason 'error'"),
        ({"finish_reason": "abort"}, Transient, "finish_reason 'abort'"),
        ({"finish_reason": "error", "error": {"code": 429, "message": "slow down"}}, RateLimited, "slow down"),
    ],
)
async def test_a_choice_that_failed_is_an_error(choice: dict[str, Any], kind: type[ModelError], words: str) -> None:
    sent = {"choices": [{"index": 0, "delta": {"content": "half"}, **choice}]}
    model, _ = model_of(stream_of(delta(content="A "), sent))
    with pytest.raises(kind, match=words):
        await answer_of(model)


async def test_addresses_that_a_search_gives_are_citations() -> None:
    model, _ = model_of(stream_of({**delta(content="A"), "citations": ["https://a.example"]}, delta("stop")))
    whole = (await answer_of(model))[-1]
    (citation,) = AssistantMsg("a", whole.content).get_citations()
    assert (citation["url"], citation["text"]) == ("https://a.example", None)
