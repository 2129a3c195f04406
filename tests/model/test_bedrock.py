"""Bedrock's Converse API: what is sent is what it takes, and what comes is read however it comes."""

from typing import Any

import httpx2
import pytest

from agentrt.errors import (
    ConfigError,
    ContextOverflow,
    Malformed,
    MalformedCall,
    ModelError,
    RateLimited,
    Refused,
    Rejected,
    Transient,
)
from agentrt.message import (
    AssistantMsg,
    Base64Source,
    DataBlock,
    HintBlock,
    Msg,
    SystemMsg,
    TextBlock,
    ThinkingBlock,
    ToolCallBlock,
    ToolResultBlock,
    URLSource,
    UserMsg,
)
from agentrt.model import BedrockChatModel, ClaudeRules, chat_model
from agentrt.types import STRUCTURED_OUTPUT, ChatResponse, ChatUsage, ToolChoice
from tests.model import wire_bedrock as wire
from tests.model.apis.answers import TOOLS
from tests.model.wire_openai import HELLO, KEY, Answer, Server, json_of

CLAUDE = "us.anthropic.claude-sonnet-4-5-20250929-v1:0"
NOVA = "us.amazon.nova-pro-v1:0"
POINT = {"cachePoint": {"type": "default"}}
THOUGHTS = wire.message(
    wire.thinking(0, "c2ln", "Ich ", "denke."),
    wire.text(1, "Ich schaue — ", "sofort. 🚀"),
    wire.tool_use(2, "t1", "add", '{"a": 1, ', '"b": 2}'),
    wire.tool_use(3, "t2", "look"),
    reason="tool_use",
    cacheReadInputTokens=7,
    cacheWriteInputTokens=3,
)
WHOLE = {
    "output": {
        "message": {
            "role": "assistant",
            "content": [
                {"reasoningContent": {"reasoningText": {"text": "Ich denke.", "signature": "c2ln"}}},
                {"text": "Ich schaue — sofort. 🚀"},
                {"toolUse": {"toolUseId": "t1", "name": "add", "input": {"a": 1, "b": 2}}},
                {"toolUse": {"toolUseId": "t2", "name": "look", "input": {}}},
            ],
        }
    },
    "stopReason": "tool_use",
    "usage": THOUGHTS[-1]["metadata"]["usage"],
}


def model_of(*answers: Any, model: str = CLAUDE, **options: Any) -> tuple[BedrockChatModel, Server]:
    server = Server(*answers)
    settings: dict[str, Any] = {"api_key": KEY, "region": "eu-west-1", **options}
    return BedrockChatModel(model, http_client=lambda: httpx2.AsyncClient(transport=server), **settings), server


async def answer_to(*answers: Any, **options: Any) -> ChatResponse:
    model, server = model_of(*answers, **options)
    result = await model(HELLO, TOOLS)
    responses = [result] if isinstance(result, ChatResponse) else [each async for each in result]
    await model.aclose()
    assert not server.open
    return responses[-1]


async def error_of(*answers: Any, **options: Any) -> ModelError:
    with pytest.raises(ModelError) as caught:
        await answer_to(*answers, **options)
    return caught.value


def body_of(messages: list[Msg], tools: Any = None, choice: ToolChoice | None = None, **options: Any) -> dict[str, Any]:
    model, _ = model_of(None, **options)
    body = model._body(messages, tools, choice)
    wire.check_shape(body)
    return body


@pytest.mark.parametrize("stream", [True, False])
async def test_an_answer_is_the_same_streamed_and_whole(stream: bool) -> None:
    sent = wire.stream_of(wire.events_frames(*THOUGHTS)) if stream else json_of(WHOLE)
    answer = await answer_to(sent, stream=stream)
    thinking, text, add, look = answer.content

    assert isinstance(thinking, ThinkingBlock)
    assert (thinking.thinking, thinking.signature) == ("Ich denke.", "c2ln")
    assert isinstance(text, TextBlock)
    assert text.text == "Ich schaue — sofort. 🚀"
    assert isinstance(add, ToolCallBlock)
    assert isinstance(look, ToolCallBlock)
    assert (add.id, add.name, add.input.replace(" ", "")) == ("t1", "add", '{"a":1,"b":2}')
    assert (look.id, look.name) == ("t2", "look")
    assert (answer.finished_reason, answer.usage) == ("tool_calls", ChatUsage(30, 5, 7, 3))


async def test_the_request_goes_to_the_region_with_the_key() -> None:
    arn = "arn:aws:bedrock:eu-west-1:123456789012:inference-profile/eu.amazon.nova-pro-v1:0"
    model, server = model_of(wire.stream_of(wire.events_frames(*wire.message(wire.text(0, "A")))), model=arn)
    async for _ in await model(HELLO):
        pass
    await model.aclose()
    (request,) = server.requests

    path = arn.replace(":", "%3A").replace("/", "%2F")
    assert str(request.url) == f"https://bedrock-runtime.eu-west-1.amazonaws.com/model/{path}/converse-stream"
    assert request.headers["authorization"] == f"Bearer {KEY}"
    assert KEY not in f"{model!r} {vars(model)}"


async def test_thinking_that_was_hidden_goes_back_unchanged() -> None:
    # Each delta is base64 by itself.
    hidden = wire.block(0, *({"reasoningContent": {"redactedContent": piece}} for piece in ("c2U=", "YWw=")))
    events = wire.message(hidden, wire.thinking(1, "c2ln", "Hm."), wire.text(2, "A"))
    answer = await answer_to(wire.stream_of(wire.events_frames(*events)))
    _, turn = body_of([*HELLO, AssistantMsg("a", answer.content)])["messages"]

    assert turn["content"] == [
        {"reasoningContent": {"redactedContent": "c2VhbA=="}},
        {"reasoningContent": {"reasoningText": {"text": "Hm.", "signature": "c2ln"}}},
        {"text": "A"},
        POINT,
    ]
    _, turn = body_of([*HELLO, AssistantMsg("a", answer.content)], model=NOVA, cache="off")["messages"]
    assert turn["content"] == [{"text": "A"}], "another model has no use for the thoughts of Claude"
    broken = wire.block(0, *({"reasoningContent": {"redactedContent": piece}} for piece in ("c2U=", "?")))
    with pytest.raises(Malformed, match="thinking that is not base64"):
        await answer_to(wire.stream_of(wire.events_frames(*wire.message(broken))))


async def test_unknown_events_and_tools_of_aws_are_passed_over() -> None:
    start, *rest = THOUGHTS
    search = wire.block(
        7,
        {"toolUse": {"input": '{"q": 1}'}},
        start={"toolUse": {"toolUseId": "s", "name": "x", "type": "server_tool_use"}},
    )
    result = wire.block(8, {"toolResult": [{"text": "x"}]}, start={"toolResult": {"toolUseId": "s"}})
    events = [start, {"somethingNew": {"a": 1}}, *search, *result, *rest]
    answer = await answer_to(wire.stream_of(wire.events_frames(*events)))
    assert [block.type for block in answer.content] == ["thinking", "text", "tool_call", "tool_call"]


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    ("reason", "by"), [("guardrail_intervened", "its guardrail"), ("content_filtered", "its filter")]
)
async def test_an_answer_that_was_stopped_is_refused(reason: str, by: str, stream: bool) -> None:
    events = wire.message(wire.text(0, "Not ", "this."), reason=reason)
    whole = {"output": {"message": {"content": [{"text": "Not this."}]}}, "stopReason": reason, "usage": {}}
    sent = wire.stream_of(wire.events_frames(*events)) if stream else json_of(whole)
    error = await error_of(sent, stream=stream)
    assert isinstance(error, Refused)
    assert f"{by} stopped the answer (stopReason {reason!r}): Not this." in str(error)


async def test_a_guardrail_that_says_why_is_quoted() -> None:
    *events, end = wire.message(wire.text(0, "Sorry."), reason="guardrail_intervened")
    end["metadata"]["trace"] = {"guardrail": {"actionReason": "Guardrail blocked: topic 'arms'."}}
    error = await error_of(wire.stream_of(wire.events_frames(*events, end)))
    assert "topic 'arms'" in str(error)


async def test_a_call_that_cannot_be_read_may_be_asked_for_again() -> None:
    for reason in ("malformed_tool_use", "malformed_model_output"):
        error = await error_of(wire.stream_of(wire.events_frames(*wire.message(reason=reason))))
        assert isinstance(error, MalformedCall)


ERRORS = [
    ("throttlingException", "Too many tokens, please wait before trying again.", RateLimited),
    ("internalServerException", "Oh.", Transient),
    ("serviceUnavailableException", "Oh.", Transient),
    ("modelStreamErrorException", "Retry your request.", Transient),
    ("validationException", "Input is too long for requested model.", ContextOverflow),
    ("validationException", "The value is wrong.", Rejected),
]


@pytest.mark.parametrize(("name", "words", "cls"), ERRORS)
async def test_an_exception_in_mid_stream_is_an_error_of_the_tree(name: str, words: str, cls: type[ModelError]) -> None:
    begin = wire.events_frames(*THOUGHTS[:4])
    model, server = model_of(wire.stream_of(begin + wire.error_frame(name, f"{words} {KEY}")))
    pieces: list[Any] = []
    with pytest.raises(ModelError, match=words) as caught:
        async for response in await model(HELLO):
            pieces += response.content
    await model.aclose()

    assert type(caught.value) is cls
    assert KEY not in str(caught.value)
    assert pieces, "what came before it in the same chunk is seen"
    assert not server.open


@pytest.mark.parametrize(
    ("status", "words", "cls"),
    [
        (429, "Too many requests, please wait before trying again.", RateLimited),
        (400, "Input is too long for requested model.", ContextOverflow),
        (403, "You don't have access to the model with the specified model ID.", Rejected),
        (404, "Could not resolve the foundation model.", Rejected),
        (408, "Model has timed out in processing the request.", Transient),
        (424, "The model returned an error. Try your request again.", Transient),
        (503, "Bedrock is unable to process your request.", Transient),
    ],
)
async def test_a_status_is_an_error_of_the_tree(status: int, words: str, cls: type[ModelError]) -> None:
    headers = {"x-amzn-errortype": "SomeException:http://internal.amazon.com/", "retry-after": "7"}
    error = await error_of(json_of({"message": words}, status, **headers))
    assert type(error) is cls
    assert (error.status_code, error.retry_after) == (status, 7)
    assert words in str(error)
    assert f": {words}" in str(await error_of(json_of({"Message": words}, status))), "as AWS's front writes it"


async def test_bad_frames_end_an_answer_after_its_pieces() -> None:
    begin = wire.events_frames(*THOUGHTS[:4])
    damaged = bytearray(wire.event_frame("contentBlockStop", {"contentBlockIndex": 0}))
    damaged[-1] ^= 1
    giant = wire.pack(">II", 2**30, 10)
    for bad in (bytes(damaged), giant + wire.pack(">I", wire.crc32(giant))):
        model, server = model_of(wire.stream_of(begin + bad))
        pieces: list[Any] = []
        with pytest.raises(Malformed, match="frame"):
            async for response in await model(HELLO):
                pieces += response.content
        await model.aclose()
        assert pieces
        assert not server.open


async def test_an_answer_in_the_place_of_a_stream_is_taken_or_named() -> None:
    whole = await answer_to(json_of(WHOLE))
    assert whole.finished_reason == "tool_calls"
    other = await error_of(Answer([b"<html>Welcome!</html>"], headers={"content-type": "text/html"}))
    assert "Welcome" in str(other)


TALK = [
    SystemMsg("system", "Be brief."),
    UserMsg("user", "Add."),
    AssistantMsg("a", [ToolCallBlock("c1", "add", '{"a": 1}'), ToolResultBlock("c1", "add", "3"), HintBlock("Hurry.")]),
    UserMsg("user", [HintBlock("It is noon.")]),
]


def test_cache_points_stand_behind_what_is_repeated() -> None:
    body = body_of(TALK, TOOLS)
    assert body["system"] == [{"text": "Be brief."}, POINT]
    assert body["toolConfig"]["tools"][-1] == POINT
    *_, last = body["messages"]
    assert [*map(list, last["content"])] == [["toolResult"], ["text"], ["cachePoint"], ["text"]]
    nova = body_of(TALK, TOOLS, model=NOVA)
    assert nova["system"][-1] == POINT
    assert POINT not in nova["toolConfig"]["tools"], "which takes none there"
    for plain in (body_of(TALK, TOOLS, cache="off"), body_of(TALK, TOOLS, model="meta.llama3-3-70b-instruct-v1:0")):
        assert "cachePoint" not in str(plain)


@pytest.mark.parametrize(
    ("model", "mode", "names", "choice"),
    [
        (CLAUDE, "auto", ["add", "look"], None),
        (CLAUDE, "required", ["add", "look"], {"any": {}}),
        (NOVA, "add", ["add", "look"], {"tool": {"name": "add"}}),
        ("mistral.mistral-large-2407-v1:0", "look", ["look"], {"any": {}}),
        ("meta.llama3-3-70b-instruct-v1:0", "required", ["add", "look"], None),
        (CLAUDE, "none", [], None),
    ],
)
def test_a_tool_choice_is_what_the_model_takes(model: str, mode: Any, names: list[str], choice: Any) -> None:
    config = body_of(HELLO, TOOLS, ToolChoice(mode), model=model, cache="off").get("toolConfig", {"tools": []})
    assert [tool["toolSpec"]["name"] for tool in config["tools"]] == names
    assert config.get("toolChoice") == choice


def test_old_calls_are_declared_when_no_tools_are_offered() -> None:
    config = body_of(TALK, cache="off")["toolConfig"]
    assert [tool["toolSpec"]["name"] for tool in config["tools"]] == ["add"]


def test_thinking_is_left_out_where_claude_would_refuse_it() -> None:
    options = {"thinking": {"type": "enabled", "budget_tokens": 2000}}
    sent = {"additionalModelRequestFields": {"thinking": options["thinking"]}}
    assert sent.items() <= body_of(HELLO, TOOLS, **options).items()
    assert "additionalModelRequestFields" not in body_of(HELLO, TOOLS, ToolChoice("required"), **options)
    assert "additionalModelRequestFields" not in body_of(TALK[:-1], TOOLS, **options), "begun without a thought"
    nova = body_of(HELLO, model=NOVA, thinking={"type": "enabled", "maxReasoningEffort": "low"})
    assert nova["additionalModelRequestFields"]["reasoningConfig"]["maxReasoningEffort"] == "low"


def test_settings_go_where_the_api_has_them() -> None:
    guardrail = {"guardrailIdentifier": "abc", "guardrailVersion": "1"}
    body = body_of(HELLO, max_tokens=9, temperature=0.5, top_p=0.9, stop="END", effort="low", guardrail=guardrail)
    assert body["inferenceConfig"] == {"maxTokens": 9, "temperature": 0.5, "topP": 0.9, "stopSequences": ["END"]}
    assert (body["outputConfig"], body["guardrailConfig"]) == ({"effort": "low"}, guardrail)
    limited, _ = model_of(None, max_tokens=9)
    assert limited.max_output_tokens == 9, "what leaves room for the answer knows how long it may be"


def test_a_schema_binds_the_answers_of_models_that_know_it() -> None:
    schema = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    tool = {"type": "function", "function": {"name": STRUCTURED_OUTPUT, "description": "", "parameters": schema}}
    model, _ = model_of(None, effort="low")
    body = model._native_body(HELLO, [tool], ToolChoice(STRUCTURED_OUTPUT))
    assert body is not None
    wire.check_shape(body)
    assert body["outputConfig"]["textFormat"]["type"] == "json_schema"
    assert body["outputConfig"]["effort"] == "low"
    assert model_of(None, model=NOVA)[0]._native_body(HELLO, [tool], ToolChoice(STRUCTURED_OUTPUT)) is None


def test_files_go_as_the_api_takes_them() -> None:
    files = [
        DataBlock(Base64Source("aWNvbg==", "image/png")),
        DataBlock(Base64Source("JVBERi0=", "application/pdf"), "the plan (v2)_final.pdf"),
        DataBlock(Base64Source("JVBERi0=", "application/pdf"), "the plan (v2)_final.pdf"),
        DataBlock(Base64Source("UEsD", "application/vnd.openxmlformats-officedocument.wordprocessingml.document")),
        DataBlock(Base64Source("e30=", "application/json"), "a.json"),
        DataBlock(URLSource("s3://bucket/a.mp4", "video/mp4")),
        DataBlock(URLSource("https://a.example/a.png", "image/png")),
        DataBlock(Base64Source("aWNvbg==", "image/bmp")),
    ]
    (turn,) = body_of([UserMsg("user", files)], cache="off")["messages"]
    image, *documents, video, remote, bitmap = turn["content"]

    assert image == {"image": {"format": "png", "source": {"bytes": "aWNvbg=="}}}
    assert [(part["document"]["format"], part["document"]["name"]) for part in documents] == [
        ("pdf", "the plan (v2) final"),
        ("pdf", "the plan (v2) final (2)"),
        ("docx", "document"),
        ("txt", "a"),
    ]
    assert video == {"video": {"format": "mp4", "source": {"s3Location": {"uri": "s3://bucket/a.mp4"}}}}
    assert "https://a.example/a.png" in remote["text"]
    assert "image/bmp" in bitmap["text"]


def test_ids_and_names_have_the_form_that_the_api_demands() -> None:
    calls = [ToolCallBlock(f"{'x' * 90}/ü{number}", "get weather!", "{}") for number in range(2)]
    results = [ToolResultBlock(call.id, call.name, "ok") for call in calls]
    body_of([*HELLO, AssistantMsg("a", [*calls, *results])])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"region": "evil.example/"}, "region=...\\) must be as in 'eu-central-1'"),
        ({"cache": "on"}, "must be 'auto' or 'off'"),
        ({"guardrail": "abc"}, "guardrail="),
        ({"thinking": "yes"}, r"BedrockChatModel\(thinking="),
        ({"rules": {}}, "rules=ClaudeRules"),
        ({"temprature": 1}, "did you mean 'temperature'"),
    ],
)
def test_a_wrong_option_is_refused_with_the_remedy(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        model_of(None, **options)


def test_rules_of_ones_own_win() -> None:
    rules = ClaudeRules(must_call=True, named_choice=True)
    body = body_of(HELLO, TOOLS, ToolChoice("add"), model="meta.llama4", rules=rules)
    assert body["toolConfig"]["toolChoice"] == {"tool": {"name": "add"}}


def test_the_address_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_BEARER_TOKEN_BEDROCK", KEY)
    for variable in ("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_ENDPOINT_URL_BEDROCK_RUNTIME"):
        monkeypatch.delenv(variable, raising=False)
    with pytest.raises(ConfigError, match="set AWS_REGION, or give region="):
        chat_model(f"bedrock:{CLAUDE}")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-west-3")
    assert chat_model(f"bedrock:{CLAUDE}").base_url == "https://bedrock-runtime.eu-west-3.amazonaws.com"  # type: ignore[attr-defined]
    monkeypatch.setenv("AWS_ENDPOINT_URL_BEDROCK_RUNTIME", "https://vpce.example")
    assert chat_model(f"bedrock:{CLAUDE}").base_url == "https://vpce.example"  # type: ignore[attr-defined]
