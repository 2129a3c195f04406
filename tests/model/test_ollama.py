"""Ollama's own API: what is sent is what it takes, and what comes is whole or an error."""

import contextlib
import json
from typing import Any

import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrt import Agent, Msg
from agentrt.errors import ConfigError, Malformed, ModelError, Rejected, Transient
from agentrt.formatter import format_ollama
from agentrt.message import (
    AssistantMsg,
    Base64Source,
    DataBlock,
    SystemMsg,
    TextBlock,
    ThinkingBlock,
    ToolCallBlock,
    ToolResultBlock,
    URLSource,
    UserMsg,
)
from agentrt.model import OllamaChatModel
from agentrt.types import STRUCTURED_OUTPUT, ChatResponse, ChatUsage, ToolChoice
from tests.loop.helpers import add
from tests.model.apis.answers import TOOLS
from tests.model.test_against_aimock import get_weather
from tests.model.wire_openai import HELLO, Answer, Server, json_of
from tests.servers.aimock import Aimock

ANSWER = {"type": "function", "function": {"name": STRUCTURED_OUTPUT, "parameters": {"type": "object"}}}
CALLS = [
    {"function": {"name": "add", "arguments": {"a": 1, "b": "ü"}}},
    {"function": {"name": "look", "arguments": {}}},
]


def line(done: str | None = None, **message: Any) -> dict[str, Any]:
    counts = {"prompt_eval_count": 20, "eval_count": 5, "total_duration": 9} if done else {}
    end = {"done": done is not None, **({"done_reason": done} if done else {}), **counts}
    return {"model": "m", "created_at": "t", "message": {"role": "assistant", "content": "", **message}, **end}


STREAM = [
    line(thinking="Ich "),
    line(thinking="denke. 🚀"),
    line(content="Größe — "),
    line(content="🏛"),
    line(tool_calls=CALLS),
    line("stop"),
]
LINES = b"".join(json.dumps(each, ensure_ascii=False).encode() + b"\n" for each in STREAM)


def streamed(*chunks: Any) -> Answer:
    return Answer(chunks, headers={"content-type": "application/x-ndjson; charset=utf-8"})


def model_of(*answers: Any, **options: Any) -> tuple[OllamaChatModel, Server]:
    server = Server(*answers)
    return OllamaChatModel("m", http_client=lambda: httpx2.AsyncClient(transport=server), **options), server


async def ask(*answers: Any, **options: Any) -> list[ChatResponse]:
    model, server = model_of(*answers, **options)
    try:
        result = await model(HELLO, TOOLS)
        return [result] if isinstance(result, ChatResponse) else [piece async for piece in result]
    finally:
        await model.aclose()
        assert not server.open


async def answer(*answers: Any, **options: Any) -> ChatResponse:
    return (await ask(*answers, **options))[-1]


def body_of(messages: list[Msg] = HELLO, tools: Any = None, choice: ToolChoice | None = None, **options: Any) -> Any:
    """Return the body of a request, which the official client would send as well."""
    from ollama._types import ChatRequest

    model = OllamaChatModel("m", **options)
    body = model._native_body(messages, tools, choice) or model._body(messages, tools, choice)
    ChatRequest.model_validate(body)
    return body


def kinds_and_texts(response: ChatResponse) -> list[tuple[str, str]]:
    texts = {TextBlock: "text", ThinkingBlock: "thinking"}
    return [
        (block.name, block.input) if isinstance(block, ToolCallBlock) else ("", getattr(block, texts[type(block)]))  # type: ignore[index]
        for block in response.content
    ]


@pytest.mark.trio_too
async def test_an_answer_streams_in_pieces_that_are_the_whole() -> None:
    *pieces, whole = await ask(streamed(LINES))
    assert kinds_and_texts(whole) == [
        ("", "Ich denke. 🚀"),
        ("", "Größe — 🏛"),
        ("add", '{"a": 1, "b": "ü"}'),
        ("look", "{}"),
    ]
    assert len(pieces) == 5
    assert (whole.finished_reason, whole.usage) == ("tool_calls", ChatUsage(20, 5))
    ids = [block.id for block in whole.content if isinstance(block, ToolCallBlock)]
    assert len({*ids}) == 2


async def test_an_answer_that_is_not_streamed_is_the_same() -> None:
    body = line("length", content="Größe — 🏛", thinking="Ich denke. 🚀", tool_calls=CALLS)
    whole = await answer(json_of(body), stream=False)
    assert kinds_and_texts(whole) == kinds_and_texts(await answer(streamed(LINES)))
    assert whole.finished_reason == "length"
    # A server that does not stream although it was asked to.
    assert kinds_and_texts(await answer(json_of(body))) == kinds_and_texts(whole)


async def test_counts_that_are_left_out_are_estimated() -> None:
    done = {name: value for name, value in line("stop", content="Hi").items() if name != "prompt_eval_count"}
    usage = (await answer(streamed(json.dumps(done).encode()))).usage
    assert usage.estimated
    assert usage.input_tokens > 0


@given(st.lists(st.integers(0, len(LINES)), max_size=9), st.sampled_from([b"\n", b"\r\n", b"\n\n"]), st.booleans())
async def test_the_same_bytes_in_other_chunks_are_the_same_answer(cuts: list[int], end: bytes, ends: bool) -> None:
    body = LINES.replace(b"\n", end) if ends else LINES.replace(b"\n", end).rstrip()
    places = sorted({cut % len(body) for cut in cuts})
    chunks = [body[start:stop] for start, stop in zip([0, *places], [*places, len(body)], strict=True)]
    assert kinds_and_texts(await answer(streamed(*chunks))) == kinds_and_texts(await answer(streamed(LINES)))


@given(st.integers(0, len(LINES) - 2), st.booleans())
async def test_a_stream_that_is_cut_raises_transient(place: int, breaks: bool) -> None:
    with pytest.raises(Transient):
        await answer(streamed(LINES[:place], *([httpx2.ReadError("closed")] if breaks else [])))


@given(
    st.sampled_from(["message", "done_reason", "prompt_eval_count"]), st.sampled_from(["x", 7, [], [1], {"x": 1}, True])
)
async def test_an_odd_value_is_an_error_of_ours_or_read(name: str, value: Any) -> None:
    lines = [*STREAM[:-1], {**STREAM[-1], name: value}]
    with contextlib.suppress(ModelError):
        assert kinds_and_texts(await answer(streamed(*(json.dumps(each).encode() + b"\n" for each in lines))))


async def test_errors_are_told_apart() -> None:
    missing = json_of({"error": "model 'm' not found"}, 404)
    with pytest.raises(Rejected, match="model 'm' not found"):
        await answer(missing)
    with pytest.raises(ModelError, match="llama runner process has terminated"):
        await answer(streamed(LINES.splitlines(keepends=True)[0], b'{"error":"llama runner process has terminated"}\n'))
    with pytest.raises(Malformed, match="lead to an Ollama server"):
        await answer(json_of({"choices": []}), stream=False)


def test_a_request_says_how_the_model_is_to_run() -> None:
    body = body_of(
        tools=TOOLS,
        context_size=16_000,
        temperature=0.5,
        max_tokens=100,
        stop="END",
        seed=7,
        think="low",
        keep_alive="30m",
        options={"top_k": 20},
    )
    assert body["options"] == {
        "top_k": 20,
        "temperature": 0.5,
        "num_predict": 100,
        "seed": 7,
        "stop": ["END"],
        "num_ctx": 16_000,
    }
    assert (body["think"], body["keep_alive"], body["tools"], body["stream"]) == ("low", "30m", TOOLS, True)
    plain = body_of(think=False)
    assert plain["options"] == {"num_ctx": 32_768}
    assert (plain["think"], plain.keys() & {"tools", "keep_alive", "format"}) == (False, set())


def test_the_server_and_the_runtime_know_one_context_size() -> None:
    model = OllamaChatModel("m", max_tokens=1_000)
    assert (model.context_size, model.max_input_tokens) == (32_768, 31_768)


@pytest.mark.parametrize(
    ("name", "argument"), [("num_ctx", "context_size"), ("num_predict", "max_tokens"), ("seed", "seed")]
)
def test_an_option_with_an_argument_is_not_dropped_in_silence(name: str, argument: str) -> None:
    with pytest.raises(ConfigError, match=f"holds '{name}': write {argument}=4096"):
        OllamaChatModel("m", options={name: 4096})


def test_a_choice_is_made_by_what_is_offered() -> None:
    def names(mode: str) -> list[str]:
        return [tool["function"]["name"] for tool in body_of(tools=TOOLS, choice=ToolChoice(mode)).get("tools", ())]

    assert [names(mode) for mode in ("auto", "required", "look", "none")] == [["add", "look"]] * 2 + [["look"], []]


def test_a_schema_binds_the_answer_where_no_tool_is_offered() -> None:
    alone = body_of(tools=[ANSWER], choice=ToolChoice(STRUCTURED_OUTPUT))
    assert (alone["format"], "tools" in alone) == ({"type": "object"}, False)
    beside = body_of(tools=[*TOOLS, ANSWER])
    assert ("format" in beside, len(beside["tools"])) == (False, 3)
    last = body_of(tools=[*TOOLS, ANSWER], choice=ToolChoice(STRUCTURED_OUTPUT))
    assert (last["format"], "tools" in last) == ({"type": "object"}, False)
    assert "format" not in body_of(tools=[ANSWER], structured_output="tool")


@pytest.mark.parametrize(
    ("model", "host"), [("m:cloud", ""), ("m:20b-cloud", "http://localhost:11434"), ("m", "https://ollama.com")]
)
def test_the_cloud_which_ignores_schemas_is_offered_the_tool(
    model: str, host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OLLAMA_HOST", host)
    assert OllamaChatModel(model)._native_body(HELLO, [ANSWER], ToolChoice(STRUCTURED_OUTPUT)) is None


def test_a_conversation_has_the_shape_of_the_api() -> None:
    image = DataBlock(Base64Source("aGk=", "image/png"))
    sound = DataBlock(Base64Source("aGk=", "audio/wav"))
    messages = [
        SystemMsg("system", "Be brief."),
        UserMsg(
            "user", [TextBlock("What is it?"), image, DataBlock(URLSource("https://a.example/b.png", "image/png"))]
        ),
        AssistantMsg(
            "a",
            [
                ThinkingBlock("Hm."),
                ToolCallBlock("c1", "look", '{"q": 1}'),
                ToolResultBlock("c1", "look", [TextBlock("Seen."), image]),
                TextBlock("A cat."),
            ],
        ),
        UserMsg("user", [sound]),
    ]
    from ollama._types import ChatRequest

    formatted = format_ollama(messages[:3])
    ChatRequest.model_validate({"model": "m", "messages": formatted})
    assert formatted[1]["images"] == ["aGk="]
    assert "https://a.example/b.png, of a kind that this model's API does not take" in formatted[1]["content"]
    assert formatted[2] == {
        "role": "assistant",
        "content": "",
        "thinking": "Hm.",
        "tool_calls": [{"id": "c1", "function": {"name": "look", "arguments": {"q": 1}}}],
    }
    assert (formatted[3]["role"], formatted[3]["tool_name"], formatted[3]["tool_call_id"]) == ("tool", "look", "c1")
    assert (formatted[4]["role"], formatted[4]["images"]) == ("user", ["aGk="])
    assert formatted[5] == {"role": "assistant", "content": "A cat."}
    later = format_ollama(messages)
    assert "thinking" not in later[2]  # the user has spoken since
    assert "of a kind that this model's API does not take" in later[-1]["content"]


@pytest.mark.parametrize("stream", [True, False])
async def test_conversations_work_with_a_server_by_others(aimock: Aimock, stream: bool) -> None:
    model = OllamaChatModel(
        "m", base_url=f"{aimock.url}/v1/", stream=stream, extra_headers={"x-test-id": f"o-{stream}"}
    )
    async with Agent("tester", "You are tested.", model, tools=[get_weather, add]) as agent:
        assert (await agent.reply("plain")).get_text_content() == "Hello from the mock."
        assert (await agent.reply("weather in Rome")).get_text_content() == "It is sunny in Rome."
    first, *_, last = [entry["body"] for entry in aimock.requests(f"o-{stream}")]
    assert [tool["function"]["name"] for tool in first["tools"]] == ["get_weather", "add"]
    assert last["messages"][-1] == {"role": "tool", "content": "sunny in Rome"}


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"think": 3}, "think=...) must be True, False or a str"),
        ({"keep_alive": True}, "keep_alive=...) must be seconds or a str"),
        ({"options": [1]}, "options=...) must be a Mapping"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError) as caught:
        OllamaChatModel("m", **options)
    assert problem in str(caught.value)


def test_the_key_of_the_environment_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    none = OllamaChatModel("m").account
    monkeypatch.setenv("OLLAMA_API_KEY", "sk-canary")
    model = OllamaChatModel("m")
    assert model.account != none
    assert "canary" not in f"{model!r} {model.account}"
