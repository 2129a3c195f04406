"""Tools that a model may call, or looks for by itself, in each API's own terms: the rest of a request stays."""

import json
from typing import Any

import pytest

from agentrt.message import AssistantMsg, ToolCallBlock, ToolResultBlock, UserMsg
from agentrt.model import AnthropicChatModel, ClaudeRules, OpenAIChatModel, OpenAIResponsesModel
from agentrt.types import STRUCTURED_OUTPUT, DeferredSchema, ToolChoice
from tests.model.apis.answers import KEY, MODELS, TOOLS
from tests.model.apis.rules import check_request

HELLO = [UserMsg("user", "Hello")]
SEARCHING = OpenAIResponsesModel("gpt-5.4", api_key=KEY, stream=False, server_tools=[{"type": "web_search"}])
NOT_SHOWN = [TOOLS[0], DeferredSchema(TOOLS[1])]


def choice_in(body: dict[str, Any]) -> Any:
    return body.pop("toolConfig") if "contents" in body else body.pop("tool_choice")


ALLOWED: dict[str, Any] = {
    "chat": {
        "type": "allowed_tools",
        "allowed_tools": {"mode": "auto", "tools": [{"type": "function", "function": {"name": "add"}}]},
    },
    "responses": {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "add"}]},
    "gemini": {"functionCallingConfig": {"mode": "VALIDATED", "allowedFunctionNames": ["add"]}},
}


@pytest.mark.parametrize("api", ALLOWED)
def test_allowed_tools_leave_the_rest_of_a_request_as_it_is(api: str) -> None:
    model = MODELS[api]
    every, some = (model._body(HELLO, TOOLS, choice) for choice in (ToolChoice(), ToolChoice(tools=["add", "gone"])))
    check_request(api, some)
    if api == "gemini":
        from google.genai.types import ToolConfig

        ToolConfig.model_validate(some["toolConfig"])
    choice_in(every)
    assert choice_in(some) == ALLOWED[api]
    assert json.dumps(some) == json.dumps(every)


@pytest.mark.parametrize("api", ALLOWED)
def test_other_choices_are_what_they_are_without_names(api: str) -> None:
    def choice(mode: str, *names: str) -> Any:
        return choice_in(MODELS[api]._body(HELLO, TOOLS, ToolChoice(mode, list(names) or None)))

    assert choice("auto", "add", "look") == choice("auto")  # all of them
    assert choice("auto", "gone") == choice("required", "gone") == choice("none", "add") == choice("none")
    assert choice("add", "add") == choice("add")
    assert "required" in json.dumps(choice("required", "add")) or api == "gemini"


def test_servers_that_only_speak_the_api_are_sent_fewer_tools() -> None:
    for cls in (OpenAIChatModel, OpenAIResponsesModel):
        assert cls("m", api_key=KEY).supports_allowed_tools
        assert not cls("m", api_key=KEY, base_url="http://localhost:8000/v1").supports_allowed_tools


def test_allowed_tools_go_with_the_schema_mode_or_without_it() -> None:
    answer = {"type": "function", "function": {"name": STRUCTURED_OUTPUT, "parameters": {"type": "object"}}}
    model = OpenAIChatModel("gpt-5-mini", api_key=KEY, stream=False)
    assert model._native_request(HELLO, [*TOOLS, answer], ToolChoice(tools=["add"])) is None
    request = model._native_request(HELLO, [*TOOLS, answer], ToolChoice(tools=["add", STRUCTURED_OUTPUT]))
    assert choice_in(model._body(request.messages, request.tools, request.tool_choice)) == ALLOWED["chat"]


def test_openai_searches_the_tools_that_are_deferred() -> None:
    body = SEARCHING._body(HELLO, NOT_SHOWN, ToolChoice(tools=["add"]))
    check_request("responses", body)
    assert [(tool["type"], tool.get("name"), tool.get("defer_loading")) for tool in body["tools"]] == [
        ("function", "add", None),
        ("function", "look", True),
        ("tool_search", None, None),
        ("web_search", None, None),
    ]
    # OpenAI's own stay allowed.
    allowed = [{"type": "function", "name": "add"}, {"type": "tool_search"}, {"type": "web_search"}]
    assert body["tool_choice"]["tools"] == allowed


@pytest.mark.parametrize(
    ("model", "defers"),
    [
        (SEARCHING, True),
        (OpenAIResponsesModel("gpt-6.1-sol", api_key=KEY), True),
        (OpenAIResponsesModel("gpt-5.4-nano", api_key=KEY), False),
        (OpenAIResponsesModel("gpt-5-mini", api_key=KEY), False),
        (OpenAIResponsesModel("gpt-5.4", api_key=KEY, base_url="http://localhost:8000/v1"), False),
        (OpenAIChatModel("gpt-5.4", api_key=KEY), False),
        (AnthropicChatModel("claude-sonnet-4-5", api_key=KEY), True),
        (AnthropicChatModel("claude-opus-5-5", api_key=KEY), True),
        (AnthropicChatModel("claude-opus-4-1", api_key=KEY), False),
        (AnthropicChatModel("claude-next", api_key=KEY), False),
        (AnthropicChatModel("claude-next", api_key=KEY, rules=ClaudeRules(searches_tools=True)), True),
        (AnthropicChatModel("claude-sonnet-4-5", api_key=KEY, base_url="http://localhost:8000"), False),
    ],
)
def test_only_models_that_search_tools_defer_them(model: Any, defers: bool) -> None:
    assert model.supports_deferred_tools == defers
    assert ("defer_loading" in json.dumps(model._body(HELLO, NOT_SHOWN, None))) == defers


def test_a_call_of_a_searched_tool_goes_back_with_its_namespace() -> None:
    call = {
        "type": "function_call",
        "id": "fc_1",
        "call_id": "c1",
        "name": "look",
        "arguments": "{}",
        "namespace": "look",
    }
    search = {"type": "tool_search_call", "id": "ts_1", "arguments": {}, "execution": "server", "status": "completed"}
    reader = SEARCHING._reader([])
    reader.read({"id": "r", "status": "completed", "output": [search, call]})
    answer = reader.answer().content
    called = next(block for block in answer if isinstance(block, ToolCallBlock))
    messages = [*HELLO, AssistantMsg("a", [*answer, ToolResultBlock(called.id, "look", "seen")])]
    first = SEARCHING._body(messages, NOT_SHOWN, None)
    check_request("responses", first)
    assert [item["type"] for item in first["input"][1:]] == [
        "tool_search_call",
        "function_call",
        "function_call_output",
    ]
    assert first["input"][2]["namespace"] == "look"
    # Not where the tool is always shown, which after a compression may be.
    assert "namespace" not in SEARCHING._body(messages, TOOLS, None)["input"][2]
    assert "namespace" not in MODELS["responses"]._body(messages, NOT_SHOWN, None)["input"][2]
    for api in ("chat", "anthropic", "gemini"):
        check_request(api, MODELS[api]._body(messages, TOOLS, None))
