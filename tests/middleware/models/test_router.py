"""The router has another model answer, and changes nothing of the agent."""

from collections.abc import Callable
from itertools import count
from typing import Any

import anyio
import pytest

from agentrt import Agent
from agentrt.errors import BudgetExceeded, MiddlewareConfigError
from agentrt.message import TextBlock
from agentrt.middleware import Budget, BudgetMiddleware, MiddlewareBase, ModelRouterMiddleware, RetryMiddleware
from agentrt.model import ChatResponse, ScriptedChatModel
from agentrt.testing import check_middleware
from tests.loop.helpers import add, call, elsewhere
from tests.middleware.fake_time import in_jumping_time


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


class Metadata(MiddlewareBase):
    """Keeps what the last piece of each answer has."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    async def on_model_call(self, agent: Agent, input_kwargs: Any, next_handler: Any) -> Any:
        result = await next_handler()
        if isinstance(result, ChatResponse):
            self.seen.append(result.metadata)
            return result
        return self._read(result)

    async def _read(self, stream: Any) -> Any:
        metadata = None
        async for piece in stream:
            metadata = piece.metadata or metadata
            yield piece
        self.seen.append(metadata)


NAMED = ChatResponse([TextBlock("small")], metadata={"model": "small-2026"})


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    ("answer", "choice", "metadata"),
    [
        ("small", "small", {"model": "small"}),
        (NAMED, "small", {"model": "small-2026"}),
        ("small", "own", None),
        ("small", None, None),
    ],
)
async def test_an_answer_names_the_model_that_was_chosen(answer: Any, choice: str, metadata: Any, stream: bool) -> None:
    seen, own = Metadata(), ScriptedChatModel(["own"], stream=stream)
    candidates = {"small": ScriptedChatModel([answer], model="small", stream=stream), "own": own}
    router = ModelRouterMiddleware(lambda agent, messages: choice, candidates)
    await Agent("a", model=own, middlewares=[seen, router]).reply("go")
    assert seen.seen == [metadata]


@pytest.mark.parametrize(("per", "asked"), [("call", 4), ("reply", 2), ("conversation", 1)])
async def test_the_choice_holds_for_its_period(per: Any, asked: int) -> None:
    numbers = count()

    def choose(agent: Agent, messages: Any) -> None:
        next(numbers)

    agent = routed(choose, [[call("1", "add", a=1, b=2)], "three", [call("2", "add", a=1, b=2)], "three"], per=per)
    for _ in range(2):
        await agent.reply("go")
        agent = elsewhere(agent)
    assert next(numbers) == asked


@pytest.mark.parametrize("choose", [lambda *_: 1 / 0, lambda *_: "huge", lambda *_: 7, lambda *_: ["small"]])
async def test_a_failing_choice_gives_the_agents_own_model(choose: Any, caplog: pytest.LogCaptureFixture) -> None:
    assert await ask(routed(choose), "go") == "own"
    assert "ModelRouterMiddleware: choose()" in caplog.text


async def test_a_failed_choice_holds_for_its_reply_alone() -> None:
    results = iter(["failed", "small"])

    def choose(agent: Agent, messages: Any) -> str:
        return next(results)

    agent = routed(choose, [[call("1", "add", a=1, b=2)], "three"], per="conversation")
    assert [await ask(agent, "go") for _ in range(3)] == ["three", "small 0", "small 1"]


@in_jumping_time
async def test_a_choice_that_hangs_is_given_up(caplog: pytest.LogCaptureFixture) -> None:
    async def choose(agent: Agent, messages: Any) -> str:
        await anyio.sleep(1_000)
        return "small"

    started = anyio.current_time()
    assert await ask(routed(choose, timeout=5), "go") == "own"
    assert anyio.current_time() - started == pytest.approx(5)
    assert "choose() took longer than 5 s, so the agent's model answers" in caplog.text


async def test_a_choice_that_uses_up_the_budget_is_no_failure() -> None:
    async def choose(agent: Agent, messages: Any) -> str:
        for _ in range(2):
            await agent.run.ask_model(messages[-1:], purpose="route")
        return "small"

    layers = [ModelRouterMiddleware(choose, models()), BudgetMiddleware(reply=Budget(model_calls=1), on_exceed="raise")]
    agent = Agent("a", model=ScriptedChatModel(["large", "never"]), middlewares=layers)
    with pytest.raises(BudgetExceeded):
        await agent.reply("go")


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
        (lambda: ModelRouterMiddleware("small", models()), "has 'small', which is not callable: write a function"),  # type: ignore[arg-type]
        (lambda: ModelRouterMiddleware(ask, {}), "must be a dict of names and models"),  # type: ignore[arg-type]
        (lambda: ModelRouterMiddleware(ask, ["small"]), "must be a dict of names and models"),  # type: ignore[arg-type]
        (lambda: ModelRouterMiddleware(ask, {"small": 7}), "has 7 for 'small': give a chat model"),  # type: ignore[arg-type,dict-item]
        (lambda: ModelRouterMiddleware(ask, models(), per="turn"), 'must be "reply", "call" or "conversation"'),  # type: ignore[arg-type]
        (lambda: ModelRouterMiddleware(ask, models(), per="cal"), 'did you mean "call"'),  # type: ignore[arg-type]
        (lambda: ModelRouterMiddleware(ask, models(), timeout=0), r"timeout=\.\.\.\) must be .* not 0"),  # type: ignore[arg-type]
        (lambda: ModelRouterMiddleware(ask, models(), timeout=True), r"timeout=\.\.\.\) must be .* not True"),  # type: ignore[arg-type]
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

    await check_middleware(make, faults=["cancel"], every=3)
