"""Structured output in a provider's own JSON-schema mode: what is sent, and how the answer is read."""

import json
import logging
from collections.abc import Callable
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field, field_validator

from agentrt import Agent, Toolkit
from agentrt._runtime.decoding.answer_form import AnswerForm
from agentrt._runtime.schema.validator import Validator
from agentrt.errors import ConfigError, ModelError, Rejected
from agentrt.event import ToolCallDeltaEvent
from agentrt.message import HintBlock, UserMsg
from agentrt.model import AnthropicChatModel, ChatModelBase, OpenAIChatModel, Quirks
from agentrt.model.claude import CLAUDE_RULES, CLAUDE_SCHEMAS
from agentrt.model.openai import STRICT_SCHEMAS
from agentrt.types import STRUCTURED_OUTPUT, STRUCTURED_OUTPUT_HINT, ChatResponse, ToolChoice
from tests.loop.helpers import add
from tests.model import wire_anthropic, wire_openai
from tests.model.wire_anthropic import Reply, Wire
from tests.model.wire_openai import completion, delta, error, stream_of

JSON = '{"city": "Rome", "days": 3}'
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer", "exclusiveMinimum": 0}},
    "required": ["city", "days"],
}
OTHER = Toolkit(tools=[add]).get_json_schemas()
ANSWER = {"type": "function", "function": {"name": STRUCTURED_OUTPUT, "description": "Answer.", "parameters": SCHEMA}}
HINTED = [UserMsg("user", "go"), UserMsg("runtime", [HintBlock(STRUCTURED_OUTPUT_HINT)])]


class Trip(BaseModel):
    city: str
    days: int = Field(gt=0)


class Provider:
    """A model of one provider before a server that gives these answers, each a text or an HTTP status."""

    def __init__(self, name: str, stream: bool) -> None:
        self.name = name
        self.stream = stream

    def model(self, *answers: str | int, **options: Any) -> tuple[ChatModelBase, Callable[[], list[dict[str, Any]]]]:
        options = {"structured_output": "native", "stream": self.stream, **options}
        if self.name == "openai":
            model, server = wire_openai.model_of(*map(self._openai_answer, answers), **options)
            return model, lambda: server.bodies
        wire = Wire(*map(self._anthropic_answer, answers))
        return wire_anthropic.model_on(wire, **options), lambda: wire.bodies

    def _openai_answer(self, answer: str | int) -> Any:
        if isinstance(answer, int):
            return error(answer, "Invalid schema for response_format")
        if not self.stream:
            return completion(content=answer)
        return stream_of(*(delta(content=piece) for piece in pieces(answer)), delta("stop"))

    def _anthropic_answer(self, answer: str | int) -> Any:
        if isinstance(answer, int):
            return Reply({"type": "error", "error": {"type": "invalid_request_error", "message": "no schema"}}, answer)
        if self.stream:
            return [wire_anthropic.start(), *wire_anthropic.text(0, *pieces(answer)), *wire_anthropic.stop()]
        content = [{"type": "text", "text": answer}]
        return Reply({"id": "m", "content": content, "stop_reason": "end_turn", "usage": wire_anthropic.usage()})

    def schema_in(self, body: dict[str, Any]) -> dict[str, Any] | None:
        if self.name == "anthropic":
            return body.get("output_config", {}).get("format", {}).get("schema")
        form = body.get("response_format")
        assert form is None or (form["type"], form["json_schema"]["strict"]) == ("json_schema", True)
        return form and form["json_schema"]["schema"]

    def tools_in(self, body: dict[str, Any]) -> list[str]:
        return [tool.get("function", tool)["name"] for tool in body.get("tools", [])]


def pieces(text: str) -> list[str]:
    return [text[start : start + 5] for start in range(0, len(text), 5)]


@pytest.fixture(params=["openai", "anthropic"])
def name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(params=[True, False], ids=["streamed", "whole"])
def provider(request: pytest.FixtureRequest, name: str) -> Provider:
    return Provider(name, request.param)


async def ask(model: ChatModelBase, *rest: Any, messages: Any = None) -> list[ChatResponse]:
    try:
        result = await model(messages or HINTED, *rest)
        return [result] if isinstance(result, ChatResponse) else [piece async for piece in result]
    finally:
        await model.aclose()


# What is sent


async def test_the_tool_gives_way_to_its_schema(provider):
    model, bodies = provider.model(JSON)
    await ask(model, [*OTHER, ANSWER])
    (body,) = bodies()
    assert provider.tools_in(body) == ["add"]
    assert provider.schema_in(body)["required"] == ["city", "days"]
    assert STRUCTURED_OUTPUT not in json.dumps(body)
    assert "Give your final answer as JSON" in json.dumps(body)
    assert "tool_choice" not in body


@pytest.mark.parametrize("place", range(3))
async def test_no_message_asks_for_a_tool_that_is_not_there(provider, place):
    rest = [UserMsg("user", "go"), UserMsg("user", "And be brief.")]
    hint = UserMsg("runtime", [HintBlock("Today is Sunday."), HintBlock(STRUCTURED_OUTPUT_HINT)])
    messages = [*rest[:place], hint, *rest[place:]]
    model, bodies = provider.model(JSON)
    await ask(model, [ANSWER], messages=messages)
    sent = json.dumps(bodies()[0])
    assert STRUCTURED_OUTPUT not in sent
    assert sent.count("Give your final answer as JSON") == sent.count("Today is Sunday.") == 1
    assert hint.content[1].hint == STRUCTURED_OUTPUT_HINT


async def test_a_request_may_have_no_messages(provider):
    model, bodies = provider.model(JSON)
    result = await model([], [ANSWER])
    if not isinstance(result, ChatResponse):
        await result.aclose()
    await model.aclose()
    assert provider.schema_in(bodies()[0]) is not None


async def test_a_tool_may_be_described_in_the_form_of_the_api():
    model, bodies = Provider("anthropic", True).model("words")
    await ask(model, [{"name": "add", "description": "Add.", "parameters": {"type": "object", "properties": {}}}])
    assert [tool["name"] for tool in bodies()[0]["tools"]] == ["add"]


async def test_a_request_with_that_tool_alone_has_no_tools(provider):
    model, bodies = provider.model(JSON)
    await ask(model, [ANSWER])
    assert "tools" not in bodies()[0]


async def test_a_forced_answer_allows_no_other_tool(provider):
    model, bodies = provider.model(JSON)
    await ask(model, [*OTHER, ANSWER], ToolChoice(STRUCTURED_OUTPUT))
    (body,) = bodies()
    assert body["tool_choice"] in ("none", {"type": "none"})
    assert provider.schema_in(body) is not None


@pytest.mark.parametrize("choice", ["none", "required", "add"])
async def test_a_choice_against_the_answer_keeps_the_tool(provider, choice):
    model, bodies = provider.model("words")
    await ask(model, [*OTHER, ANSWER], ToolChoice(choice))
    (body,) = bodies()
    assert provider.schema_in(body) is None
    assert STRUCTURED_OUTPUT in provider.tools_in(body)


@pytest.mark.parametrize("tools", [None, [], OTHER])
async def test_without_the_tool_nothing_changes(provider, tools):
    model, bodies = provider.model("words")
    (*_, last) = await ask(model, tools)
    assert provider.schema_in(bodies()[0]) is None
    assert [block.type for block in last.content] == ["text"]


@pytest.mark.parametrize("options", [{"structured_output": "tool"}, {"extra_body": {"response_format": None}}])
async def test_the_tool_stays_where_the_user_says_so(provider, options):
    if "extra_body" in options and provider.name == "anthropic":
        options = {"extra_body": {"output_config": {"effort": "low"}}}
    model, bodies = provider.model("words", **options)
    await ask(model, [ANSWER])
    assert (provider.tools_in(bodies()[0]), provider.schema_in(bodies()[0])) == ([STRUCTURED_OUTPUT], None)


async def test_a_schema_without_a_translation_keeps_the_tool(provider):
    model, bodies = provider.model("words")
    open_schema = {"type": "object", "properties": {"a": {"type": "string"}}, "additionalProperties": True}
    await ask(model, [{"type": "function", "function": {**ANSWER["function"], "parameters": open_schema}}])
    assert provider.tools_in(bodies()[0]) == [STRUCTURED_OUTPUT]
    assert STRUCTURED_OUTPUT_HINT in json.dumps(bodies()[0])


async def test_effort_stays_beside_the_schema():
    model, bodies = Provider("anthropic", True).model(JSON, effort="low")
    await ask(model, [ANSWER])
    assert bodies()[0]["output_config"]["effort"] == "low"
    assert model.settings["output_config"] == {"effort": "low"}


@pytest.mark.parametrize(
    ("url", "quirks", "is_native"),
    [
        (None, None, True),
        ("https://api.openai.com/v1", Quirks(), False),
        ("http://localhost:8000/v1", None, False),
        ("http://localhost:8000/v1", Quirks(json_schema=True), True),
    ],
)
async def test_auto_is_native_where_the_server_is_known(url, quirks, is_native, monkeypatch):
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    provider = Provider("openai", True)
    model, bodies = provider.model(JSON, base_url=url, quirks=quirks, structured_output="auto")
    await ask(model, [ANSWER])
    assert (provider.schema_in(bodies()[0]) is not None) is is_native


@pytest.mark.parametrize(
    ("model", "is_native"), [("claude-sonnet-4-5", True), ("claude-opus-4-1", False), ("some-model", False)]
)
async def test_auto_is_native_for_the_claude_models_that_have_it(model, is_native):
    wire = Wire(wire_anthropic.text_events(JSON))
    await ask(wire_anthropic.model_on(wire, model), [ANSWER])
    assert ("output_config" in wire.bodies[0]) is is_native


@pytest.mark.parametrize(
    ("url", "mode", "is_native"),
    [
        ("https://api.anthropic.com/", "auto", True),
        ("https://gateway.test", "auto", False),
        ("https://gateway.test", "native", True),
    ],
)
async def test_auto_is_native_on_the_server_of_anthropic(url, mode, is_native):
    wire = Wire(wire_anthropic.text_events(JSON))
    await ask(wire_anthropic.model_on(wire, "claude-sonnet-4-5", base_url=url, structured_output=mode), [ANSWER])
    assert ("output_config" in wire.bodies[0]) is is_native


def test_every_newer_claude_model_has_the_mode():
    assert [name for name, rules in CLAUDE_RULES.items() if not rules.json_schema] == ["opus-4-1"]


@pytest.mark.parametrize("cls", [OpenAIChatModel, AnthropicChatModel])
@pytest.mark.parametrize("mode", ["strict", True, None])
def test_another_mode_is_refused_at_construction(cls, mode):
    with pytest.raises(ConfigError, match=r"structured_output=\.\.\.\) must be 'auto', 'native' or 'tool', not"):
        cls("m", api_key="k", structured_output=mode)


# How the answer is read


async def test_json_text_is_read_as_a_call_of_the_tool(provider):
    model, _ = provider.model(JSON)
    *streamed, last = await ask(model, [ANSWER])
    (call,) = last.content
    assert (call.name, call.input, last.finished_reason) == (STRUCTURED_OUTPUT, JSON, "tool_calls")
    if provider.stream:
        blocks = [block for piece in streamed for block in piece.content]
        assert {(block.type, block.id, block.name) for block in blocks} == {("tool_call", call.id, STRUCTURED_OUTPUT)}
        assert "".join(block.input for block in blocks) == JSON
        assert len(blocks) > 3


async def test_blanks_before_json_belong_to_the_call(provider):
    text = f"\n     \n\n{JSON}"
    *streamed, last = await ask(provider.model(text)[0], [ANSWER])
    assert [block.type for block in last.content] == ["tool_call"]
    blocks = [block for piece in streamed for block in piece.content]
    assert "".join(block.input for block in blocks) == (text if provider.stream else "")
    assert json.loads(last.content[0].input) == json.loads(JSON)


async def test_blanks_before_another_call_stay_before_it():
    call = {"index": 0, "id": "c", "type": "function", "function": {"name": "add", "arguments": "{}"}}
    stream = stream_of(*(delta(content=text) for text in "\n\n"), delta(tool_calls=[call]), delta("tool_calls"))
    model, _ = wire_openai.model_of(stream, structured_output="native")
    *streamed, last = await ask(model, [*OTHER, ANSWER])
    assert [block.type for block in last.content] == ["text", "tool_call"]
    blocks = [block for piece in streamed for block in piece.content]
    assert [(block.type, block.id) for block in blocks] == [(block.type, block.id) for block in last.content]
    assert blocks[0].text == "\n\n"


@pytest.mark.parametrize("text", ["I would rather not.", "   so", "```json\n{}\n```"])
async def test_text_that_is_not_json_stays_text(provider, text):
    *streamed, last = await ask(provider.model(text)[0], [ANSWER])
    assert [(block.type, block.text) for block in last.content] == [("text", text)]
    assert last.finished_reason == "stop"
    if provider.stream:
        assert "".join(block.text for piece in streamed for block in piece.content) == text


# Falling back to the tool


@pytest.mark.parametrize("status", [400, 422])
async def test_a_refused_schema_is_asked_for_with_the_tool(provider, status, caplog):
    model, bodies = provider.model(status, "words", "words")
    try:
        for _ in range(2):
            result = await model(HINTED, [ANSWER])
            if not isinstance(result, ChatResponse):
                [_ async for _ in result]
    finally:
        await model.aclose()
    assert [provider.schema_in(body) is not None for body in bodies()] == [True, False, False]
    assert "structured output is asked for through a tool from now on" in caplog.text
    assert [record.levelno for record in caplog.records] == [logging.WARNING]


async def test_a_request_refused_both_ways_says_nothing_of_schemas(provider):
    model, bodies = provider.model(400, 400, JSON)
    with pytest.raises(Rejected):
        await model(HINTED, [ANSWER])
    await ask(model, [ANSWER])
    assert [provider.schema_in(body) is not None for body in bodies()] == [True, False, True]


@pytest.mark.parametrize("status", [401, 404, 429, 500])
async def test_other_failures_are_not_asked_again(provider, status):
    model, bodies = provider.model(status)
    with pytest.raises(ModelError):
        await ask(model, [ANSWER])
    assert len(bodies()) == 1


# A whole reply


async def test_a_reply_is_the_same_with_the_mode(provider):
    model, _ = provider.model(JSON)
    agent = Agent("a", "", model)
    async with agent, agent.reply_stream("go", Trip, yield_final_msg=True) as stream:
        *events, message = [item async for item in stream]
    assert message.structured_output == Trip(city="Rome", days=3)
    assert "".join(event.delta for event in events if isinstance(event, ToolCallDeltaEvent)) == JSON
    kept = agent.state.context[-1]
    assert [block.type for block in kept.get_content_blocks()] == ["tool_call", "tool_result"]


async def test_a_misfit_goes_back_and_the_next_answer_counts(provider):
    class Even(BaseModel):
        days: int

        @field_validator("days")
        @classmethod
        def check(cls, days: int) -> int:
            if days % 2:
                raise ValueError("it must be even")
            return days

    model, bodies = provider.model('{"days": 1}', '{"days": 2}')
    async with Agent("a", "", model) as agent:
        assert (await agent.reply("go", Even)).structured_output == Even(days=2)
    assert len(bodies()) == 2
    assert "it must be even" in json.dumps(bodies()[1])
    assert all(provider.schema_in(body) is not None for body in bodies())


async def test_json_that_was_cut_is_an_attempt(provider):
    model, _ = provider.model(JSON[:12], JSON)
    async with Agent("a", "", model) as agent:
        message = await agent.reply("go", Trip)
    assert message.structured_output == Trip(city="Rome", days=3)
    assert agent.state.context[-1].get_content_blocks("tool_result")[0].state == "error"


# Dialects


class Leaf(BaseModel):
    kind: Literal["leaf"] = "leaf"
    text: str = Field("x", description="What it says.", max_length=3)


class Twig(BaseModel):
    kind: Literal["twig"] = "twig"
    leaves: list[Leaf] = Field(min_length=1)


class Plant(BaseModel):
    part: Annotated[Leaf | Twig, Field(discriminator="kind")]
    height: float | None = None


class Tree(BaseModel):
    children: list["Tree"] = []


def closed(required: list[str] | None = None, **properties: Any) -> dict[str, Any]:
    names = list(properties) if required is None else required
    return {"type": "object", "properties": properties, "required": names, "additionalProperties": False}


def test_openai_gets_every_property_required():
    assert STRICT_SCHEMAS.translate(AnswerForm(Leaf).schema) == closed(
        kind={"enum": ["leaf"], "type": "string", "description": 'default: "leaf"'},
        text={"type": "string", "description": 'What it says.; default: "x"; maxLength: 3'},
    )


def test_anthropic_gets_optional_properties():
    translated = CLAUDE_SCHEMAS.translate(AnswerForm(Leaf).schema)
    assert translated["required"] == []
    assert translated["additionalProperties"] is False


def test_a_discriminated_union_becomes_any_of():
    for dialect in (STRICT_SCHEMAS, CLAUDE_SCHEMAS):
        part = dialect.translate(AnswerForm(Plant).schema)["properties"]["part"]
        assert part == {"anyOf": [{"$ref": "#/$defs/Leaf"}, {"$ref": "#/$defs/Twig"}]}


def test_a_check_that_the_dialect_lacks_is_in_the_description():
    schema = closed(days={"type": "integer", "minimum": 1, "multipleOf": 2}, day={"type": "string", "format": "date"})
    assert STRICT_SCHEMAS.translate(schema) == schema
    assert CLAUDE_SCHEMAS.translate(schema)["properties"] == {
        "days": {"type": "integer", "description": "minimum: 1; multipleOf: 2"},
        "day": {"type": "string", "format": "date"},
    }


def test_a_recursive_type_fits_where_the_dialect_allows_it():
    assert STRICT_SCHEMAS.translate(AnswerForm(Tree).schema) is not None
    assert CLAUDE_SCHEMAS.translate(AnswerForm(Tree).schema) is None


def test_nothing_stands_beside_a_reference():
    schema = {**closed(a={"$ref": "#/$defs/A", "description": "An A."}), "$defs": {"A": {"type": "string"}}}
    assert STRICT_SCHEMAS.translate(schema)["properties"]["a"] == {
        "anyOf": [{"$ref": "#/$defs/A"}],
        "description": "An A.",
    }


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object"},
        {"type": "object", "properties": {}},
        {"type": "array", "items": {"type": "string"}},
        {"anyOf": [closed(a={"type": "string"})]},
        {**closed(a={"type": "string"}), "additionalProperties": {"type": "string"}},
        {**closed(a={"type": "string"}), "patternProperties": {"b": {}}},
        {**closed(a={"type": "string"}), "minProperties": 1},
        {**closed(a={"type": "string"}), "if": {}},
        closed(a={}),
        closed(a=True),
        closed(a={"type": "array"}),
        closed(a={"type": "array", "prefixItems": [{"type": "string"}]}),
        closed(["a", "b"], a={"type": "string"}),
        closed(a={"anyOf": [{"type": "string"}], "oneOf": [{"type": "null"}]}),
        closed(a={"enum": [1, 2], "const": 1}),
        closed(a={"allOf": [{"type": "string"}]}),
        closed(a={"not": {"type": "string"}}),
        closed(a={"$ref": "#/properties/a"}),
        closed(a={"enum": [{"b": 1}]}),
        closed(a={"const": [1]}),
        closed(a={"type": ["object", "null"]}),
        closed(a={"type": "file"}),
        closed(a={"type": "object", "additionalProperties": {"type": "string"}}),
    ],
)
def test_what_a_dialect_cannot_say_has_no_translation(schema):
    assert STRICT_SCHEMAS.translate(schema) is None
    assert CLAUDE_SCHEMAS.translate(schema) is None


@pytest.mark.parametrize("kind", [Leaf, Twig, Plant, Trip, list[Plant], Leaf | Trip])
def test_a_translation_is_a_schema_and_changes_nothing_given(kind):
    schema = AnswerForm(kind).schema
    before = json.dumps(schema)
    for dialect in (STRICT_SCHEMAS, CLAUDE_SCHEMAS):
        Validator(dialect.translate(schema))
    assert json.dumps(schema) == before
