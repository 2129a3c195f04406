"""The key of a request: any difference in what is asked changes it, ids and times alone do not."""

import copy
import subprocess
import sys
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrt.message import (
    AssistantMsg,
    Base64Source,
    DataBlock,
    HintBlock,
    Msg,
    ProviderBlock,
    TextBlock,
    ThinkingBlock,
    ToolCallBlock,
    ToolResultBlock,
    URLSource,
    UserMsg,
)
from agentrt.model import (
    AnthropicChatModel,
    BedrockChatModel,
    ChatModelBase,
    GeminiChatModel,
    OpenAIChatModel,
    OpenAIResponsesModel,
    ScriptedChatModel,
    request_key,
)
from agentrt.model.request_key import describe_request
from agentrt.types import ToolChoice

SECRET = "hunter2-hunter2"
TOOL = {"type": "function", "function": {"name": "look", "description": "Look.", "parameters": {"type": "object"}}}
texts = st.text(max_size=5)
sources = st.builds(Base64Source, texts, texts) | st.builds(URLSource, texts, texts)
outputs = texts | st.lists(st.builds(TextBlock, texts) | st.builds(DataBlock, sources, st.none() | texts), max_size=2)
ids = st.sampled_from(["a", "b"])
blocks = (
    st.builds(TextBlock, texts)
    | st.builds(ThinkingBlock, texts, signature=st.none() | texts)
    | st.builds(HintBlock, texts)
    | st.builds(DataBlock, sources, st.none() | texts)
    | st.builds(ToolCallBlock, ids, texts, texts)
    | st.builds(ToolResultBlock, ids, texts, outputs, st.sampled_from(["success", "error"]))
    | st.builds(ProviderBlock, texts, texts)
)
contents = texts | st.lists(blocks, max_size=3)
messages = st.builds(Msg, texts, contents, st.sampled_from(["user", "assistant", "system"]))
choices = st.none() | st.builds(ToolChoice, st.sampled_from(["auto", "none"]), st.none() | st.lists(texts, max_size=2))


def key(request: list[Msg], **others: Any) -> str:
    values = {"tools": [TOOL], "tool_choice": None, "model": ScriptedChatModel([])} | others
    return request_key(request, **values)


def meaning(message: Msg) -> object:
    """What a message says, without its ids and times."""
    blocks = [TextBlock(message.content)] if isinstance(message.content, str) else message.content

    def content_of(block: Any) -> object:
        skipped = ("metadata", "source") if isinstance(block, (ToolResultBlock, HintBlock)) else ("metadata", "state")
        names = [name for name in block.__dataclass_fields__ if name not in skipped and name != "id"]
        values: dict[str, object] = {name: getattr(block, name) for name in names}
        output = values.get("output")
        if isinstance(output, str):
            output = [TextBlock(output)]
        if isinstance(output, list):
            values["output"] = [content_of(part) for part in output]
        return block.type, values

    return message.name, message.role, [content_of(block) for block in blocks]


def call_numbers(request: list[Msg]) -> list[int]:
    seen: dict[str, int] = {}
    blocks = (block for message in request if isinstance(message.content, list) for block in message.content)
    calls = [block for block in blocks if isinstance(block, (ToolCallBlock, ToolResultBlock))]
    return [seen.setdefault(block.id, len(seen)) for block in calls]


@given(st.lists(messages, max_size=2), st.lists(messages, max_size=2))
def test_keys_are_equal_just_where_the_messages_say_the_same(first, second):
    def words(request: list[Msg]) -> list[object]:
        copies = [message.copy() for message in request]
        for block in (block for message in copies if isinstance(message.content, list) for block in message.content):
            block.id = ""
        return [meaning(message) for message in copies]

    is_same = words(first) == words(second) and call_numbers(first) == call_numbers(second)
    assert (key(first) == key(second)) == is_same


@given(st.lists(messages, min_size=1, max_size=3), st.data())
def test_any_one_difference_changes_the_key(request, data):
    place = data.draw(st.integers(0, len(request) - 1))
    changed = [message.copy() for message in request]
    message = changed[place]
    match data.draw(st.sampled_from(["name", "role", "drop", "text", "repeat"])):
        case "name":
            message.name += "x"
        case "role":
            message.role = "system" if message.role == "user" else "user"
        case "drop":
            del changed[place]
        case "text":
            more = TextBlock("x")
            message.content = [*message.get_content_blocks(), more]
        case "repeat":
            changed.insert(place, message)
    assert key(changed) != key(request)


@given(st.lists(messages, max_size=3))
def test_ids_and_times_alone_change_nothing(request):
    changed = copy.deepcopy(request)
    names = {"a": "other-1", "b": "other-2"}
    for message in changed:
        message.id, message.created_at, message.metadata = "other", 1, {"seen": True}
        for block in message.content if isinstance(message.content, list) else ():
            block.id = names.get(block.id, "other")
    assert key(changed) == key(request)


@given(choices, choices)
def test_the_tool_choice_counts(one, other):
    assert (key([], tool_choice=one) == key([], tool_choice=other)) == (one == other)


class Model(ChatModelBase):
    def __init__(self, **values: Any) -> None:
        super().__init__(model="m")
        for name, value in values.items():
            setattr(self, name, value)


class OtherModel(Model):
    pass


DIFFERENT: list[dict[str, Any]] = [
    {},
    {"tools": []},
    {"tools": [TOOL, TOOL]},
    {"tools": [{**TOOL, "function": {**TOOL["function"], "description": "Look there."}}]},  # type: ignore[dict-item]
    {"tools": [{**TOOL, "function": {**TOOL["function"], "parameters": {}}}]},  # type: ignore[dict-item]
    {"tool_choice": ToolChoice("auto")},
    {"tool_choice": ToolChoice("required")},
    {"tool_choice": ToolChoice("auto", ["look"])},
    {"model": OtherModel()},
    {"model": Model(model="n")},
    {"model": Model(account="a")},
    {"model": Model(provider="p")},
    {"model": Model(settings={"temperature": 0})},
    {"model": Model(settings={"temperature": 0.0})},
    {"model": Model(settings={"temperature": False})},
    {"model": Model(settings={"temperature": "0"})},
    {"model": Model(settings={"temperature": None})},
    {"model": Model(settings={"temperature": float("nan")})},
    {"model": Model(settings={"top_p": 0})},
    {"model": Model(settings={"stop": ["a", "b"]})},
    {"model": Model(settings={"stop": ["ab"]})},
    {"model": Model(settings={"format": Model})},
]


def test_tools_choice_and_everything_of_the_model_count():
    keys = [key([UserMsg("hi")], **{"model": Model()} | others) for others in DIFFERENT]
    assert len(set(keys)) == len(DIFFERENT)


@pytest.mark.parametrize("cls", [AnthropicChatModel, BedrockChatModel])
def test_whether_claude_thinks_counts(cls):
    connection = {"api_key": "none", "base_url": "https://api.example"}
    thinking = {"type": "enabled", "budget_tokens": 2000}
    assert key([], model=cls("claude-opus-4-1", **connection)) != key(
        [], model=cls("claude-opus-4-1", **connection, thinking=thinking)
    )


OPTIONS: list[tuple[type[ChatModelBase], dict[str, Any]]] = [
    (OpenAIChatModel, {"extra_body": {"top_k": 1}}),
    (OpenAIChatModel, {"extra_body": {"top_k": 2}}),
    (OpenAIChatModel, {"parallel_tool_calls": False}),
    (OpenAIChatModel, {"structured_output": "tool"}),
    (OpenAIChatModel, {"formatter": copy.copy}),
    (OpenAIChatModel, {"formatter": partial(copy.deepcopy)}),
    (OpenAIChatModel, {"extra_headers": {"x-beta": "long-context"}}),
    (OpenAIChatModel, {"extra_headers": {"X-Gateway-Token": SECRET}}),
    (OpenAIChatModel, {"extra_headers": {"X-Gateway-Token": "other"}}),
    (AnthropicChatModel, {"server_tools": [{"type": "web_search_20250305", "name": "web_search"}]}),
    (OpenAIResponsesModel, {"server_tools": [{"type": "web_search"}]}),
    (OpenAIResponsesModel, {"server_tools": [{"type": "mcp", "require_approval": "never", "authorization": SECRET}]}),
    (GeminiChatModel, {"server_tools": [{"googleSearch": {}}]}),
]


def test_each_option_of_a_model_that_changes_its_answers_counts():
    connection: dict[str, Any] = {"api_key": "none", "base_url": "https://api.example"}
    plain = [key([], model=cls("m", **connection)) for cls in dict.fromkeys(cls for cls, _ in OPTIONS)]
    models = [cls("m", **connection, **options) for cls, options in OPTIONS]
    assert len({*plain, *(key([], model=model) for model in models)}) == len(plain) + len(models)
    assert [key([], model=cls("m", **connection, **options)) for cls, options in OPTIONS] == [
        key([], model=model) for model in models
    ]
    described = [describe_request([], [], None, model) for model in models]
    assert SECRET not in repr(described)


def test_the_order_in_which_settings_were_given_does_not_count():
    one, other = Model(settings={"a": 1, "b": 2}), Model(settings={"b": 2, "a": 1})
    assert key([], model=one) == key([], model=other)


def test_calls_count_by_their_order():
    def conversation(first: str, second: str, answered: str) -> list[Msg]:
        calls = [ToolCallBlock(first, "look", "{}"), ToolCallBlock(second, "look", "{}")]
        return [AssistantMsg("a", [*calls, ToolResultBlock(answered, "look", "sunny")])]

    assert key(conversation("1", "2", "1")) == key(conversation("x", "y", "x"))
    assert key(conversation("1", "2", "1")) != key(conversation("1", "2", "2"))


circular: dict[str, Any] = {"type": "function", "function": {"name": "look"}}
circular["function"]["parameters"] = circular


@pytest.mark.parametrize("text", ["half \ud800", "\x00", "é\u202e"])
def test_any_text_has_a_key(text):
    assert key([UserMsg(text)]) != key([UserMsg(text + "x")])
    assert key([UserMsg(text)]) == key([UserMsg(text)])


def test_a_schema_that_contains_itself_has_a_key():
    assert key([], tools=[circular]) == key([], tools=[circular]) != key([])


def test_another_process_makes_the_same_key():
    program = (
        "from agentrt.message import UserMsg; from agentrt.model import ScriptedChatModel, request_key\n"
        "print(request_key([UserMsg('hi')], [], None, ScriptedChatModel([])))"
    )
    output = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout
    assert output.strip() == request_key([UserMsg("hi")], [], None, ScriptedChatModel([]))
