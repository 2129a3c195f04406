"""Answers that must have a form."""

import datetime
import enum
import json
from collections.abc import Callable
from typing import Any, Optional

import anyio
import pytest
from pydantic import BaseModel, Field

from agentrt import Agent, AgentState, MiddlewareBase
from agentrt.agent import ReActConfig
from agentrt.errors import InvalidInputError, UsageError
from agentrt.message import TextBlock, ToolCallBlock
from agentrt.model import ChatResponse
from agentrt.state import InMemoryStateStore
from agentrt.tool import FunctionTool
from tests.loop.helpers import (
    add,
    agent_of,
    call,
    confirmation_of,
    elsewhere,
    items_of,
    items_with,
    order_of,
    rebuilt,
    short,
)

TOOL = "GenerateStructuredOutput"


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Part(BaseModel):
    number: int
    tags: list[str] = ["plain"]


class Report(BaseModel):
    title: str
    day: datetime.date
    color: Color = Color.RED
    main: Optional[Part] = None  # noqa: UP045  # both spellings have one schema
    parts: list[Part]
    page: int = Field(1, alias="pageNumber", ge=1)


GIVEN = {"title": "T", "day": "2024-02-29", "main": {"number": 1}, "parts": [{"number": 2, "tags": []}, {"number": 3}]}
FILLED = {
    "title": "T",
    "day": "2024-02-29",
    "color": "red",
    "main": {"number": 1, "tags": ["plain"]},
    "parts": [{"number": 2, "tags": []}, {"number": 3, "tags": ["plain"]}],
    "pageNumber": 1,
}
NUMBER = {
    "type": "object",
    "properties": {"n": {"type": "integer"}, "unit": {"type": "string", "default": "m"}},
    "required": ["n"],
}


def answer(call_id: str = "1", /, **given: Any) -> ToolCallBlock:
    return ToolCallBlock(call_id, TOOL, json.dumps(given))


def told(agent: Agent) -> list[str]:
    """Return what the model was told about its calls, in order."""
    return [block.output[0].text for block in agent.state.context[-1].get_content_blocks("tool_result")]


async def test_the_order_of_a_reply_with_a_form():
    agent = agent_of([[answer(n=1)]])
    assert await order_of_structured(agent, NUMBER) == (
        "RS MS CALL_START:1 CALL_DELTA:1 CALL_END:1 ME RESULT_START:1 RESULT_DELTA:1 RESULT_END:1(success) "
        "RE(completed) Msg"
    )


async def order_of_structured(agent: Agent, schema: Any) -> str:
    return " ".join(short(item) for item in await items_with(agent, schema))


async def test_a_model_class_checks_converts_and_fills_in_the_defaults():
    *events, message = await items_with(agent_of([[answer(**GIVEN)]]), Report)
    assert message.structured_output == Report.model_validate(FILLED)
    assert message.structured_output.parts[1].tags == ["plain"]
    assert json.loads(message.get_text_content()) == events[-1].structured_output == FILLED


async def test_json_schema_defaults_are_filled_in_and_never_shared():
    schema = {"type": "object", "properties": {"l": {"type": "array", "default": []}}}
    agent = agent_of([[answer("1")], [answer("2")]])
    first = await agent.reply("go", schema)
    first.structured_output["l"].append("mine")
    assert (await agent.reply("go", schema)).structured_output == {"l": []}
    assert schema == {"type": "object", "properties": {"l": {"type": "array", "default": []}}}


async def test_end_and_message_and_history_all_carry_the_answer():
    agent = agent_of([["Here it is.", answer(n=1)]])
    *events, message = await items_with(agent, NUMBER)
    heard = rebuilt(events)
    expected = {"n": 1, "unit": "m"}
    assert events[-1].structured_output == expected
    assert message.structured_output == agent.state.context[-1].structured_output == heard.structured_output
    assert message.structured_output == expected


async def test_the_answer_can_be_given_to_another_agent():
    message = await agent_of([[answer(n=1)]]).reply("go", NUMBER)
    reader = agent_of(["I see"])
    assert (await reader.reply(message)).get_text_content() == "I see"
    assert '"n":1' in reader.model.calls[0].messages[-1].get_text_content()


@pytest.mark.parametrize(
    ("schema", "bad", "words"),
    [
        (Report, {**GIVEN, "day": "soon"}, "day"),
        (Report, {**GIVEN, "parts": [{"number": "x"}]}, "parts"),
        (Report, {**GIVEN, "color": "mauve"}, "color"),
        (Report, {**GIVEN, "pageNumber": 0}, "pageNumber"),
        (NUMBER, {"n": "one"}, "n"),
        (NUMBER, {}, "n"),
    ],
)
async def test_answer_that_does_not_fit_goes_back_and_the_next_counts(schema, bad, words):
    good = GIVEN if schema is Report else {"n": 1}
    agent = agent_of([[answer("1", **bad)], [answer("2", **good)]])
    message = await agent.reply("go", schema)
    assert message.finished_reason == "completed"
    assert words in told(agent)[0]
    assert agent.state.context[-1].structured_output == (FILLED if schema is Report else {"n": 1, "unit": "m"})
    assert "answer was taken" in told(agent)[1]


async def test_message_of_a_validator_goes_back_without_the_input():
    class Even(BaseModel):
        n: int

        def model_post_init(self, _: Any) -> None:
            if self.n % 2:
                raise ValueError("it must be even")

    agent = agent_of([[answer("1", n=1)], [answer("2", n=2)]])
    assert (await agent.reply("go", Even)).structured_output == Even(n=2)
    assert told(agent)[0] == "the answer does not fit: the answer: Value error, it must be even"


async def test_answer_in_words_does_not_count_and_each_request_says_so():
    agent = agent_of(["It is one.", "One, I say.", [answer(n=1)]])
    assert (await agent.reply("go", NUMBER)).structured_output == {"n": 1, "unit": "m"}
    for asked in agent.model.calls:
        assert "an answer in words does not count" in asked.messages[-1].content[0].hint
    assert "does not count" not in agent.state.model_dump_json()


async def test_structured_answer_among_calls_leaves_each_a_result():
    agent = agent_of([[call("0", "add", a=1, b=2), answer("1", n=3), call("2", "add", a=3, b=4)]], add)
    message = await agent.reply("go", NUMBER)
    assert message.structured_output == {"n": 3, "unit": "m"}
    assert told(agent) == ["3", "The answer was taken.", "7"]


async def test_of_two_answers_in_one_the_last_counts():
    agent = agent_of([[answer("1", n=1), answer("2", n=2)]])
    assert (await agent.reply("go", NUMBER)).structured_output["n"] == 2


async def test_structured_output_is_forced_from_the_last_round_on():
    rounds = [[call(str(number), "add", a=1, b=1)] for number in range(2)]
    agent = agent_of([*rounds, "words", "words", [answer(n=1)]], add, react_config=ReActConfig(max_iters=2))
    assert (await agent.reply("go", NUMBER)).structured_output == {"n": 1, "unit": "m"}
    choices = [asked.tool_choice for asked in agent.model.calls]
    assert choices[:2] == [None, None]
    assert [choice.mode for choice in choices[2:]] == [TOOL] * 3


async def test_reply_ends_without_an_answer_when_forcing_fails():
    calls = [[call(str(number), "add", a=1, b=1)] for number in range(6)]
    agent = agent_of([*calls, "next"], add, react_config=ReActConfig(max_iters=1))
    *events, message = await items_with(agent, NUMBER)
    assert (message.finished_reason, message.structured_output) == ("exceed_max_iters", None)
    assert [short(event) for event in events[-2:]] == ["EXCEED", "RE(exceed_max_iters)"]
    assert (await agent.reply("and now?")).get_text_content() == "next"


async def test_the_form_is_there_for_its_own_reply_alone():
    agent = agent_of([[answer(n=1)], "words"], add)
    await agent.reply("go", NUMBER)
    assert agent.toolkit.get(TOOL) is None
    assert (await agent.reply("again")).structured_output is None
    offered = [[schema["function"]["name"] for schema in asked.tools] for asked in agent.model.calls]
    assert offered == [["add", TOOL], ["add"]]


async def test_concurrent_conversation_does_not_see_the_schema():
    asked, goes_on = anyio.Event(), anyio.Event()

    async def slow(messages, tools):
        asked.set()
        await goes_on.wait()
        return [answer(n=1)]

    first = agent_of([slow, "words"])
    second = first.with_state(AgentState())
    answers = []

    async def ask() -> None:
        answers.append(await first.reply("go", NUMBER))

    async with anyio.create_task_group() as group:
        group.start_soon(ask)
        await asked.wait()
        assert (await second.reply("go")).structured_output is None
        goes_on.set()
    assert second.model.calls[1].tools in (None, [])
    assert answers[0].structured_output == {"n": 1, "unit": "m"}


@pytest.mark.parametrize("schema", [NUMBER, Report])
async def test_schema_is_still_required_and_checked_after_a_restart(schema):
    good, bad = (GIVEN, {**GIVEN, "parts": [{"number": "x"}]}) if schema is Report else ({"n": 1}, {"n": "one"})
    store = InMemoryStateStore()
    script = [[call("0", "add", a=1, b=1)], "words", [answer("1", **bad)], [answer("2", **good)]]
    agent = agent_of(script, FunctionTool(add, ask=True), state_store=store)
    await agent.reply("go", schema)
    agent = elsewhere(agent)
    message = await agent.reply(confirmation_of(agent))
    assert message.structured_output == (FILLED if schema is Report else {"n": 1, "unit": "m"})
    assert len(told(agent)) == 3


class Odd(BaseModel):
    call_back: Callable[[], int]


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        (5, "not 5"),
        ("Report", "not 'Report'"),
        ([Report], "not ["),
        (Part(number=1), "not Part(number=1"),
        ({"type": "array"}, "goes into a property"),
        ({"type": "object", "properties": ["a"]}, "not {'type'"),
        ({"type": "object", "properties": {"a": object}}, "has no JSON schema: it is not JSON"),
        (Odd, "has no JSON schema: Cannot generate"),
        ({"type": "object", "properties": {"a": {"enum": 1}}}, "cannot be used: enum at #/properties/a must be a list"),
        ({"type": "object", "properties": {"a": {"pattern": "a(?=b)"}}}, "cannot be used: pattern 'a(?=b)' at "),
    ],
)
async def test_what_describes_no_form_is_refused_at_the_call(schema, words):
    agent = agent_of(["next"])
    with pytest.raises(InvalidInputError) as caught:
        agent.reply_stream("go", schema)
    assert words in str(caught.value)
    with pytest.raises(InvalidInputError):
        await agent.reply("go", schema)
    assert agent.state == AgentState(session_id=agent.state.session_id)


async def test_a_tool_of_the_users_with_that_name_is_named():
    async def GenerateStructuredOutput(n: int) -> int:
        return n

    agent = agent_of(["next"], GenerateStructuredOutput)
    with pytest.raises(UsageError, match="the toolkit has a tool of that name: rename that tool"):
        await agent.reply("go", NUMBER)
    assert agent.state.context == []
    assert (await agent.reply("go")).get_text_content() == "next"


async def test_a_form_may_have_properties_with_any_name():
    schema = {"type": "object", "properties": {"self": {"type": "integer"}, "answer": {"type": "integer"}}}
    agent = agent_of([[answer(self=1, answer=2)]])
    assert (await agent.reply("go", schema)).structured_output == {"self": 1, "answer": 2}


async def test_changing_the_schema_during_the_reply_changes_nothing():
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}}

    def change(messages, tools):
        schema["properties"]["n"]["type"] = "string"
        return [answer(n=1)]

    assert (await agent_of([change]).reply("go", schema)).structured_output == {"n": 1}


class Seen(MiddlewareBase):
    def __init__(self, instead: Any) -> None:
        self.instead = instead
        self.seen: list[Any] = []

    async def on_reply(self, agent, input_kwargs, next_handler):
        self.seen.append(input_kwargs["structured_schema"])
        async for item in next_handler(structured_schema=self.instead):
            yield item


@pytest.mark.parametrize("given", [None, NUMBER])
async def test_a_layer_sees_the_form_and_may_put_another_in_its_place(given):
    layer = Seen(Part)
    agent = agent_of([[answer(number=1)]], middlewares=[layer])
    assert (await agent.reply("go", given)).structured_output == {"number": 1, "tags": ["plain"]}
    assert layer.seen == [given]


async def test_a_layer_may_take_the_form_away():
    agent = agent_of(["words"], middlewares=[Seen(None)])
    assert (await agent.reply("go", NUMBER)).get_text_content() == "words"


async def test_layers_invalid_schema_fails_before_input_is_taken():
    agent = agent_of(["next"], middlewares=[Seen(5)])
    with pytest.raises(InvalidInputError, match="must be a type"):
        await agent.reply("go", NUMBER)
    assert agent.state.context == []
    assert agent.state.last_reply.finished_reason == "error"
    agent.chains.middlewares[0].instead = None
    assert (await agent.reply("go")).get_text_content() == "next"


async def test_interrupted_reply_has_no_answer_even_if_one_was_taken():
    async def stop() -> str:
        agent.interrupt()
        await anyio.sleep_forever()
        return "never"

    agent = agent_of([[answer("1", n=1), call("2", "stop")], "next"], stop)
    *events, message = await items_with(agent, NUMBER)
    assert (message.finished_reason, message.structured_output) == ("interrupted", None)
    assert events[-1].structured_output is None
    assert (await agent.reply("and now?")).get_text_content() == "next"


async def test_with_a_whole_response_it_is_the_same():
    agent = agent_of([ChatResponse([TextBlock("Here."), answer(n=1)])])
    assert (await agent.reply("go", NUMBER)).structured_output == {"n": 1, "unit": "m"}
    assert (await items_of(agent_of(["plain"])))[-1].structured_output is None
    assert (await order_of(agent_of(["plain"]))).endswith("RE(completed) Msg")


async def test_another_round_is_asked_for_another_form():
    class Doubt(MiddlewareBase):
        async def on_model_call(self, agent, input_kwargs, next_handler):
            if not agent.run.scratch(self):
                agent.run.scratch(self)["asked"] = True
                agent.run.continue_with("Are you sure?")
            return await next_handler()

    agent = agent_of([[call("1", TOOL, n=1)], [call("2", TOOL, n=2)]], middlewares=[Doubt()])
    answer = await agent.reply("How long?", NUMBER)
    assert (answer.structured_output, answer.finished_reason) == ({"n": 2, "unit": "m"}, "completed")


async def test_a_pattern_for_pythons_engine_is_left_to_the_class():
    class Code(BaseModel, regex_engine="python-re"):
        code: str = Field(pattern=r"a(?=b)b")

    agent = agent_of([[call("1", TOOL, code="xx")], [call("2", TOOL, code="ab")]])
    msg = await agent.reply("go", structured_schema=Code)
    assert msg.structured_output == Code(code="ab")
    schema = agent.model.calls[0].tools[-1]["function"]["parameters"]
    assert schema["properties"]["code"]["type"] == "string"
