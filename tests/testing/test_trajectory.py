"""A trajectory says what an agent did, and a comparison says where it was something else."""

from typing import Any

import pytest

from agentrt import Agent
from agentrt.errors import ConfigError
from agentrt.message import AssistantMsg, TextBlock, ToolCallBlock, UserMsg
from agentrt.testing import answer, assert_trajectory
from agentrt.testing import call as calls
from agentrt.tool import FunctionTool
from tests.loop.helpers import add, agent_of, call


async def replied() -> Agent:
    script = [
        [TextBlock("Let me see."), call("1", "add", a=1, b=2), call("2", "add", a=3, b=4)],
        [call("3", "add", a=3, b=7)],
        "It is 10.",
    ]
    agent = agent_of(script, add)
    await agent.reply("1 + 2 + 3 + 4?")
    return agent


ALL = [calls("add", a=1, b=2), calls("add", a=3, b=4), calls("add", a=3, b=7), answer("It is 10.")]
FITTING: list[tuple[str, list[Any]]] = [
    ("exact", ALL),
    ("exact", [calls("add"), calls("add", b=4), calls("add", a=lambda a: a > 2), answer(contains="10")]),
    ("exact", [*ALL[:3], answer(matches=r"is \d+")]),
    ("ordered", [ALL[0], ALL[3]]),
    ("ordered", []),
    ("unordered", ALL[::-1]),
    ("subset", [ALL[3], ALL[1]]),
    ("subset", [calls("add"), calls("add", a=3), calls("add", a=3, b=4)]),  # the first must leave the others theirs
]
WRONG: list[tuple[str, list[Any]]] = [
    ("exact", ALL[::-1]),
    ("exact", ALL[:3]),
    ("exact", [*ALL, answer()]),
    ("ordered", [ALL[3], ALL[0]]),
    ("unordered", ALL[1:]),
    ("unordered", [calls("add"), calls("add"), calls("add"), calls("add")]),
    ("subset", [calls("add", a=1), calls("add", b=2)]),
    ("subset", [calls("add", c=None)]),
    ("subset", [calls("remove")]),
    ("subset", [answer("10")]),
    ("subset", [answer(contains="Let me see")]),
    ("subset", [answer(matches="^10")]),
]


@pytest.mark.parametrize(("order", "expected"), FITTING)
async def test_expected_steps_that_happened_pass(order: Any, expected: list[Any]) -> None:
    assert_trajectory(await replied(), expected, order=order)


@pytest.mark.parametrize(("order", "expected"), WRONG)
async def test_steps_that_did_not_happen_fail(order: Any, expected: list[Any]) -> None:
    with pytest.raises(AssertionError) as failure:
        assert_trajectory(await replied(), expected, order=order)
    assert "call('add', {'a': 1, 'b': 2})\n" in str(failure.value).partition("happened:")[2]
    for step in expected:
        assert str(step) in str(failure.value)


async def test_a_reply_that_waits_has_taken_its_steps() -> None:
    agent = agent_of([[call("1", "add", a=1, b=2)]], FunctionTool(add, ask=True))
    await agent.reply("1 + 2?")
    assert_trajectory(agent, [calls("add", a=1, b=2)])


def test_messages_may_be_given_in_place_of_an_agent() -> None:
    message = AssistantMsg("a", [ToolCallBlock("1", "look", "{broken"), TextBlock("Sunny."), TextBlock("Warm.")])
    assert_trajectory(message, [calls("look"), answer("Sunny.\nWarm.")])
    assert_trajectory([UserMsg("Weather?"), message], [calls("look"), answer()])
    assert_trajectory([], [])
    with pytest.raises(AssertionError, match=r"call\('look', '{broken'\)"):
        assert_trajectory(message, [calls("look", city="Rome"), answer()])


@pytest.mark.parametrize("expected", [["add"], [UserMsg("hi")], [None]])
def test_other_steps_are_refused(expected: Any) -> None:
    with pytest.raises(ConfigError, match=r"expects call\(...\) and answer\(...\), not"):
        assert_trajectory([], expected)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: assert_trajectory([], calls("add")), r"expects a list of steps, not .*write \[call"),  # type: ignore[arg-type]
        (lambda: assert_trajectory(5, []), "takes an Agent or messages, not 5"),  # type: ignore[arg-type]
        (lambda: assert_trajectory(["Hi"], []), "takes an Agent or messages"),  # type: ignore[list-item]
        (lambda: calls(5), "takes the name of a tool, not 5"),  # type: ignore[arg-type]
        (lambda: answer(contains=5), "takes str, not 5"),  # type: ignore[arg-type]
        (lambda: answer(matches="("), "is not a pattern of `re`"),
    ],
)
def test_what_cannot_be_compared_is_refused(make: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make()


def test_another_order_is_refused() -> None:
    with pytest.raises(ConfigError, match="must be one of 'exact', 'ordered', 'unordered', 'subset', not 'any'"):
        assert_trajectory([], [], order="any")  # type: ignore[arg-type]
