"""Gemini's API: what is sent is what it takes, and what comes is read however it comes."""

import json
from itertools import pairwise
from typing import Any

import httpx2
import pytest
from hypothesis import given

from agentrt import Agent, Msg, Toolkit
from agentrt.embedding import GeminiEmbedding
from agentrt.errors import ConfigError, Malformed, MalformedCall, ModelError, RateLimited, Refused, Rejected, Transient
from agentrt.formatter import format_gemini
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
    ToolResultState,
    URLSource,
    UserMsg,
)
from agentrt.model import GeminiChatModel, chat_model
from agentrt.types import ChatResponse, ChatUsage, ToolChoice
from tests.loop.helpers import add
from tests.model.apis.rules import request_type
from tests.model.test_openai_responses import PNG, TOOLS, WEATHER, ask, conversations
from tests.model.wire_openai import HELLO, KEY, Answer, Server, events, json_of

URL = "http://test.invalid/v1beta"
CODE = {"executableCode": {"language": "PYTHON", "code": "1"}}
PARTS: list[dict[str, Any]] = [
    {"text": "Ich ", "thought": True},
    {"text": "denke.", "thought": True},
    CODE,
    {"text": "Ich schaue — "},
    {"text": "sofort. 🚀"},
    {"functionCall": {"name": "add", "args": {"a": 1, "b": 2}}, "thoughtSignature": "c2ln"},
    {"functionCall": {"name": "add", "args": {"a": 5, "b": 6}}},
]
USAGE = {
    "promptTokenCount": 18,
    "toolUsePromptTokenCount": 2,
    "candidatesTokenCount": 3,
    "thoughtsTokenCount": 2,
    "cachedContentTokenCount": 8,
}


def response(*parts: dict[str, Any], reason: str | None = None, **fields: Any) -> dict[str, Any]:
    candidate: dict[str, Any] = {"content": {"role": "model", "parts": list(parts)}, "index": 0}
    if reason:
        candidate["finishReason"] = reason
    return {"candidates": [candidate], "responseId": "r1", **fields}


WHOLE = response(*PARTS, reason="STOP", usageMetadata=USAGE)
STREAM = [*(response(part) for part in PARTS), response(reason="STOP", usageMetadata=USAGE)]


def model_of(*answers: Any, name: str = "gemini-3-flash", **options: Any) -> tuple[GeminiChatModel, Server]:
    server = Server(*answers)
    settings: dict[str, Any] = {"api_key": KEY, "base_url": URL, **options}
    return GeminiChatModel(name, http_client=lambda: httpx2.AsyncClient(transport=server), **settings), server


def check_whole(answer: ChatResponse) -> None:
    thinking, code, text, signature, first, second = answer.content
    assert isinstance(thinking, ThinkingBlock)
    assert thinking.thinking == "Ich denke."
    assert isinstance(code, ProviderBlock)
    assert json.loads(code.content) == CODE
    assert isinstance(text, TextBlock)
    assert text.text == "Ich schaue — sofort. 🚀"
    assert isinstance(signature, ThinkingBlock)
    assert isinstance(first, ToolCallBlock)
    assert isinstance(second, ToolCallBlock)
    assert [(call.name, json.loads(call.input)) for call in (first, second)] == [
        ("add", {"a": 1, "b": 2}),
        ("add", {"a": 5, "b": 6}),
    ]
    assert first.id != second.id
    assert (answer.usage, answer.finished_reason, answer.id) == (ChatUsage(20, 5, 8), "tool_calls", "r1")


@pytest.mark.parametrize("stream", [True, False])
async def test_an_answer_is_the_same_streamed_or_not(stream: bool) -> None:
    model, server = model_of(Answer([events(*STREAM)]) if stream else json_of(WHOLE), stream=stream)
    *pieces, whole = await ask(model, None, TOOLS)

    check_whole(whole)
    assert bool(pieces) is stream
    path, query = ("streamGenerateContent", b"alt=sse") if stream else ("generateContent", b"")
    (request,) = server.requests
    assert (request.url.path, request.url.query) == (f"/v1beta/models/gemini-3-flash:{path}", query)
    assert request.headers["x-goog-api-key"] == KEY
    assert not server.open


async def test_a_model_is_found_by_the_name_that_google_lists() -> None:
    model, server = model_of(Answer([events(*STREAM)]), name="models/gemini-3.5-flash")
    await ask(model, None, TOOLS)
    (request,) = server.requests
    assert request.url.path == "/v1beta/models/gemini-3.5-flash:streamGenerateContent"
    assert model.capabilities.context_size == 1_048_576
    assert GeminiEmbedding("models/gemini-embedding-001", api_key=KEY).model == "gemini-embedding-001"


async def test_a_request_is_what_the_api_takes() -> None:
    from google.genai.types import GenerationConfig

    reply: list[ContentBlock] = [
        ThinkingBlock("hm", signature='gemini:{"signature": "c2ln", "is_of_call": true}'),
        ToolCallBlock("c1", "get_weather", "{}"),
        ToolCallBlock("c2", "get_weather", "half"),
        ToolResultBlock("c2", "get_weather", "no", ToolResultState.ERROR),
        ToolResultBlock("c1", "get_weather", [TextBlock("sunny"), DataBlock(PNG)]),
        HintBlock("Hurry."),
        TextBlock("Sunny."),
        ThinkingBlock("", signature='gemini:{"signature": "ZW5k", "is_of_call": false}'),
    ]
    question: list[ContentBlock] = [
        TextBlock("See"),
        DataBlock(URLSource("https://a.example/b.mp4", "video/mp4")),
        DataBlock(Base64Source("aGk=", "audio/wav")),
        DataBlock(Base64Source("aGk=", "model/obj")),
    ]
    messages = [SystemMsg("system", "Be brief."), UserMsg("user", question), AssistantMsg("a", reply)]
    options: dict[str, Any] = {"max_tokens": 50, "stop": "END", "thinking": {"thinkingLevel": "low"}}
    model, server = model_of(json_of(WHOLE), stream=False, server_tools=[{"googleSearch": {}}], **options)
    search = [{"type": "function", "function": {**WEATHER, "parameters": {"type": "object", "properties": {"a": {}}}}}]
    await ask(model, messages, search, ToolChoice("get_weather"))

    (body,) = server.bodies
    request_type("gemini").validate_python(body["contents"])
    GenerationConfig.model_validate(body["generationConfig"])
    assert body == {
        "systemInstruction": {"parts": [{"text": "Be brief."}]},
        "generationConfig": {
            "maxOutputTokens": 50,
            "stopSequences": ["END"],
            "thinkingConfig": {"thinkingLevel": "low"},
        },
        "tools": [
            {
                "functionDeclarations": [
                    {
                        "name": "get_weather",
                        "description": "",
                        "parametersJsonSchema": {"type": "object", "properties": {"a": {}}},
                    }
                ]
            },
            {"googleSearch": {}},
        ],
        "toolConfig": {
            "functionCallingConfig": {"mode": "ANY", "allowedFunctionNames": ["get_weather"]},
            "includeServerSideToolInvocations": True,
        },
        "contents": [
            {
                "role": "user",
                "parts": [
                    {"text": "See"},
                    {"fileData": {"mimeType": "video/mp4", "fileUri": "https://a.example/b.mp4"}},
                    {"inlineData": {"mimeType": "audio/wav", "data": "aGk="}},
                    {"text": "(model/obj, of a kind that this model's API does not take)"},
                ],
            },
            {
                "role": "model",
                "parts": [
                    {"text": "hm", "thought": True},
                    {"functionCall": {"id": "c1", "name": "get_weather", "args": {}}, "thoughtSignature": "c2ln"},
                    {"functionCall": {"id": "c2", "name": "get_weather", "args": {"invalid_arguments": "half"}}},
                ],
            },
            {
                "role": "user",
                "parts": [
                    {
                        "functionResponse": {
                            "id": "c1",
                            "name": "get_weather",
                            "response": {"output": "sunny\n(a file: after the results)"},
                        }
                    },
                    {"functionResponse": {"id": "c2", "name": "get_weather", "response": {"error": "no"}}},
                    {"text": "From the result of get_weather, call c1:"},
                    {"inlineData": {"mimeType": "image/png", "data": "aGk="}},
                    {"text": "Hurry."},
                ],
            },
            {"role": "model", "parts": [{"text": "Sunny."}, {"text": "", "thoughtSignature": "ZW5k"}]},
        ],
    }


@pytest.mark.parametrize(
    ("name", "url", "choice", "config"),
    [
        ("gemini-3-flash", URL, None, {"includeServerSideToolInvocations": True}),
        (
            "gemini-3-flash",
            URL,
            ToolChoice("auto"),
            {"functionCallingConfig": {"mode": "VALIDATED"}, "includeServerSideToolInvocations": True},
        ),
        ("gemini-2.5-flash", URL, None, None),
        ("gemini-3-flash", "https://aiplatform.googleapis.com/v1/publishers/google", None, None),
        ("gemini-3-flash", "https://us-east5-aiplatform.googleapis.com/v1/x", None, None),
    ],
)
async def test_tools_of_both_kinds_are_asked_for_as_the_api_wants(
    name: str, url: str, choice: ToolChoice | None, config: dict[str, Any] | None
) -> None:
    tools = [{"googleSearch": {}}]
    model, server = model_of(json_of(WHOLE), name=name, base_url=url, stream=False, server_tools=tools)
    await model(HELLO, TOOLS, choice)
    await ask(model)
    assert [body.get("toolConfig") for body in server.bodies] == [config, None]


async def test_signatures_go_back_with_their_calls() -> None:
    model, server = model_of(Answer([events(*STREAM)]), Answer([events(response({"text": "Done."}, reason="STOP"))]))
    message = await Agent("tester", model=model, toolkit=Toolkit(tools=[add])).reply("go")
    await model.aclose()

    assert message.get_text_content() == "Done."
    _, said, results = server.bodies[1]["contents"]
    code, text, first, second = said["parts"]
    assert (code, text) == (CODE, {"text": "Ich schaue — sofort. 🚀"})
    assert (first["thoughtSignature"], "thoughtSignature" in second) == ("c2ln", False)
    assert [part["functionResponse"]["response"] for part in results["parts"]] == [{"output": "3"}, {"output": "11"}]


@pytest.mark.parametrize(
    ("name", "mark"), [("gemini-2.5-flash", None), ("gemini-3-pro", "skip_thought_signature_validator")]
)
async def test_calls_of_other_models_are_marked_where_it_is_wanted(name: str, mark: str | None) -> None:
    calls: list[ContentBlock] = [ToolCallBlock("c1", "add", "{}"), ToolCallBlock("c2", "add", "{}")]
    model, server = model_of(json_of(WHOLE), name=name, stream=False)
    await ask(model, [*HELLO, AssistantMsg("a", [ThinkingBlock("hm", signature="of another"), *calls])])

    parts = server.bodies[0]["contents"][1]["parts"]
    assert [part.get("thoughtSignature") for part in parts] == [mark, None]


@pytest.mark.parametrize(("written", "args"), [("1e999", {"invalid_arguments": '{"a": 1e999}'}), ("1e99", {"a": 1e99})])
def test_numbers_that_json_cannot_hold_are_not_sent(written: str, args: dict[str, Any]) -> None:
    own = ProviderBlock("gemini", f'{{"toolCall": {{"args": {written}}}}}')
    blocks: list[ContentBlock] = [
        ToolCallBlock("c1", "add", f'{{"a": {written}}}'),
        ToolCallBlock("c2", "add", " "),
        own,
    ]
    call, empty, *parts = format_gemini([*HELLO, AssistantMsg("a", blocks)])["contents"][1]["parts"]
    assert (call["functionCall"]["args"], empty["functionCall"]["args"]) == (args, {})
    assert len(parts) == (1 if args == {"a": 1e99} else 0)


@given(conversations)
def test_every_conversation_is_valid_for_the_api(messages: list[Msg]) -> None:
    before = [msg.to_json() for msg in messages]
    contents = format_gemini(messages, signs_calls=True)["contents"]

    request_type("gemini").validate_python(contents)
    assert [turn["role"] for turn in contents] == [("user", "model")[place % 2] for place in range(len(contents))]
    for turn, following in pairwise([*contents, {"parts": []}]):
        assert turn["parts"]
        calls = [part["functionCall"]["id"] for part in turn["parts"] if "functionCall" in part]
        responses = [part["functionResponse"]["id"] for part in following["parts"] if "functionResponse" in part]
        assert calls == responses
        assert ["functionResponse" in part for part in following["parts"][: len(calls)]] == [True] * len(calls)
    assert [msg.to_json() for msg in messages] == before


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    ("answer", "kind", "words"),
    [
        ({"promptFeedback": {"blockReason": "SAFETY"}}, Refused, r"refused the request \(blockReason 'SAFETY'\)"),
        (response({"text": "I"}, reason="SAFETY"), Refused, "filter stopped the answer"),
        (
            {"promptFeedback": {"blockReason": "OTHER", "blockReasonMessage": "Not this."}},
            Refused,
            r"\(blockReason 'OTHER'\): Not this\.",
        ),
        (response(reason="MALFORMED_FUNCTION_CALL"), MalformedCall, "in a form that cannot be read"),
        (response(reason="MISSING_THOUGHT_SIGNATURE"), Rejected, "did not take the request"),
        (response({"functionCall": {"name": "add", "partialArgs": []}}), Malformed, "streamFunctionCallArguments"),
        (response({"text": "I"}), Transient, "cut"),
    ],
)
async def test_an_answer_that_failed_is_an_error_of_the_tree(
    answer: dict[str, Any], kind: type[ModelError], words: str, stream: bool
) -> None:
    model, server = model_of(Answer([events(answer)]) if stream else json_of(answer), stream=stream)
    with pytest.raises(kind, match=words) as caught:
        await ask(model)
    assert type(caught.value) is kind
    assert not server.open


@pytest.mark.parametrize("stream", [True, False])
async def test_a_quota_that_comes_back_says_when(stream: bool) -> None:
    retry = {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "34.07s"}
    message = "You exceeded your current quota, please check your plan and billing details."
    failure = {"code": 429, "message": message, "status": "RESOURCE_EXHAUSTED", "details": [retry]}
    for details, kind in (([retry], RateLimited), ([], Rejected)):
        model, _ = model_of(json_of({"error": {**failure, "details": details}}, 429), stream=stream)
        with pytest.raises(kind) as caught:
            await ask(model)
        assert caught.value.retry_after == (34.07 if details else None)
        assert KEY not in str(caught.value)


async def test_structured_output_is_bound_to_its_schema() -> None:
    schema = {"type": "object", "properties": {"days": {"type": "integer"}}, "required": ["days"]}
    model, server = model_of(json_of(response({"text": '{"days": 3}'}, reason="STOP")), stream=False, temperature=0)
    model.structured_output = "native"
    message = await Agent("tester", model=model).reply("How long?", structured_schema=schema)
    await model.aclose()

    assert message.structured_output == {"days": 3}
    config = server.bodies[0]["generationConfig"]
    assert (config["temperature"], config["responseMimeType"]) == (0, "application/json")
    assert config["responseJsonSchema"]["properties"] == {"days": {"type": "integer"}}


async def test_files_of_the_model_go_back_when_they_are_signed() -> None:
    picture = {"inlineData": {"mimeType": "image/png", "data": "aGk="}}
    video = {"fileData": {"mimeType": "video/mp4", "fileUri": "https://a.example/b.mp4"}}
    parts = [{**picture, "thought": True}, {**picture, "thoughtSignature": "c2ln"}, video]
    (answer,) = await ask(model_of(json_of(response(*parts, reason="STOP")), stream=False)[0])

    files = [block.source for block in answer.content if isinstance(block, DataBlock)]
    assert files == [PNG, URLSource("https://a.example/b.mp4", "video/mp4")]
    _, turn = format_gemini([AssistantMsg("a", answer.content)])["contents"]
    signed, note = turn["parts"]
    assert signed == {**picture, "thoughtSignature": "c2ln"}
    assert "made by you earlier" in note["text"]


async def test_only_the_first_candidate_counts() -> None:
    other = {"index": 1, "content": {"parts": [{"text": "B"}]}, "finishReason": "SAFETY"}
    body = response({"text": "A"}, reason="STOP")
    body["candidates"].insert(0, other)
    (answer,) = await ask(model_of(json_of(body), stream=False)[0])
    assert [block.text for block in answer.content if isinstance(block, TextBlock)] == ["A"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"server_tools": {"googleSearch": {}}}, r'must be a list, as in \[{"googleSearch": {}}\]'),
        ({"server_tools": ["googleSearch"]}, "holds 'googleSearch': give tools that Google runs"),
        ({"thinking": "low"}, r"thinking=\.\.\.\) must be a Mapping"),
        ({"reasoning_effort": "low"}, "reasoning_effort"),
        ({"stream": "no"}, r"stream=\.\.\.\) must be True or False, not 'no'"),
        ({"extra_headers": {"x-team": 7}}, r"extra_headers=\.\.\.\) must have a str for each name and value"),
    ],
)
def test_an_option_that_cannot_be_is_refused_at_once(options: dict[str, Any], words: str) -> None:
    with pytest.raises((ConfigError, TypeError), match=words):
        GeminiChatModel("gemini-3-flash", api_key=KEY, **options)


def test_a_key_is_found_under_both_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GEMINI_API_KEY", raising=False)
    monkeypatch.delenv("GOOGLE_API_KEY", raising=False)
    with pytest.raises(ConfigError, match="set GEMINI_API_KEY"):
        chat_model("gemini:gemini-3-flash")
    monkeypatch.setenv("GOOGLE_API_KEY", KEY)
    assert isinstance(chat_model("gemini:gemini-3-flash"), GeminiChatModel)
