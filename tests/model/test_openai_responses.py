"""OpenAI's Responses API: what is sent is what it takes, and what comes is read however it comes."""

import json
from collections.abc import Iterable
from itertools import pairwise
from typing import Any

import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrt import Agent, Msg, Toolkit
from agentrt.errors import ConfigError, ModelError, RateLimited, Refused, Rejected, Transient
from agentrt.formatter import format_openai_responses
from agentrt.message import (
    AssistantMsg,
    Base64Source,
    ContentBlock,
    DataBlock,
    HintBlock,
    ProviderBlock,
    SystemMsg,
    TextBlock,
    ThinkingBlock,
    ToolCallBlock,
    ToolResultBlock,
    URLSource,
    UserMsg,
)
from agentrt.model import OpenAIResponsesModel, chat_model
from agentrt.types import STRUCTURED_OUTPUT, STRUCTURED_OUTPUT_HINT, ChatResponse, ChatUsage, ToolChoice
from tests.loop.helpers import add
from tests.model.apis.rules import request_type
from tests.model.wire_openai import HELLO, KEY, URL, Answer, Server, error, events, json_of

PNG = Base64Source("aGk=", "image/png")
WEATHER: dict[str, Any] = {"name": "get_weather", "description": "", "parameters": {"type": "object", "properties": {}}}
TOOLS = [{"type": "function", "function": WEATHER}]
CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
ANSWER = {"type": "function", "function": {"name": STRUCTURED_OUTPUT, "description": "Answer.", "parameters": CITY}}
REASONING = {
    "type": "reasoning",
    "id": "rs_1",
    "summary": [{"type": "summary_text", "text": "First."}, {"type": "summary_text", "text": "Then."}],
    "encrypted_content": "gAAAA",
}
REFUSAL = {"type": "refusal", "refusal": "No."}
SEARCH = {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search", "query": "Rome"}}
OUTPUT: list[dict[str, Any]] = [
    REASONING,
    SEARCH,
    {
        "type": "message",
        "id": "msg_1",
        "role": "assistant",
        "status": "completed",
        "phase": "commentary",
        "content": [{"type": "output_text", "text": "Ich schaue — sofort. 🚀", "annotations": []}],
    },
    {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "add", "arguments": '{"a": 1, "b": 2}'},
    {"type": "function_call", "id": "fc_2", "call_id": "c2", "name": "add", "arguments": '{"a": 5, "b": 6}'},
]
USAGE = {
    "input_tokens": 20,
    "input_tokens_details": {"cached_tokens": 8, "cache_write_tokens": 4},
    "output_tokens": 5,
    "output_tokens_details": {"reasoning_tokens": 3},
    "total_tokens": 25,
}
WHOLE = {"id": "resp_1", "status": "completed", "output": OUTPUT, "usage": USAGE}
DONE = {"type": "response.completed", "response": WHOLE}


def model_of(*answers: Any, **options: Any) -> tuple[OpenAIResponsesModel, Server]:
    server = Server(*answers)
    settings: dict[str, Any] = {"api_key": KEY, "base_url": URL, **options}
    client = lambda: httpx2.AsyncClient(transport=server)  # noqa: E731
    return OpenAIResponsesModel("gpt-test", http_client=client, **settings), server


def deltas_of(index: int, item: dict[str, Any], size: int = 4) -> Iterable[dict[str, Any]]:
    """Yield the events between the beginning and the end of an item."""
    texts: list[tuple[str, dict[str, int], str]] = []
    match item["type"]:
        case "message":
            texts = [("output_text", {"content_index": n}, part["text"]) for n, part in enumerate(item["content"])]
        case "reasoning":
            parts = enumerate(item["summary"])
            texts = [("reasoning_summary_text", {"summary_index": n}, part["text"]) for n, part in parts]
        case "function_call":
            texts = [("function_call_arguments", {}, item["arguments"])]
    for kind, place, text in texts:
        for start in range(0, len(text), size):
            delta = text[start : start + size]
            yield {"type": f"response.{kind}.delta", "output_index": index, **place, "delta": delta}


def stream_events(output: list[dict[str, Any]] = OUTPUT, size: int = 4) -> list[dict[str, Any]]:
    sent: list[dict[str, Any]] = [{"type": "response.created", "response": {"id": "resp_1", "output": []}}]
    empty: dict[str, Any] = {"content": [], "arguments": "", "summary": [], "encrypted_content": None}
    for index, item in enumerate(output):
        begun = {name: empty.get(name, value) for name, value in item.items() if name != "phase"}
        sent.append({"type": "response.output_item.added", "output_index": index, "item": begun})
        sent += deltas_of(index, item, size)
        sent.append({"type": "response.output_item.done", "output_index": index, "item": item})
    return [*sent, {"type": "response.completed", "response": {**WHOLE, "output": output}}]


async def ask(model: Any, messages: list[Msg] | None = None, *rest: Any) -> list[ChatResponse]:
    try:
        result = await model(messages or HELLO, *rest)
        return [result] if isinstance(result, ChatResponse) else [piece async for piece in result]
    finally:
        await model.aclose()


def check_whole(answer: ChatResponse) -> None:
    thinking, search, text, phase, first, second = answer.content
    assert isinstance(thinking, ThinkingBlock)
    assert thinking.thinking == "First.\n\nThen."
    assert isinstance(search, ProviderBlock)
    assert json.loads(search.content) == SEARCH
    assert isinstance(text, TextBlock)
    assert text.text == "Ich schaue — sofort. 🚀"
    assert isinstance(phase, ProviderBlock)
    assert [(call.id, call.name, call.input) for call in (first, second) if isinstance(call, ToolCallBlock)] == [
        ("c1", "add", '{"a": 1, "b": 2}'),
        ("c2", "add", '{"a": 5, "b": 6}'),
    ]
    assert answer.usage == ChatUsage(20, 5, 8, 4)
    assert (answer.finished_reason, answer.id) == ("tool_calls", "resp_1")


@pytest.mark.parametrize("stream", [True, False])
async def test_an_answer_is_the_same_streamed_or_not(stream: bool) -> None:
    answer = Answer([events(*stream_events())]) if stream else json_of(WHOLE)
    model, server = model_of(answer, stream=stream)
    *pieces, whole = await ask(model, None, TOOLS)

    check_whole(whole)
    assert bool(pieces) is stream
    assert not server.open
    streamed = [block for piece in pieces for block in piece.content]
    assert {block.id for block in streamed} <= {block.id for block in whole.content}


@given(
    st.lists(st.integers(0, 5000), max_size=30),
    st.integers(1, 9),
    st.sets(st.sampled_from(["delta", "added", "created"])) | st.just({"delta", "added", "done"}),
    st.sampled_from([b"\n", b"\r\n", b"\r"]),
)
async def test_however_a_stream_is_cut_its_answer_is_the_same(
    cuts: list[int], size: int, missing: set[str], end: bytes
) -> None:
    # The end of an item repeats all of it, and the last event all items, so a server may leave out what came before.
    sent = [event for event in stream_events(size=size) if event["type"].rpartition(".")[2] not in missing]
    body = events(*sent).replace(b"\n", end)
    places = sorted({cut % len(body) for cut in cuts})
    chunks = [body[start:stop] for start, stop in zip([0, *places], [*places, len(body)], strict=True)]
    check_whole((await ask(model_of(Answer(chunks))[0]))[-1])


async def test_a_request_is_what_the_api_takes() -> None:
    reply: list[ContentBlock] = [
        ThinkingBlock("hm", signature='openai:{"id": "rs_1", "encrypted_content": "x"}'),
        TextBlock("I look."),
        ProviderBlock("openai", '{"type": "phase", "phase": "commentary"}'),
        ProviderBlock("openai", json.dumps(SEARCH)),
        ToolCallBlock("c1", "get_weather", "{}"),
        ToolResultBlock("c1", "get_weather", [TextBlock("sunny"), DataBlock(PNG)]),
        HintBlock("Hurry."),
        TextBlock("Sunny."),
    ]
    question: list[ContentBlock] = [
        TextBlock("See"),
        DataBlock(PNG),
        DataBlock(URLSource("https://a.example/b.pdf", "application/pdf")),
        DataBlock(Base64Source("aGk=", "audio/wav")),
    ]
    messages = [SystemMsg("system", "Be brief."), UserMsg("user", question), AssistantMsg("a", reply)]
    options: dict[str, Any] = {"max_tokens": 50, "reasoning_effort": "low", "reasoning_summary": "auto"}
    model, server = model_of(json_of(WHOLE), stream=False, verbosity="low", parallel_tool_calls=False, **options)
    await ask(model, messages, TOOLS, ToolChoice("get_weather"))

    (body,) = server.bodies
    request_type("responses").validate_python({name: value for name, value in body.items() if name != "stream"})
    assert server.requests[0].url.path == "/v1/responses"
    assert body == {
        "model": "gpt-test",
        "stream": False,
        "store": False,
        "include": ["reasoning.encrypted_content"],
        "max_output_tokens": 50,
        "parallel_tool_calls": False,
        "reasoning": {"effort": "low", "summary": "auto"},
        "text": {"verbosity": "low"},
        "tools": [{"type": "function", **WEATHER, "strict": False}],
        "tool_choice": {"type": "function", "name": "get_weather"},
        "input": [
            {"role": "system", "content": [{"type": "input_text", "text": "Be brief."}]},
            {
                "role": "user",
                "content": [
                    {"type": "input_text", "text": "See"},
                    {"type": "input_image", "detail": "auto", "image_url": "data:image/png;base64,aGk="},
                    {"type": "input_file", "file_url": "https://a.example/b.pdf"},
                    {"type": "input_text", "text": "(audio/wav, of a kind that this model's API does not take)"},
                ],
            },
            {
                "type": "reasoning",
                "id": "rs_1",
                "summary": [{"type": "summary_text", "text": "hm"}],
                "encrypted_content": "x",
            },
            {"role": "assistant", "content": "I look.", "phase": "commentary"},
            SEARCH,
            {"type": "function_call", "call_id": "c1", "name": "get_weather", "arguments": "{}"},
            {
                "type": "function_call_output",
                "call_id": "c1",
                "output": [
                    {"type": "input_text", "text": "sunny"},
                    {"type": "input_image", "detail": "auto", "image_url": "data:image/png;base64,aGk="},
                ],
            },
            {"role": "user", "content": [{"type": "input_text", "text": "Hurry."}]},
            {"role": "assistant", "content": "Sunny."},
        ],
    }


async def test_a_schema_is_a_strict_format_beside_the_verbosity():
    model, server = model_of(json_of(WHOLE), stream=False, verbosity="low", structured_output="native")
    await ask(model, [*HELLO, UserMsg("runtime", [HintBlock(STRUCTURED_OUTPUT_HINT)])], [ANSWER])

    (body,) = server.bodies
    request_type("responses").validate_python({name: value for name, value in body.items() if name != "stream"})
    schema = body["text"]["format"].pop("schema")
    assert (list(schema["properties"]), schema["additionalProperties"]) == (["city"], False)
    assert body["text"] == {"verbosity": "low", "format": {"type": "json_schema", "name": "answer", "strict": True}}


async def test_what_the_model_did_goes_back_to_it() -> None:
    answer = {"type": "message", "id": "m", "role": "assistant", "content": [{"type": "output_text", "text": "Done."}]}
    model, server = model_of(Answer([events(*stream_events())]), Answer([events(*stream_events([answer]))]))
    message = await Agent("tester", model=model, toolkit=Toolkit(tools=[add])).reply("go")
    await model.aclose()

    assert message.get_text_content() == "Done."
    reasoning, search, text, *calls = server.bodies[1]["input"][1:]
    summary = [{"type": "summary_text", "text": "First.\n\nThen."}]
    assert reasoning == {"type": "reasoning", "id": "rs_1", "summary": summary, "encrypted_content": "gAAAA"}
    assert search == SEARCH
    assert text == {"role": "assistant", "content": "Ich schaue — sofort. 🚀", "phase": "commentary"}
    assert [(item["type"], item["call_id"]) for item in calls] == [
        ("function_call", "c1"),
        ("function_call", "c2"),
        ("function_call_output", "c1"),
        ("function_call_output", "c2"),
    ]


# Of each provider, as its adapter packs them, and changed by others.
SIGNATURES = [
    None,
    "c2ln",
    "openai:{",
    "openai:[]",
    'openai:{"id": "rs_1"}',
    "gemini:{",
    'gemini:{"signature": "c2ln", "is_of_call": true}',
    'gemini:{"signature": "c2ln", "is_of_call": false}',
]
blocks = st.one_of(
    st.builds(TextBlock, st.text(max_size=3)),
    st.builds(ThinkingBlock, st.text(max_size=3), signature=st.sampled_from(SIGNATURES)),
    st.builds(HintBlock, st.text(max_size=3)),
    st.just(DataBlock(PNG)),
    st.builds(
        ProviderBlock,
        st.sampled_from(["openai", "anthropic"]),
        st.sampled_from(
            [
                json.dumps(SEARCH),
                "{",
                '{"type": "message"}',
                '{"type": "phase", "phase": "commentary"}',
                '{"type": "order", "places": [1, 0]}',
            ]
        ),
    ),
    st.builds(ToolCallBlock, st.sampled_from(["c1", "c2"]), st.sampled_from(["add", "ü", ""]), st.text(max_size=3)),
    st.builds(
        ToolResultBlock,
        st.sampled_from(["c1", "c2"]),
        st.just("add"),
        st.text(max_size=3) | st.just([DataBlock(PNG), TextBlock("x")]),
    ),
)
conversations = st.lists(
    st.builds(Msg, st.just("x"), st.lists(blocks, max_size=8), st.sampled_from(["user", "assistant", "system"])),
    max_size=4,
)


@given(conversations)
def test_every_conversation_is_valid_for_the_api(messages: list[Msg]) -> None:
    before = [msg.to_json() for msg in messages]
    items = format_openai_responses(messages)

    request_type("responses").validate_python({"model": "m", "input": items})
    due: list[str] = []
    for item, following in pairwise([*items, {}]):
        match item.get("type", item.get("role")):
            case "function_call":
                due.append(item["call_id"])
            case "function_call_output":
                assert due.pop(0) == item["call_id"]
            case "reasoning":
                kind = following.get("type", following.get("role"))
                assert kind in ("reasoning", "assistant", "function_call", "web_search_call")
            case "user" | "system":
                assert not due
    assert not due
    assert [msg.to_json() for msg in messages] == before


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    ("refusal", "left"),
    [
        (error(400, "The encrypted content gAAAA... could not be verified.", "invalid_encrypted_content"), []),
        (error(404, "Item with id 'rs_2' not found. Items are not persisted when `store` is set to false."), ["rs_3"]),
    ],
)
async def test_reasoning_that_is_refused_is_left_out_with_one_warning(
    refusal: Answer, left: list[str], stream: bool, caplog: pytest.LogCaptureFixture
) -> None:
    blocks: list[ContentBlock] = []
    for number in (1, 2, 3):
        signature = f'openai:{{"id": "rs_{number}", "encrypted_content": "x"}}'
        blocks += [ThinkingBlock("", signature=signature), TextBlock("A")]
    answer = Answer([events(*stream_events())]) if stream else json_of(WHOLE)
    model, server = model_of(refusal, answer, stream=stream)
    for _ in range(2):
        check_whole((await ask(model, [*HELLO, AssistantMsg("a", blocks)]))[-1])

    sent = [[item["id"] for item in body["input"] if item.get("type") == "reasoning"] for body in server.bodies]
    assert sent == [["rs_1", "rs_2", "rs_3"], left, left]
    (warning,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert warning.startswith("reasoning of earlier rounds is left out from now on: model 'gpt-test' at test.invalid")


async def test_a_model_without_reasoning_is_asked_for_none() -> None:
    refusal = error(400, "Encrypted content is not supported with this model.")
    model, server = model_of(refusal, json_of(WHOLE), stream=False)
    await model(HELLO)
    await ask(model)

    assert ["include" in body for body in server.bodies] == [True, False, False]


async def test_another_refusal_is_not_tried_again() -> None:
    messages = [*HELLO, AssistantMsg("a", [ThinkingBlock("", signature='openai:{"id": "rs_1"}'), TextBlock("A")])]
    model, server = model_of(error(400, "Unsupported parameter: 'reasoning.effort'"), stream=False)
    with pytest.raises(Rejected, match=r"reasoning\.effort"):
        await ask(model, messages)
    assert len(server.bodies) == 1


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    ("response", "kind", "words"),
    [
        ({"status": "failed", "error": {"code": "server_error", "message": "oops"}}, Transient, "oops"),
        ({"status": "failed", "error": {"code": "rate_limit_exceeded", "message": "slow"}}, RateLimited, "slow"),
        ({"status": "failed", "error": {"code": "invalid_prompt", "message": "bad"}}, Refused, "bad"),
        ({"status": "failed", "error": {"code": "bio_policy", "message": "no"}}, Refused, "no"),
        ({"status": "incomplete", "incomplete_details": {"reason": "content_filter"}}, Refused, "content filter"),
        ({"status": "cancelled"}, Transient, "'cancelled', not completed"),
        (
            {
                "status": "completed",
                "output": [{"type": "message", "content": [{"type": "refusal", "refusal": "No."}]}],
            },
            Refused,
            "declined to answer: No.",
        ),
    ],
)
async def test_an_answer_that_failed_is_an_error_of_the_tree(
    response: dict[str, Any], kind: type[ModelError], words: str, stream: bool
) -> None:
    response = {"id": "r", "output": [], **response}
    ended = {"type": f"response.{response['status']}", "response": response}
    model, server = model_of(Answer([events(ended)]) if stream else json_of(response), stream=stream)
    with pytest.raises(kind, match=words) as caught:
        await ask(model)
    assert type(caught.value) is kind
    assert not server.open


async def test_an_error_in_mid_stream_is_classified() -> None:
    sent = [*stream_events()[:8], {"type": "error", "code": "rate_limit_exceeded", "message": "slow down"}]
    with pytest.raises(RateLimited, match="slow down"):
        await ask(model_of(Answer([events(*sent)]))[0])


@pytest.mark.parametrize("end", [b"", b"data: [DONE]\n\n"])
async def test_a_stream_without_its_last_event_was_cut(end: bytes) -> None:
    with pytest.raises(Transient, match="cut"):
        await ask(model_of(Answer([events(*stream_events()[:-1]) + end]))[0])


async def test_an_answer_at_its_limit_says_so() -> None:
    response = {**WHOLE, "status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}
    (answer,) = await ask(model_of(json_of(response), stream=False)[0])
    assert answer.finished_reason == "length"


async def test_a_picture_of_the_model_is_data_and_goes_back_as_its_own() -> None:
    item = {"type": "image_generation_call", "id": "ig_1", "status": "completed", "result": "aGk=", "size": "1x1"}
    for output_format, media_type in (("webp", "image/webp"), ("svg", "image/svg+xml")):
        output = [{**item, "output_format": output_format}]
        (answer,) = await ask(model_of(json_of({**WHOLE, "output": output}), stream=False)[0])
        picture, _ = answer.content
        assert isinstance(picture, DataBlock)
        assert picture.source == Base64Source("aGk=", media_type)
        (sent,) = format_openai_responses([AssistantMsg("a", answer.content)])
        assert sent == {"type": "image_generation_call", "id": "ig_1", "status": "completed", "result": "aGk="}


async def test_a_piece_that_was_lost_is_not_made_up() -> None:
    sent = [event for event in stream_events() if event.get("delta") != "ue —"]
    with pytest.raises(Transient, match="a piece of its answer was lost"):
        await ask(model_of(Answer([events(*sent)]))[0])


async def test_items_in_other_places_at_the_end_come_once() -> None:
    message = {"id": "msg_1", "type": "message", "content": [{"type": "output_text", "text": "Hi"}]}
    done = {"type": "response.output_item.done", "output_index": 1, "item": message}
    end = {"type": "response.completed", "response": {"status": "completed", "output": [message]}}
    *_, answer = await ask(model_of(Answer([events(done, end)]))[0])
    assert [block.text for block in answer.content if isinstance(block, TextBlock)] == ["Hi"]


def done(index: int, item: dict[str, Any]) -> dict[str, Any]:
    return {"type": "response.output_item.done", "output_index": index, "item": item}


def completed(*output: dict[str, Any]) -> dict[str, Any]:
    return {"type": "response.completed", "response": {"status": "completed", "output": [*output]}}


FIRST, SECOND, THIRD = ({**SEARCH, "id": f"ws_{number}", "action": {"query": str(number)}} for number in (1, 2, 3))
SAID = {"type": "message", "id": "msg_1", "content": [{"type": "output_text", "text": "Hi"}]}
SAY = {"type": "response.output_text.delta", "output_index": 1, "content_index": 0, "delta": "Hi"}


def added(index: int, item: dict[str, Any]) -> dict[str, Any]:
    return {**done(index, item), "type": "response.output_item.added"}


@pytest.mark.parametrize(
    ("sent", "back"),
    [
        # The last event has items that were never streamed, and the others in other places.
        ([done(0, FIRST), SAY, done(1, SAID), completed(FIRST, SECOND, THIRD, SAID)], [FIRST, SECOND, THIRD, "Hi"]),
        # The ids are others in each event.
        (
            [done(0, {**FIRST, "id": "a"}), SAY, done(1, {**SAID, "id": "b"}), completed(FIRST, SECOND, SAID)],
            [{**FIRST, "id": "a"}, SECOND, "Hi"],
        ),
        # Items end in another order than that in which they began.
        (
            [added(0, REASONING), SAY, done(1, SAID), done(0, REASONING), completed(REASONING, SAID)],
            [{**REASONING, "summary": [{"type": "summary_text", "text": "First.\n\nThen."}]}, "Hi"],
        ),
        ([added(0, FIRST), done(1, SECOND), done(0, FIRST), done(2, SAID), completed()], [FIRST, SECOND, "Hi"]),
    ],
)
async def test_each_item_goes_back_once_and_in_its_place(sent: list[dict[str, Any]], back: list[Any]) -> None:
    model, server = model_of(Answer([events(*sent)]), Answer([events(*stream_events([SAID]))]))
    agent = Agent("tester", model=model)
    await agent.reply("go")
    await agent.reply("on")
    await model.aclose()

    items = server.bodies[1]["input"][1:-1]
    assert [item.get("content", item) for item in items] == back


@pytest.mark.parametrize("places", [[1, 1], [1, 2]])
async def test_parts_that_are_numbered_across_items_come_once(places: list[int]) -> None:
    def piece(kind: str, index: int, place: int, text: str) -> dict[str, Any]:
        return {"type": f"response.{kind}.delta", "output_index": index, "content_index": place, "delta": text}

    annotation = {"type": "url_citation", "url": "https://a.example", "start_index": 0, "end_index": 2}
    thought = {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]}
    message = {"type": "message", "id": "msg_1", "content": [{"type": "output_text", "text": "Hi you"}]}
    sent = [
        piece("reasoning_text", 0, 0, "hm"),
        {"type": "response.output_item.done", "output_index": 0, "item": thought},
        *(piece("output_text", 1, place, text) for place, text in zip(places, ["Hi", " you"], strict=True)),
        {
            "type": "response.output_text.annotation.added",
            "output_index": 1,
            "content_index": 1,
            "annotation": annotation,
        },
        {"type": "response.output_item.done", "output_index": 1, "item": message},
        {"type": "response.completed", "response": {"status": "completed", "output": [thought, message]}},
    ]
    *_, answer = await ask(model_of(Answer([events(*sent)]))[0])
    thinking, text, citations = answer.content
    assert isinstance(thinking, ThinkingBlock)
    assert isinstance(text, TextBlock)
    assert isinstance(citations, ProviderBlock)
    assert (thinking.thinking, text.text) == ("hm", "Hi you")
    assert "https://a.example" in citations.content


async def test_arguments_that_are_written_anew_stay_as_they_came() -> None:
    call = {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "add", "arguments": '{"a":1}'}
    sent = stream_events([call])
    sent[-2]["item"] = {**call, "arguments": '{"a": 1}'}
    (block,) = (await ask(model_of(Answer([events(*sent)]))[0]))[-1].content
    assert isinstance(block, ToolCallBlock)
    assert block.input == '{"a":1}'


@pytest.mark.parametrize(("begun", "is_whole"), [('{"a":1}', True), ('{"b', False)])
async def test_each_of_several_calls_is_whole_by_itself(begun: str, is_whole: bool) -> None:
    def event(kind: str, index: int, **fields: Any) -> dict[str, Any]:
        return {"type": f"response.{kind}", "output_index": index, **fields}

    call = {"type": "function_call", "name": "add", "arguments": '{"a": 1}'}
    items = [{**call, "id": f"fc_{index}", "call_id": f"c{index}"} for index in (0, 1)]
    sent = [event("output_item.added", index, item=item) for index, item in enumerate(items)]
    sent.append(event("function_call_arguments.delta", 0, delta=begun))
    sent.append(event("function_call_arguments.delta", 1, delta='{"a"' if is_whole else '{"a": 1}'))
    sent += [event("output_item.done", index, item=item) for index, item in enumerate(items)]
    model, _ = model_of(Answer([events(*sent, event("completed", 0, response={"status": "completed"}))]))
    if is_whole:
        *_, answer = await ask(model)
        assert [block.input for block in answer.content if isinstance(block, ToolCallBlock)] == [begun, '{"a": 1}']
    else:
        with pytest.raises(Transient, match="a piece of its answer was lost"):
            await ask(model)


async def test_reasoning_that_cannot_go_back_has_no_signature() -> None:
    # Unencrypted, and OpenAI keeps nothing.
    item = {**REASONING, "encrypted_content": None}
    for store, has_signature in ((False, False), (True, True)):
        (answer,) = await ask(model_of(json_of({**WHOLE, "output": [item]}), stream=False, store=store)[0])
        (thinking,) = answer.content
        assert isinstance(thinking, ThinkingBlock)
        assert bool(thinking.signature) is has_signature


@pytest.mark.parametrize("kept", ["{", "5", "[]", "{}", '{"id": 5}'])
def test_a_signature_without_the_id_of_reasoning_stays_out(kept: str) -> None:
    message = AssistantMsg("a", [ThinkingBlock("Hm.", signature=f"openai:{kept}"), TextBlock("Hello")])
    assert format_openai_responses([message]) == format_openai_responses([AssistantMsg("a", "Hello")])


async def test_open_reasoning_goes_back_as_it_came() -> None:
    item = {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]}
    (answer,) = await ask(model_of(json_of({**WHOLE, "output": [item]}), stream=False)[0])
    sent, _ = format_openai_responses([AssistantMsg("a", [*answer.content, TextBlock("A")])])
    assert sent == item


def test_the_id_of_a_call_stays_where_the_api_takes_it() -> None:
    called = [ToolCallBlock("c" * length, "add", "{}") for length in (64, 65)]
    first, second, *_ = format_openai_responses([AssistantMsg("a", called)])
    assert first["call_id"] == "c" * 64
    assert len(second["call_id"]) == 64


def test_a_search_of_xai_goes_back() -> None:
    search = {"type": "x_search_call", "id": "xs_1", "status": "completed"}
    assert format_openai_responses([AssistantMsg("a", [ProviderBlock("openai", json.dumps(search))])]) == [search]


async def test_tools_of_openai_are_offered_beside_those_of_the_agent() -> None:
    model, server = model_of(json_of(WHOLE), stream=False, server_tools=[{"type": "web_search"}])
    await model(HELLO, TOOLS)
    await ask(model, None, None, ToolChoice("auto"))

    assert [[tool["type"] for tool in body["tools"]] for body in server.bodies] == [
        ["function", "web_search"],
        ["web_search"],
    ]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"server_tools": "web_search"}, r"must be a list, as in \[\{\"type\": \"web_search\"\}\], not 'web_search'"),
        ({"server_tools": ["web_search"]}, "holds 'web_search': give tools that OpenAI runs"),
        ({"server_tools": [{"type": "function"}]}, "those of your own to the toolkit"),
        ({"server_tools": [{"type": "computer"}]}, "give tools that OpenAI runs"),
        ({"server_tools": [{"type": "mcp", "server_label": "x"}]}, '"require_approval": "never"'),
        ({"store": "yes"}, r"OpenAIResponsesModel\(store=\.\.\.\) must be a bool"),
        ({"temperature": "hot"}, "temperature=...\\) must be a number"),
        ({"temperature": float("nan")}, "temperature=...\\) must be a number, not nan"),
        ({"reasoning_effort": 5}, r"reasoning_effort=\.\.\.\) must be a str, not 5"),
        ({"reasoning_summary": True}, r"reasoning_summary=\.\.\.\) must be a str, not True"),
        ({"verbosity": ["low"]}, r"verbosity=\.\.\.\) must be a str"),
        ({"parallel_tool_calls": "no"}, r"parallel_tool_calls=\.\.\.\) must be a bool"),
        ({"stop": ["x"]}, "'stop'"),
        ({"background": True}, "no parameter .background."),
        ({"extra_body": {"background": True}}, "'background'.* leave it out"),
    ],
)
def test_an_option_that_cannot_be_is_refused_at_once(options: dict[str, Any], words: str) -> None:
    with pytest.raises((ConfigError, TypeError), match=words):
        OpenAIResponsesModel("gpt-test", api_key=KEY, **options)


def test_a_spec_names_the_api(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    model = chat_model("openai-responses:gpt-5-mini", store=True)
    assert isinstance(model, OpenAIResponsesModel)
    assert model.store
    monkeypatch.delenv("OPENAI_API_KEY")
    with pytest.raises(ConfigError, match="OPENAI_API_KEY"):
        chat_model("openai-responses:gpt-5-mini")
