"""`stream.partial()`: structured output while the model writes it, always valid, and at the end the answer itself."""

import json
from itertools import pairwise
from typing import Any, NotRequired

import anyio.lowlevel
import pytest
from pydantic import BaseModel, field_validator
from typing_extensions import TypedDict

from agentrt import Agent, MiddlewareBase, Msg, UserMsg
from agentrt._runtime.decoding.answer_form import AnswerForm
from agentrt._runtime.decoding.partial_answer import PartialAnswer
from agentrt.errors import Transient, UsageError
from agentrt.event import ToolCallDeltaEvent, ToolCallStartEvent
from agentrt.message import ToolCallBlock
from agentrt.middleware import RetryMiddleware
from agentrt.model import ChatResponse, ScriptedChatModel
from agentrt.types import STRUCTURED_OUTPUT, ReActConfig


class Stop(BaseModel):
    city: str
    days: int

    @field_validator("city")
    @classmethod
    def check_city(cls, city: str) -> str:
        if city == "Pis":
            raise KeyError("a validator that was written for whole values")
        return city


class Trip(BaseModel):
    title: str
    stops: list[Stop] = []


class Draft(TypedDict):
    title: NotRequired[str]
    days: NotRequired[int]


TRIP = {"title": "Italy", "stops": [{"city": "Rome", "days": 3}, {"city": "Pisa", "days": 1}]}


def pieces(answer: Any, id: str = "1", size: int = 1) -> list[Any]:
    """Return the pieces of a call that gives the answer."""
    text = answer if isinstance(answer, str) else json.dumps(answer)
    blocks = [ToolCallBlock(id, STRUCTURED_OUTPUT, text[n : n + size]) for n in range(0, len(text), size)]
    return [ChatResponse([block], False) for block in blocks]


def agent_with(*answers: Any, middlewares: Any = ()) -> Agent:
    return Agent("a", model=ScriptedChatModel([*answers]), middlewares=[*middlewares])


async def partials_of(agent: Agent, schema: Any) -> list[Any]:
    async with agent.reply_stream("go", schema) as stream:
        partials = [answer async for answer in stream.partial()]
        final = stream.message.structured_output
        assert final is None or partials[-1] is final
    return partials


async def test_a_model_grows_and_ends_as_the_answer() -> None:
    partials = await partials_of(agent_with(pieces(TRIP)), Trip)

    titles = [trip.title for trip in partials]
    assert titles[:6] == ["", "I", "It", "Ita", "Ital", "Italy"]
    lengths = [len(trip.stops) for trip in partials]
    assert lengths == sorted(lengths)
    assert set(lengths) == {0, 1, 2}
    # Only the empty list is there twice: as the default, and as written.
    assert [later.stops for earlier, later in pairwise(partials[:-1]) if earlier == later] == [[]]
    assert partials[-1] == Trip.model_validate(TRIP)
    # An item of a list comes when all of its fields have begun.
    assert all(isinstance(stop, Stop) for trip in partials for stop in trip.stops)


async def test_other_types_grow_as_well() -> None:
    stops = await partials_of(agent_with(pieces({"value": TRIP["stops"]})), list[Stop])
    assert [len(each) for each in stops] == sorted(len(each) for each in stops)
    assert {len(each) for each in stops} == {0, 1, 2}
    drafts = await partials_of(agent_with(pieces({"days": 12})), Draft)
    assert drafts == [{}, {"days": 1}, {"days": 12}, {"days": 12}]
    schema = {"type": "object", "properties": {"title": {"type": "string"}}}
    assert (await partials_of(agent_with(pieces({"title": "Rome"})), schema))[-2:] == [{"title": "Rome"}] * 2


async def test_text_that_is_not_json_yields_nothing_and_raises_nothing() -> None:
    broken = ['{"title": "It" oops', "[[[[", "null", '"x"', "{" * 9_000]
    model = ScriptedChatModel([*(pieces(text, f"{n}", 3_000) for n, text in enumerate(broken)), "I give up."])
    agent = Agent("a", model=model, react_config=ReActConfig(max_form_attempts=6))
    assert [trip for trip in await partials_of(agent, Trip) if trip.title not in ("", "It")] == []


async def test_an_answer_that_does_not_fit_starts_again() -> None:
    wrong = pieces({"title": "Wrong", "stops": 7})
    partials = await partials_of(agent_with(wrong, pieces({"title": "Right"}, "2")), Trip)

    titles = [trip.title for trip in partials]
    assert titles.index("Wrong") < titles.index("R")
    assert titles[-1] == "Right"


async def test_an_attempt_that_is_given_up_starts_again() -> None:
    first = [*pieces('{"title": "Lost'), Transient("cut")]
    retry = RetryMiddleware(1, initial_delay=0)
    partials = await partials_of(agent_with(first, pieces({"title": "Found"}, "2"), middlewares=[retry]), Trip)

    titles = [trip.title for trip in partials]
    assert titles.index("Lost") < titles.index("F")
    assert "LostFound" not in titles
    assert titles[-1] == "Found"


async def test_the_last_one_is_what_a_layer_answers() -> None:
    class Rename(MiddlewareBase):
        async def on_reply(self, agent: Any, input_kwargs: Any, next_handler: Any) -> Any:
            async for item in next_handler():
                if isinstance(item, Msg):
                    item.structured_output = {"title": "Changed", "stops": []}
                yield item

    partials = await partials_of(agent_with(pieces({"title": "Italy"}), middlewares=[Rename()]), Trip)
    assert [partials[-2].title, partials[-1].title] == ["Italy", "Changed"]


@pytest.mark.parametrize("schema", [list[str], {"type": "object"}])
async def test_a_form_of_a_layer_is_unwrapped_as_its_answer_is(schema: Any) -> None:
    class AskForList(MiddlewareBase):
        async def on_reply(self, agent: Any, input_kwargs: Any, next_handler: Any) -> Any:
            async for item in next_handler(structured_schema=list[str]):
                yield item

    agent = agent_with(pieces({"value": ["Rome"]}, size=4), middlewares=[AskForList()])
    assert await partials_of(agent, schema) == [[""], ["Rome"], ["Rome"]]


async def test_a_reply_without_an_answer_has_no_last_one() -> None:
    agent = agent_with("Seven.", "Seven.", "Seven.")
    assert await partials_of(agent, Trip) == []
    with pytest.raises(UsageError, match=r"reply_stream\(inputs, MyType\)\.partial\(\)"):
        agent.reply_stream("go").partial()


async def test_a_reader_that_leaves_ends_the_reply() -> None:
    agent = agent_with(pieces(TRIP), "Hello.")
    async with agent.reply_stream("go", Trip).partial() as partials:
        async for _ in partials:
            break
    async for _ in agent_with(pieces(TRIP)).reply_stream("go", Trip).partial():
        break
    with anyio.CancelScope() as scope:
        async for _ in agent_with(pieces(TRIP)).reply_stream("go", Trip).partial():
            scope.cancel()
            await anyio.lowlevel.checkpoint()
    assert scope.cancelled_caught
    assert (await agent.reply(UserMsg("user", "Hi"))).get_text_content() == "Hello."


async def test_a_second_reader_gets_the_rest() -> None:
    async with agent_with(pieces(TRIP)).reply_stream("go", Trip) as stream:
        first = await anext(stream.partial())
        rest = [trip async for trip in stream.partial()]
        assert first.title == ""
        assert rest == [stream.message.structured_output]


def test_parsing_reads_a_long_answer_a_bounded_number_of_times(monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: list[int] = []

    class Form(AnswerForm):
        def load_partial(self, text: bytes) -> Any:
            parsed.append(len(text))
            return super().load_partial(text)

    answer = PartialAnswer(Form(Draft))
    answer.read(ToolCallStartEvent("r", "1", STRUCTURED_OUTPUT))
    text = json.dumps({"title": "x" * 100_000})
    for start in range(0, len(text), 4):
        answer.read(ToolCallDeltaEvent("r", "1", text[start : start + 4]))
    assert sum(parsed) < 18 * len(text)
    assert len(answer.value["title"]) > 0.93 * 100_000
