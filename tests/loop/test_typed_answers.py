"""Answers that are instances of a type for the caller, and plain JSON for everybody else."""

import copy
import dataclasses
import enum
import json
import logging
import pickle
import threading
from collections.abc import Generator, Iterable
from typing import Annotated, Any, Literal, NewType, Optional

import pytest
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    Json,
    PrivateAttr,
    RootModel,
    TypeAdapter,
    computed_field,
    field_validator,
)
from typing_extensions import TypedDict

from agentrt import Agent, MiddlewareBase, Msg
from agentrt.agent import ReActAgent
from agentrt.errors import ChainContractError, InvalidInputError, ResumeError
from agentrt.event import ConfirmResult, ReplyEndEvent, UserConfirmResultEvent
from agentrt.message import AssistantMsg, ToolCallBlock
from agentrt.model import ScriptedChatModel
from agentrt.pipeline import MsgHub
from agentrt.state import InMemoryStateStore
from agentrt.tool import FunctionTool
from agentrt.types import STRUCTURED_OUTPUT
from tests.loop.helpers import Even, Passing, add, agent_of, call, confirmation_of, elsewhere, items_with, saved_state


class Trip(BaseModel):
    city: str = Field(alias="cityName")
    days: int = Field(gt=0)


@dataclasses.dataclass
class Point:
    x: int
    y: int = 0


class Movie(TypedDict):
    title: str
    year: int


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Node(BaseModel):
    name: str
    children: list["Node"] = []


UserId = NewType("UserId", int)
Short = Annotated[str, Field(max_length=3)]
TRIP = Trip(cityName="Kyoto", days=3)
TRIP_JSON = {"cityName": "Kyoto", "days": 3}
JSON_SCHEMA = {"type": "object", "properties": {"days": {"type": "integer"}}}

TYPES = [
    (Trip, TRIP_JSON, TRIP),
    (Point, {"x": 1}, Point(1)),
    (Movie, {"title": "Ran", "year": 1985}, {"title": "Ran", "year": 1985}),
    (Node, {"name": "a", "children": [{"name": "b"}]}, Node(name="a", children=[Node(name="b")])),
    (dict[str, Point], {"a": {"x": 1}}, {"a": Point(1)}),
    (RootModel[list[int]], {"value": [1, 2]}, RootModel[list[int]]([1, 2])),
    (Color, {"value": "blue"}, Color.BLUE),
    (list[Point], {"value": [{"x": 1}, {"x": 2, "y": 3}]}, [Point(1), Point(2, 3)]),
    (tuple[int, str], {"value": [1, "a"]}, (1, "a")),
    (set[int], {"value": [1]}, {1}),
    (int, {"value": 7}, 7),
    (bool, {"value": False}, False),
    (str, {"value": ""}, ""),
    (Trip | Point, {"value": {"x": 1, "y": 2}}, Point(1, 2)),
    (Optional[Trip], {"value": TRIP_JSON}, TRIP),  # noqa: UP045  # both spellings are used
    (Optional[int], {"value": None}, None),  # noqa: UP045
    (Literal["a", "b"], {"value": "b"}, "b"),
    (Short, {"value": "abc"}, "abc"),
    (UserId, {"value": 5}, 5),
]
IDS = [str(kind)[:40] for kind, _, _ in TYPES]


def answer(call_id: str = "1", /, **given: Any) -> ToolCallBlock:
    return ToolCallBlock(call_id, STRUCTURED_OUTPUT, json.dumps(given))


def as_json(kind: Any, instance: Any) -> Any:
    return TypeAdapter(kind).dump_python(instance, mode="json", by_alias=True)


@pytest.mark.parametrize(("kind", "filled_in", "instance"), TYPES, ids=IDS)
async def test_the_caller_gets_an_instance_and_the_rest_json(kind, filled_in, instance):
    agent = agent_of([[answer(**filled_in)]], state_store=InMemoryStateStore())
    *events, message = await items_with(agent, kind)
    assert (message.finished_reason, message.error) == ("completed", None)
    assert type(message.structured_output) is type(instance)
    assert message.structured_output == instance
    plain = as_json(kind, instance)
    assert events[-1].structured_output == agent.state.context[-1].structured_output == plain
    assert json.loads(message.get_text_content()) == plain
    assert json.loads(agent.state.model_dump_json())["context"][-1]["structured_output"] == plain
    rebuilt = AssistantMsg(agent.name, [], id=message.id)
    for event in events:
        rebuilt.append_event(type(event).from_json(event.to_json()))
    assert rebuilt.structured_output == plain


@pytest.mark.parametrize(("kind", "filled_in", "instance"), TYPES, ids=IDS)
async def test_reply_and_drain_give_the_instance_too(kind, filled_in, instance):
    agent = agent_of([[answer(**filled_in)]] * 3)
    assert (await agent.reply("go", kind)).structured_output == instance
    async with agent.reply_stream("go", kind) as stream:
        async for _ in stream:
            pass
    assert stream.message.structured_output == instance
    drained = await agent.reply_stream("go", kind, yield_final_msg=True).drain()
    assert drained.structured_output == instance


@pytest.mark.parametrize(("kind", "filled_in", "instance"), TYPES, ids=IDS)
async def test_the_repeated_reply_has_the_instance(kind, filled_in, instance):
    agent = agent_of([[answer(**filled_in)]])
    first = await agent.reply("go", kind, reply_id="r")
    agent = elsewhere(agent)
    again = await agent.reply("go", kind, reply_id="r")
    assert (again.structured_output, again.get_text_content()) == (instance, first.get_text_content())
    assert (await agent.reply("go", reply_id="r")).structured_output == as_json(kind, instance)


@pytest.mark.parametrize(("kind", "filled_in", "instance"), TYPES, ids=IDS)
async def test_the_message_of_an_instance_is_copied_and_saved(kind, filled_in, instance):
    message = await agent_of([[answer(**filled_in)]]).reply("go", kind)
    assert Msg.from_json(message.to_json()).structured_output == as_json(kind, instance)
    for copied in (copy.copy(message), copy.deepcopy(message), message.copy()):
        assert copied == message
    if "RootModel" not in str(kind):  # pickle finds a class of its module alone
        assert pickle.loads(pickle.dumps(message)) == message
    message.copy().structured_output = None
    assert message.structured_output == instance


@pytest.mark.parametrize("kind", [Node, Trip | Point])
async def test_the_model_is_shown_an_object_with_its_definitions(kind):
    filled_in = {"name": "a"} if kind is Node else {"value": {"x": 1}}
    agent = agent_of([[answer(**filled_in)]])
    await agent.reply("go", kind)
    shown = agent.model.calls[0].tools[-1]["function"]["parameters"]
    assert shown["type"] == "object"
    assert set(shown["properties"]) == set(filled_in) | ({"children"} if kind is Node else set())
    assert "$defs" in shown


async def test_misfit_in_a_list_names_its_place_for_the_model():
    agent = agent_of([[answer("1", value=[{"x": 1}, {"x": -1}])], [answer("2", value=[])]])

    class Positive(BaseModel):
        x: int

        @field_validator("x")
        @classmethod
        def check(cls, x: int) -> int:
            if x < 0:
                raise ValueError("below 0")
            return x

    assert (await agent.reply("go", list[Positive])).structured_output == []
    [result, _] = agent.state.context[-1].get_content_blocks("tool_result")
    assert result.output[0].text == "the answer does not fit: value.1.x: Value error, below 0"


async def test_what_was_validated_is_not_validated_again():
    class Doubled(BaseModel):
        n: int

        @field_validator("n")
        @classmethod
        def double(cls, n: int) -> int:
            return n * 2

    *events, message = await items_with(agent_of([[answer(n=1)]]), Doubled)
    assert (events[-1].structured_output, message.structured_output.n) == ({"n": 2}, 2)


async def test_a_misfit_is_logged_at_debug_without_frames(caplog):
    agent = agent_of([[answer("1", cityName="Kyoto", days=-1)], "words", [answer("2", **TRIP_JSON)]])
    with caplog.at_level(logging.DEBUG, "agentrt"):
        await agent.reply("go", Trip)
    assert [record.levelname for record in caplog.records] == ["DEBUG", "DEBUG"]
    assert "(attempt 1 of 3)" in caplog.messages[0]
    assert "Traceback" not in caplog.text
    assert "File" not in caplog.text


class Lines(BaseModel):
    lines: Iterable[str]


@pytest.mark.parametrize("kind", [Iterable[int], Lines, list[Lines], Generator[int, None, None]])
async def test_an_iterator_is_refused_since_it_is_read_once(kind):
    with pytest.raises(InvalidInputError, match=r"an iterator can be read only once: write list\[X\]"):
        await agent_of([]).reply("go", kind)


# Whose it is


@pytest.mark.parametrize("kind", [Trip, list[Point], dict[str, Any], JSON_SCHEMA])
async def test_changing_message_or_event_changes_no_conversation(kind):
    filled_in = {"value": [{"x": 1}]} if kind == list[Point] else dict(TRIP_JSON)
    agent = agent_of([[answer(**filled_in)]])
    *_, end, message = await items_with(agent, kind)
    kept = copy.deepcopy(agent.state.context[-1].structured_output)
    for owned in (end.structured_output, message.structured_output):
        if isinstance(owned, (dict, list)):
            owned.clear()
    assert agent.state.context[-1].structured_output == kept
    assert kept
    again = ReplyEndEvent("r", None, "completed", structured_output={"a": [1]})
    rebuilt = AssistantMsg(agent.name, [], id="r").append_event(again)
    again.structured_output["a"].append(2)
    assert rebuilt.structured_output == {"a": [1]}


class ChangesInPlace(MiddlewareBase):
    """Changes the number in the structured output of each item of one class."""

    def __init__(self, item_type: type) -> None:
        self.item_type = item_type

    async def on_reply(self, agent, input_kwargs, next_handler):
        async for item in next_handler():
            if isinstance(item, self.item_type) and item.structured_output is not None:
                item.structured_output["days"] = 9
            yield item


@pytest.mark.parametrize(("item_type", "days"), [(Msg, 9), (ReplyEndEvent, 3)])
@pytest.mark.parametrize("kind", [Trip, JSON_SCHEMA])
async def test_a_change_in_place_counts_where_a_message_changes(item_type, days, kind):
    agent = agent_of([[answer(**TRIP_JSON)]], middlewares=[ChangesInPlace(item_type)])
    *_, end, message = await items_with(agent, kind)
    plain = TRIP_JSON | {"days": days}
    assert end.structured_output == agent.state.context[-1].structured_output == plain
    assert message.structured_output == (Trip(**plain) if kind is Trip else plain)


class Locked(BaseModel):
    n: int
    _lock: Any = PrivateAttr(default_factory=threading.Lock)


async def test_a_hub_is_told_of_an_instance_that_cannot_be_copied():
    speaker, listener = agent_of([[answer(n=1)]]), agent_of([])
    async with MsgHub([speaker, listener]):
        message = await speaker("go", structured_schema=Locked)
    assert message.structured_output.n == 1
    assert [heard.structured_output for heard in listener.state.context] == [{"n": 1}]


# Resuming


class Renamed(BaseModel):
    city: str = Field(validation_alias="cityName")


class Doubled(BaseModel):
    model_config = ConfigDict(extra="forbid")
    n: int

    @field_validator("n")
    @classmethod
    def double(cls, n: int) -> int:
        return n * 2

    @computed_field
    def square(self) -> int:
        return self.n**2


ONE_WAY = [
    (Renamed, {"cityName": "Oslo"}, Renamed(cityName="Oslo")),
    (Doubled, {"n": 1}, Doubled(n=1)),
    (Json[list[int]], {"value": "[1]"}, [1]),
    (list[Renamed], {"value": [{"cityName": "Oslo"}]}, [Renamed(cityName="Oslo")]),
]


@pytest.mark.parametrize(("kind", "filled_in", "instance"), ONE_WAY)
async def test_a_type_that_cannot_read_its_dump_is_repeated(kind, filled_in, instance):
    agent = agent_of([[answer("1", wrong=1)], [answer("2", **filled_in)]])
    assert (await agent.reply("go", kind, reply_id="r")).structured_output == instance
    agent = elsewhere(agent)
    assert (await agent.reply("go", kind, reply_id="r")).structured_output == instance


@pytest.mark.parametrize(("kind", "filled_in", "instance"), ONE_WAY)
async def test_a_type_that_cannot_read_its_dump_is_resumed(kind, filled_in, instance):
    agent = agent_of([[answer(**filled_in), call("0", "add", a=1, b=1)]], FunctionTool(add, ask=True))
    await agent.reply("go", kind)
    agent = elsewhere(agent)
    context = agent.state.reply_context
    assert context.structured.output is not None
    yes = UserConfirmResultEvent(context.reply_id, [ConfirmResult(True, context.blocks[1])])
    assert (await agent.reply(yes, kind)).structured_output == instance
    assert len(agent.model.calls) == 1


async def parked_agent(schema: Any, *script: Any, **options: Any) -> Agent:
    store = InMemoryStateStore()
    agent = agent_of([[call("0", "add", a=1, b=1)], *script], FunctionTool(add, ask=True), state_store=store, **options)
    message = await agent.reply("go", schema)
    assert message.structured_output is None
    return elsewhere(agent)


@pytest.mark.parametrize("kind", [Trip, list[Point]])
async def test_a_resumed_reply_gives_the_type_where_it_is_named(kind):
    filled_in, instance = (TRIP_JSON, TRIP) if kind is Trip else ({"value": [{"x": 1}]}, [Point(1)])
    agent = await parked_agent(kind, [answer(**filled_in)])
    assert (await agent.reply(confirmation_of(agent), kind)).structured_output == instance
    agent = await parked_agent(kind, [answer(**filled_in)])
    assert (await agent.reply(confirmation_of(agent))).structured_output == (
        TRIP_JSON if kind is Trip else [{"x": 1, "y": 0}]
    )


async def test_the_type_that_is_named_checks_the_resumed_answer():
    agent = await parked_agent(Even, [answer("1", n=1)], [answer("2", n=2)])
    assert (await agent.reply(confirmation_of(agent), Even)).structured_output == Even(n=2)


@pytest.mark.parametrize(
    ("began", "named", "words"), [(Trip, Point, "with another one"), (None, Trip, "without one"), (Trip, {}, "another")]
)
async def test_another_type_is_refused_when_a_reply_resumes(began, named, words):
    agent = await parked_agent(began, [answer(**TRIP_JSON)] if began else "words")
    saved = agent.state.model_dump_json()
    with pytest.raises(ResumeError, match=words) as caught:
        await agent.reply(confirmation_of(agent), named)
    assert caught.value.code == "mismatch"
    assert "leave structured_schema out" in str(caught.value)
    assert agent.state.model_dump_json() == saved
    assert (await agent.reply(confirmation_of(agent))).finished_reason == "completed"


@pytest.mark.parametrize("named", [Point, list[Trip], JSON_SCHEMA])
async def test_another_type_is_refused_before_layers_see_it(named):
    agent = await parked_agent(Trip, [answer(**TRIP_JSON)], middlewares=[Passing()])
    saved = agent.state.model_dump_json()
    with pytest.raises(ResumeError, match="with another one"):
        await agent.reply(confirmation_of(agent), named)
    assert agent.state.model_dump_json() == saved
    assert (await agent.reply(confirmation_of(agent), Trip)).structured_output == TRIP


class AsksForAPoint(MiddlewareBase):
    """Asks for another form than the caller, and answers in the caller's."""

    async def on_reply(self, agent, input_kwargs, next_handler):
        async for item in next_handler(structured_schema=Point):
            if isinstance(item, Msg) and item.structured_output is not None:
                item.structured_output = TRIP_JSON | {"days": item.structured_output["x"]}
            yield item


async def test_a_type_that_a_layer_replaced_is_named_again():
    agent = await parked_agent(Trip, [answer(x=3)], middlewares=[AsksForAPoint()])
    assert (await agent.reply(confirmation_of(agent), Trip)).structured_output == TRIP


async def test_another_type_is_refused_when_a_reply_is_repeated():
    agent = agent_of([[answer(**TRIP_JSON)]])
    await agent.reply("go", Trip, reply_id="r")
    with pytest.raises(ResumeError, match=r"does not fit the structured_schema <class .*Point'>: x: Field required"):
        await agent.reply("go", Point, reply_id="r")
    assert (await agent.reply("go", Trip, reply_id="r")).structured_output == TRIP


async def test_an_answer_that_comes_twice_gives_the_instance_twice():
    agent = await parked_agent(Trip, [answer(**TRIP_JSON)])
    yes = confirmation_of(agent)
    assert (await agent.reply(yes, Trip)).structured_output == TRIP
    assert (await agent.reply(yes, Trip)).structured_output == TRIP


# Layers and agents


class Answers(MiddlewareBase):
    """Answers in the agent's place, or changes what it answers."""

    def __init__(self, output: Any, *, asks: bool = False) -> None:
        self.output = output
        self.asks = asks
        self.seen: list[Any] = []

    async def on_reply(self, agent, input_kwargs, next_handler):
        async for item in next_handler() if self.asks else ():
            if isinstance(item, Msg):
                self.seen.append(item.structured_output)
            else:
                yield item
        yield AssistantMsg("layer", "Here.", structured_output=self.output)


class AnswersAlone(Answers):
    async def on_reply(self, agent, input_kwargs, next_handler):
        yield AssistantMsg("layer", "Here.", structured_output=self.output)


@pytest.mark.parametrize(
    ("kind", "output"), [(Trip, TRIP_JSON), (Trip, TRIP), (list[Point], [Point(1)]), (list[Point], [{"x": 1, "y": 0}])]
)
@pytest.mark.parametrize("asks", [False, True])
async def test_a_layer_answers_with_an_instance_or_json(kind, output, asks):
    layer = Answers(output, asks=True) if asks else AnswersAlone(output)
    first = answer(cityName="Oslo", days=1) if kind is Trip else answer(value=[])
    agent = agent_of([[first]], middlewares=[layer])
    *events, message = await items_with(agent, kind)
    instance, plain = (TRIP, TRIP_JSON) if kind is Trip else ([Point(1)], [{"x": 1, "y": 0}])
    assert message.structured_output == instance
    assert events[-1].structured_output == agent.state.context[-1].structured_output == plain
    assert layer.seen == ([json.loads(first.input).get("value", json.loads(first.input))] if asks else [])


@pytest.mark.parametrize("output", [{"cityName": "Oslo"}, Point(1), "Oslo", [TRIP]])
async def test_a_layers_answer_that_does_not_fit_is_its_error(output):
    agent = agent_of(["next"], middlewares=[AnswersAlone(output)])
    with pytest.raises(ChainContractError, match="its structured_output does not fit the structured_schema"):
        await agent.reply("go", Trip)
    assert agent.state.last_reply.finished_reason == "error"


@pytest.mark.parametrize("output", [TRIP, TRIP_JSON])
async def test_a_layer_may_answer_where_no_answer_fits(output):
    agent = agent_of(["words"] * 3, middlewares=[Answers(output, asks=True)])
    *events, message = await items_with(agent, Trip)
    assert (message.finished_reason, message.structured_output) == ("exceed_max_form_attempts", TRIP)
    assert events[-1].structured_output == TRIP_JSON
    agent = elsewhere(agent)
    again = await agent.reply("go", Trip, reply_id=message.id)
    assert (again.finished_reason, again.structured_output) == ("exceed_max_form_attempts", TRIP)
    assert (again.error, again.get_text_content()) == (message.error, "Here.")


async def test_a_layer_may_refuse_without_any_output():
    agent = agent_of([], middlewares=[AnswersAlone(None)])
    message = await agent.reply("go", Trip)
    assert (message.structured_output, message.get_text_content()) == (None, "Here.")


@pytest.mark.parametrize("output", [TRIP, Color.RED, [Point(1)], {"a": Point(1)}, 0])
async def test_a_layers_output_is_saved_as_json_without_a_schema(output):
    agent = agent_of([], middlewares=[AnswersAlone(output)], state_store=InMemoryStateStore())
    message = await agent.reply("go")
    assert message.structured_output == as_json(Any, output)
    assert saved_state(agent) == agent.state


async def test_what_has_no_json_is_refused_from_a_layer():
    agent = agent_of([], middlewares=[AnswersAlone(object())])
    with pytest.raises(ChainContractError, match="its structured_output cannot be saved"):
        await agent.reply("go")


async def test_another_agent_keeps_the_message_with_json():
    message = await agent_of([[answer(**TRIP_JSON)]]).reply("go", Trip)
    reader = agent_of(["I see"], state_store=InMemoryStateStore())
    await reader.observe(message)
    await reader.reply(message)
    assert [kept.structured_output for kept in reader.state.context[:2]] == [TRIP_JSON, TRIP_JSON]
    assert message.structured_output == TRIP


async def test_super_reply_gives_the_instance_to_a_subclass():
    class Planner(Agent):
        async def reply(self, inputs: Any = None, structured_schema: Any = None, **_: Any) -> Msg:
            message = await super().reply(inputs, Trip)
            assert message.structured_output == TRIP
            return message

    agent = Planner("a", model=ScriptedChatModel([[answer("1", **TRIP_JSON)], [answer("2", **TRIP_JSON)]]))
    assert (await agent.reply("go", Trip)).structured_output == TRIP
    *events, message = await items_with(agent, None)
    assert events[-1].structured_output == message.structured_output == TRIP_JSON


@pytest.mark.parametrize(("kind", "filled_in", "instance"), [TYPES[0], TYPES[7]])
async def test_a_react_agent_keeps_an_object_in_its_metadata(kind, filled_in, instance):
    agent = ReActAgent("a", "", ScriptedChatModel([[answer(**filled_in)]]))
    agent.set_console_output_enabled(False)
    message = await agent.reply("go", kind)
    assert (message.structured_output, message.metadata) == (instance, TRIP_JSON if kind is Trip else {})
