"""The evaluators of other frameworks, each expressed here.

Those of pydantic-evals that judge agents, and the chaos effects of strands-evals: a list of what users look for.
"""

import json
from collections.abc import AsyncGenerator
from dataclasses import replace
from typing import Any

import pytest

from agentrt import MiddlewareBase
from agentrt.errors import ConfigError
from agentrt.evaluation import (
    Case,
    Judge,
    Trial,
    called,
    calls_at_most,
    contains,
    costs_at_most,
    exact,
    final_state,
    fits,
    no_error,
    requests_at_most,
    run_case,
    takes_at_most,
    trajectory,
)
from agentrt.message import TextBlock, ToolCallBlock
from agentrt.model import ChatResponse
from agentrt.testing import answer, cut_result, fail_tool, garble_result
from agentrt.testing import call as step
from agentrt.types import ToolResponse
from tests.evaluation.conftest import answering, call, judge_model


async def search(city: str, stars: int = 3) -> str:
    """Search hotels."""
    return json.dumps({"hotel": f"The {city}", "price": 120})


async def book(hotel: str) -> str:
    """Book a hotel."""
    if hotel == "gone":
        raise ValueError("no room")
    return "booked"


SCRIPT = [
    [call("search", "c1", city="Oslo", stars=4)],
    [call("book", "c2", hotel="gone"), call("book", "c3", hotel="The Oslo")],
    "I booked The Oslo for 120.",
]


async def trial_of(*evaluators: Any, expected: Any = None, script: Any = SCRIPT, faults: Any = ()) -> Trial:
    build = answering(*script, tools=[search, book])
    return await run_case(build, Case("A hotel in Oslo", expected, faults=faults), evaluators)


# pydantic-evals


def nth_arguments(tool: str, place: int, **arguments: Any) -> Any:
    def check(trial: Trial) -> bool:
        uses = [use.arguments for use in trial.tool_uses if use.tool == tool]
        return bool(uses[place] == arguments)

    return check


PEER_EVALUATORS = {
    "ToolCorrectness": (
        trajectory([step("search"), step("book"), step("book"), answer()], "unordered"),
        trajectory([step("search"), step("pay")], "subset"),
    ),
    "ToolCorrectness(allow_extra)": (trajectory([step("book")], "subset"), trajectory([step("pay")], "subset")),
    "ToolCorrectness(include_failed=False)": (
        lambda trial: [use.tool for use in trial.tool_uses if use.state == "success"] == ["search", "book"],
        lambda trial: all(use.state == "success" for use in trial.tool_uses),
    ),
    "TrajectoryMatch(exact)": (
        trajectory([step("search"), step("book"), step("book"), answer()], "exact"),
        trajectory([step("search"), step("book")], "exact"),
    ),
    "TrajectoryMatch(in_order)": (
        trajectory([step("search"), answer()], "ordered"),
        trajectory([step("book"), step("search")], "ordered"),
    ),
    "ArgumentCorrectness(subset)": (
        trajectory([step("search", city="Oslo")], "subset"),
        trajectory([step("search", city="Rome")], "subset"),
    ),
    "ArgumentCorrectness(exact, first)": (
        nth_arguments("search", 0, city="Oslo", stars=4),
        nth_arguments("search", 0, city="Oslo"),
    ),
    "ArgumentCorrectness(last)": (nth_arguments("book", -1, hotel="The Oslo"), nth_arguments("book", -1, hotel="gone")),
    "MaxToolCalls": (calls_at_most(3), calls_at_most(2)),
    "MaxModelRequests": (requests_at_most(3), requests_at_most(2)),
    "MaxDuration": (takes_at_most(600), takes_at_most(0)),
    "Equals": (exact("I booked The Oslo for 120."), exact("I booked The Oslo")),
    "Contains": (contains(["Oslo", "120"]), contains(["Oslo", "130"])),
    "Contains(case)": (contains("OSLO", ignore_case=True), contains("OSLO")),
    "IsInstance": (lambda trial: isinstance(trial.answer, str), fits(dict[str, int])),
    "HasMatchingSpan": (
        lambda trial: any(line["kind"] == "request" for line in trial.run.lines),
        lambda trial: any(line["kind"] == "gap" for line in trial.run.lines),
    ),
    "LLMJudge": (Judge(judge_model(0.9), "Good?", name="judge"), Judge(judge_model(0.1), "Good?", name="judge")),
    "GEval": (
        Judge(judge_model(0.5), "Good?", {0: "bad", 0.5: "fair", 1: "good"}),
        Judge(judge_model(0.5), "Good?", passes_at=0.8),
    ),
}


@pytest.mark.parametrize("name", PEER_EVALUATORS)
async def test_an_evaluator_of_pydantic_evals_is_expressible(name: str) -> None:
    fulfilled, violated = PEER_EVALUATORS[name]
    assert (await trial_of(fulfilled)).passed
    trial = await trial_of(violated)
    assert (trial.passed, trial.error) == (False, None)


# The others of this room.


async def test_the_expected_value_may_be_of_the_case() -> None:
    assert (await trial_of(contains(), expected="The Oslo")).passed
    assert (await trial_of(contains(), expected=["Oslo", "120"])).passed
    assert not (await trial_of(exact(), expected="The Oslo")).passed
    trial = await trial_of(contains(), expected=7)
    assert "contains() needs a str" in str(trial.error)


async def test_calls_are_counted_with_failed_ones() -> None:
    assert (await trial_of(called("book", 2), called("search"), called("pay", 0))).passed
    assert not (await trial_of(called("book", 1))).passed
    assert not (await trial_of(called("pay"))).passed


async def test_a_failed_call_is_an_error() -> None:
    trial = await trial_of(no_error())
    assert trial.verdicts["no_error"].reason == "book failed"
    assert (await trial_of(no_error(), script=["Hello."])).passed


async def test_a_form_is_checked_by_a_type_or_a_schema() -> None:
    script = ['{"hotel": "The Oslo", "price": 120}']
    schema = {"type": "object", "properties": {"price": {"type": "integer", "maximum": 200}}, "required": ["price"]}
    assert (await trial_of(fits(schema), fits(dict[str, str | int]), script=script)).passed
    trial = await trial_of(fits({**schema, "required": ["stars"]}), script=script)
    assert "stars" in trial.verdicts["fits"].reason
    assert "not JSON" in (await trial_of(fits(schema))).verdicts["fits"].reason


async def test_an_unknown_price_is_an_error_of_the_trial() -> None:
    trial = await trial_of(costs_at_most(1))
    assert "price" in str(trial.error)


async def test_a_world_may_be_judged_by_any_verdict() -> None:
    async def check(world: Any) -> dict[str, bool]:
        return {"is_there": world is not None}

    trial = await trial_of(final_state(check))
    assert not trial.verdicts["final_state.is_there"].passed


@pytest.mark.parametrize(
    "make",
    [
        lambda: called(""),
        lambda: called("x", -1),
        lambda: calls_at_most(float("nan")),
        lambda: costs_at_most("1"),
        lambda: final_state("world"),
        lambda: fits({"type": 7}),
        lambda: trajectory([step("x")], "random"),
        lambda: Judge("", "Good?"),
        lambda: Judge(judge_model(), ""),
        lambda: Judge(judge_model(), "Good?", {2: "too good"}),
        lambda: Judge(judge_model(), "Good?", passes_at=float("nan")),
    ],
)
def test_wrong_evaluators_are_refused(make: Any) -> None:
    with pytest.raises(ConfigError):
        make()


# strands-evals


class ChangeResult(MiddlewareBase):
    """A fault of the user's own: a function of the tool's result."""

    rewrites = ()
    inherited = True

    def __init__(self, change: Any) -> None:
        self.change = change

    async def on_acting(self, agent: Any, input_kwargs: Any, next_handler: Any) -> AsyncGenerator[Any, None]:
        async for item in next_handler():
            if isinstance(item, ToolResponse):
                [block] = item.content
                yield replace(item, content=[TextBlock(self.change(block.text))])  # type: ignore[union-attr]


class ChangeAnswer(MiddlewareBase):
    """A fault of the user's own: another answer of the model."""

    rewrites = ()
    inherited = True

    def __init__(self, content: list[Any]) -> None:
        self.content = content

    async def on_model_call(self, agent: Any, input_kwargs: Any, next_handler: Any) -> Any:
        return ChatResponse(self.content, True)


def without_price(text: str) -> str:
    return json.dumps({name: value for name, value in json.loads(text).items() if name != "price"})


TOOL_EFFECTS = {
    "Timeout": (fail_tool("search", text="Tool call timed out"), "Tool call timed out"),
    "NetworkError": (fail_tool("search", text="Network unreachable"), "Network unreachable"),
    "ExecutionError": (fail_tool("search"), "The service is unavailable."),
    "ValidationError": (fail_tool("search", text="Tool input validation failed"), "Tool input validation failed"),
    "TruncateFields": (cut_result("search", 10), '{"hotel": '),
    "RemoveFields": (ChangeResult(without_price), '{"hotel": "The Oslo"}'),
    "CorruptValues": (garble_result("search"), None),
}


@pytest.mark.parametrize("name", TOOL_EFFECTS)
async def test_a_tool_effect_of_strands_evals_is_expressible(name: str) -> None:
    fault, text = TOOL_EFFECTS[name]
    trial = await trial_of(script=[SCRIPT[0], "Done."], faults=[fault])
    [result] = trial.messages[0].get_content_blocks("tool_result")
    assert result.text == text if text else json.dumps({"hotel": "The Oslo", "price": 120}) != result.text
    assert trial.passed


MODEL_EFFECTS = {
    "MalformedJson": [TextBlock('{"hotel": ')],
    "EmptyResponse": [],
    "Confabulation": [TextBlock("I booked a hotel that you never heard of.")],
}


@pytest.mark.parametrize("name", MODEL_EFFECTS)
async def test_a_model_effect_of_strands_evals_is_expressible(name: str) -> None:
    content = MODEL_EFFECTS[name]
    trial = await trial_of(contains("The Oslo"), faults=[ChangeAnswer(content)])
    assert trial.answer == "".join(block.text for block in content)
    assert not trial.passed


def test_a_call_with_broken_json_has_its_text_as_arguments() -> None:
    trial = Trial(Case("x"))
    from agentrt.message import AssistantMsg

    trial.messages = [AssistantMsg("a", [ToolCallBlock("c1", "search", "{")])]
    assert trial.tool_uses[0].arguments == "{"
