"""The router has another model answer, and changes nothing of the agent."""

from collections.abc import Callable
from itertools import count
from typing import Any

import pytest

from agentrt import Agent, AgentState
from agentrt.errors import MiddlewareConfigError
from agentrt.middleware import MiddlewareBase, ModelRouterMiddleware, RetryMiddleware
from agentrt.model import ScriptedChatModel
from agentrt.testing import check_middleware
from tests.loop.helpers import add, call


def models() -> dict[str, Any]:
    return {name: ScriptedChatModel([f"{name} {n}" for n in range(9)], model=name) for name in ("small", "large")}


def routed(choose: Any, own: list[Any] | None = None, **options: Any) -> Agent:
    layers = [ModelRouterMiddleware(choose, models(), **options)]
    return Agent("a", model=ScriptedChatModel(own or ["own"] * 9), tools=[add], middlewares=layers)


async def ask(agent: Agent, question: str) -> str | None:
    return (await agent.reply(question)).get_text_content()


async def test_a_function_chooses_the_model_of_each_reply() -> None:
    async def choose(agent: Agent, messages: Any) -> str | None:
        question = messages[-1].get_text_content()
        return {"easy": "small", "hard": "large"}.get(question)

    agent = routed(choose)
    model = agent.model
    assert [await ask(agent, question) for question in ("easy", "hard", "none", "easy")] == [
        "small 0",
        "large 0",
        "own",
        "small 1",
    ]
    assert agent.model is model


@pytest.mark.parametrize(("per", "asked"), [("call", 4), ("reply", 2), ("conversation", 1)])
async def test_the_choice_holds_for_its_period(per: Any, asked: int) -> None:
    numbers = count()

    def choose(agent: Agent, messages: Any) -> None:
        next(numbers)

    agent = routed(choose, [[call("1", "add", a=1, b=2)], "three", [call("2", "add", a=1, b=2)], "three"], per=per)
    for _ in range(2):
        await agent.reply("go")
        agent = agent.with_state(AgentState.model_validate_json(agent.state.model_dump_json()))
    assert next(numbers) == asked


@pytest.mark.parametrize("choose", [lambda *_: 1 / 0, lambda *_: "huge", lambda *_: 7, lambda *_: ["small"]])
async def test_a_failing_choice_gives_the_agents_own_model(choose: Any, caplog: pytest.LogCaptureFixture) -> None:
    assert await ask(routed(choose), "go") == "own"
    assert "ModelRouterMiddleware: choose()" in caplog.text


async def test_a_summary_keeps_the_model_that_it_asks_for() -> None:
    async def choose(agent: Agent, messages: Any) -> str:
        answer = await agent.run.ask_model(messages[-1:], purpose="route")
        return answer.get_text_content() or ""

    agent = routed(choose, ["large"])
    assert await ask(agent, "go") == "large 0"


def test_the_router_stands_outside_of_what_belongs_to_a_model() -> None:
    layers = [RetryMiddleware(), ModelRouterMiddleware(lambda *_: None, models())]
    with pytest.raises(MiddlewareConfigError, match="put ModelRouterMiddleware before RetryMiddleware"):
        Agent("a", model="rules", middlewares=layers)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ModelRouterMiddleware("small", models()), r"choose=\.\.\.\) must be a function"),  # type: ignore[arg-type]
        (lambda: ModelRouterMiddleware(ask, {}), "must be a dict of names and models"),  # type: ignore[arg-type]
        (lambda: ModelRouterMiddleware(ask, ["small"]), "must be a dict of names and models"),  # type: ignore[arg-type]
        (lambda: ModelRouterMiddleware(ask, {"small": 7}), "has 7 for 'small': give a chat model"),  # type: ignore[arg-type,dict-item]
        (lambda: ModelRouterMiddleware(ask, models(), per="turn"), 'must be "reply", "call" or "conversation"'),  # type: ignore[arg-type]
        (lambda: ModelRouterMiddleware(ask, models(), per="cal"), 'did you mean "call"'),  # type: ignore[arg-type]
    ],
)
def test_a_wrong_option_is_refused(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(MiddlewareConfigError, match=message):
        make()


@pytest.mark.slow
@pytest.mark.parametrize("per", ["reply", "call", "conversation"])
async def test_every_period_keeps_the_contract(per: Any) -> None:
    def make() -> MiddlewareBase:
        return ModelRouterMiddleware(lambda agent, messages: None, models(), per=per)

    await check_middleware(make, faults=["cancel"])
