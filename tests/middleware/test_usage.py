"""Usage counts tokens and what they cost: row 17 of the fault table."""

from decimal import Decimal
from typing import Any

import anyio
import pytest

from agentrt import Agent, AgentState
from agentrt.errors import MiddlewareConfigError, Transient
from agentrt.message import TextBlock
from agentrt.middleware import MiddlewareBase, ModelFallbackMiddleware, RetryMiddleware, UsageMiddleware
from agentrt.model import ChatResponse, ChatUsage, ScriptedChatModel
from tests.loop.helpers import add, agent_of, call, saved_state
from tests.middleware.fake_time import Least

PRICES = {"scripted": (2, 10, 1), "second": (20, 100)}


def answer(input_tokens: int, output_tokens: int, cached: int = 0, content: Any = None) -> ChatResponse:
    return ChatResponse(content or [TextBlock("Hello.")], usage=ChatUsage(input_tokens, output_tokens, cached))


@pytest.fixture
def usage() -> UsageMiddleware:
    return UsageMiddleware(PRICES)


@pytest.mark.parametrize("stream", [True, False])
async def test_usage_is_counted_per_reply_conversation_and_in_total(stream: bool, usage: UsageMiddleware) -> None:
    script = [
        answer(100, 10, content=[call("1", "add", a=1, b=2)]),
        answer(300, 20, 100),
        answer(1_000, 0),
        answer(7, 7),
    ]
    agent = agent_of([], add, middlewares=[usage])
    agent.model = ScriptedChatModel(script, stream=stream)
    await agent.reply("go")
    assert usage.of_reply(agent).tokens == ChatUsage(400, 30, 100)
    assert usage.of_reply(agent).cost == pytest.approx((300 * 2 + 30 * 10 + 100 * 1) / 1e6)
    await agent.reply("go on")
    assert usage.of_reply(agent).tokens == ChatUsage(1_000, 0)
    assert usage.of_conversation(agent).tokens == ChatUsage(1_400, 30, 100)
    await agent.with_state(AgentState()).reply("another")
    total = usage.total()
    assert (total.calls, total.tokens) == (4, ChatUsage(1_407, 37, 100))
    assert usage.of_conversation(agent).calls == 3


async def test_a_model_without_a_price_makes_the_cost_none() -> None:
    usage = UsageMiddleware({"another": (1, 1)})
    agent = agent_of([answer(100, 10)], middlewares=[usage])
    assert usage.of_reply(agent).cost == 0.0
    await agent.reply("go")
    reports = (usage.of_reply(agent), usage.of_conversation(agent), usage.total())
    assert [report.cost for report in reports] == [None] * 3
    assert usage.total().tokens == ChatUsage(100, 10)


async def test_an_unknown_price_does_not_hide_the_other_models_costs() -> None:
    usage = UsageMiddleware({"second": (20, 100)})
    first = ScriptedChatModel([answer(1, 1), Transient("503")])
    second = ScriptedChatModel([answer(100, 10)], model="second")
    agent = Agent("tester", model=first, middlewares=[ModelFallbackMiddleware(second), usage])
    await agent.reply("go")
    await agent.reply("go on")
    report = usage.of_conversation(agent)
    assert report.cost is None
    assert {name: (model_report.calls, model_report.cost) for name, model_report in report.models.items()} == {
        "scripted": (1, None),
        "second": (1, pytest.approx((100 * 20 + 10 * 100) / 1e6)),
    }


async def test_unreported_tokens_are_estimated_and_marked(usage: UsageMiddleware) -> None:
    agent = agent_of([ChatResponse([TextBlock("x" * 400)])], middlewares=[usage])
    await agent.reply("go")
    report = usage.of_reply(agent)
    assert report.tokens.estimated
    assert report.tokens.output_tokens == pytest.approx(100, abs=2)
    assert report.cost is not None
    assert report.cost > 0


@pytest.mark.parametrize("stream", [True, False])
async def test_a_replayed_answer_was_counted_when_it_was_paid_for(stream: bool, usage: UsageMiddleware) -> None:
    replayed = ChatResponse([TextBlock("Hello.")], usage=ChatUsage(100, 10, replayed=True))
    agent = agent_of([], middlewares=[usage])
    agent.model = ScriptedChatModel([answer(7, 3), replayed], stream=stream)
    await agent.reply("go")
    message = await agent.reply("go on")
    assert usage.of_conversation(agent).tokens == ChatUsage(7, 3)
    assert (usage.of_reply(agent).calls, usage.of_reply(agent).cost) == (0, 0.0)
    assert message.usage == ChatUsage()


async def test_an_answer_counts_if_it_was_begun(usage: UsageMiddleware) -> None:
    layers = [RetryMiddleware(random=Least()), usage]
    agent = agent_of([Transient("503"), ["x" * 400, Transient("cut")], answer(100, 10)], middlewares=layers)
    await agent.reply("go")
    report = usage.of_reply(agent)
    assert report.calls == 2
    assert report.tokens.estimated
    assert report.tokens.output_tokens == pytest.approx(110, abs=2)


async def test_an_abandoned_reply_counts_with_what_it_streamed(usage: UsageMiddleware) -> None:
    agent = agent_of(["one two three"], middlewares=[usage])
    async with agent.reply_stream("go") as events:
        async for event in events:
            if event.type == "TEXT_BLOCK_DELTA":
                break
    assert usage.total().calls == 1
    assert usage.total().tokens.estimated


async def test_the_count_continues_after_the_state_is_loaded(usage: UsageMiddleware) -> None:
    agent = agent_of([answer(100, 10)], middlewares=[usage])
    await agent.reply("go")
    other = UsageMiddleware(PRICES)
    again = agent_of([answer(1, 1)], middlewares=[other], state=saved_state(agent))
    await again.reply("go on")
    assert other.of_conversation(again).tokens == ChatUsage(101, 11)
    assert other.of_reply(again).tokens == other.total().tokens == ChatUsage(1, 1)


async def test_concurrent_conversations_are_counted_apart_and_together(usage: UsageMiddleware) -> None:
    agents = [agent_of([answer(number, 1)], middlewares=[usage]) for number in (10, 20, 30)]
    async with anyio.create_task_group() as group:
        for agent in agents:
            group.start_soon(agent.reply, "go")
    assert [usage.of_conversation(agent).tokens.input_tokens for agent in agents] == [10, 20, 30]
    assert usage.total().tokens == ChatUsage(60, 3)


@pytest.mark.parametrize("price", [1, (1,), (1, 2, 3, 4), (1, -1), ("1", 2), "12"])
def test_invalid_prices_are_refused(price: Any) -> None:
    with pytest.raises(MiddlewareConfigError, match="'m'"):
        UsageMiddleware({"m": price})


@pytest.mark.parametrize("is_outermost", [True, False])
async def test_each_attempt_counts_wherever_usage_stands(is_outermost: bool, usage: UsageMiddleware) -> None:
    attempts = [ModelFallbackMiddleware([ScriptedChatModel([answer(7, 3)])]), RetryMiddleware(1, random=Least())]
    layers = [usage, *attempts] if is_outermost else [*attempts, usage]
    broken = ["one two three", Transient("cut")]
    await agent_of([broken, broken], middlewares=layers).reply("go")
    assert usage.total().calls == 3


async def test_an_answer_of_a_layer_counts_nothing(usage: UsageMiddleware) -> None:
    class Answering(MiddlewareBase):
        async def on_model_call(self, agent: Any, input_kwargs: Any, next_handler: Any) -> ChatResponse:
            return ChatResponse([TextBlock("Hello.")], usage=ChatUsage(100, 10))

    await agent_of([], middlewares=[Answering(), usage]).reply("go")
    assert usage.total().calls == 0


async def test_the_cost_of_a_call_is_asked_where_there_is_no_price() -> None:
    asked = []

    def cost_of(model: Any, usage: ChatUsage) -> Decimal:
        asked.append((model.model, usage.input_tokens))
        return Decimal("0.5")

    usage = UsageMiddleware(PRICES, cost_of=cost_of)
    agent = agent_of([answer(100, 10)], middlewares=[usage])
    await agent.reply("go")
    assert asked == []
    agent.model = ScriptedChatModel([answer(3, 4), answer(5, 6)], model="third")
    await agent.reply("go")
    await agent.reply("go")
    assert asked == [("third", 3), ("third", 5)]
    assert usage.of_reply(agent).cost == 0.5
    assert usage.of_conversation(agent).models["third"].cost == 1.0
    assert usage.total().cost == pytest.approx(1.0 + (100 * 2 + 10 * 10) / 1e6)


@pytest.mark.parametrize("last", [None, "free", ZeroDivisionError()])
async def test_a_cost_that_is_not_known_makes_the_sum_none(last: Any, caplog: pytest.LogCaptureFixture) -> None:
    costs = iter([1.0, last, 1.0])

    def cost_of(model: Any, usage: ChatUsage) -> Any:
        cost = next(costs)
        if isinstance(cost, Exception):
            raise cost
        return cost

    usage = UsageMiddleware(cost_of=cost_of)
    agent = agent_of([answer(1, 1)] * 3, middlewares=[usage])
    for expected in (1.0, None, None):
        await agent.reply("go")
        assert usage.of_conversation(agent).cost == expected
    assert len(caplog.records) == (last is not None)


async def test_the_cost_of_calls_is_saved_with_the_conversation() -> None:
    usage = UsageMiddleware(cost_of=lambda model, usage: 0.25)
    agent = agent_of([answer(1, 1)], middlewares=[usage])
    await agent.reply("go")
    state = saved_state(agent)
    usage = UsageMiddleware(cost_of=lambda model, usage: 0.5)
    later = Agent("tester", model=ScriptedChatModel([answer(1, 1)]), middlewares=[usage], state=state)
    await later.reply("go")
    assert usage.of_conversation(later).cost == 0.75


def test_a_cost_that_is_not_a_function_is_refused() -> None:
    with pytest.raises(MiddlewareConfigError, match=r"cost_of=...\) must be a function .* not 'genai-prices': give"):
        UsageMiddleware(cost_of="genai-prices")  # type: ignore[arg-type]


# Of agents that other agents ask


def child_of(*answers: Any, name: str = "child", middlewares: Any = ()) -> Agent:
    return Agent(name, model=ScriptedChatModel(list(answers)), middlewares=list(middlewares))


def asks(*names: str) -> ChatResponse:
    return answer(1, 0, content=[call(f"k{index}", name, query="?") for index, name in enumerate(names)])


async def test_usage_of_children_counts_in_each_ancestor_once_in_all(usage: UsageMiddleware) -> None:
    leaf = child_of(answer(100, 0), answer(100, 0), name="leaf")
    child = child_of(asks("leaf"), answer(10, 0), asks("leaf"), answer(10, 0))
    child.toolkit.register_tool_function(leaf.as_tool("Answers."))
    boss = child_of(asks("child"), answer(1000, 0), asks("child"), answer(1000, 0), name="boss", middlewares=[usage])
    boss.toolkit.register_tool_function(child.as_tool("Answers."))
    await boss.reply("go")
    assert usage.of_reply(boss).tokens.input_tokens == 1 + 1 + 100 + 10 + 1000
    assert usage.of_reply(boss).calls == usage.total().calls == 5
    await boss.reply("go on")
    assert usage.of_reply(boss).calls == 5
    assert usage.of_conversation(boss).calls == usage.total().calls == 10
    assert usage.of_conversation(boss).cost == usage.total().cost == pytest.approx(2 * 1112 * 2 / 1e6)


@pytest.mark.parametrize("stream", [True, False])
async def test_usage_of_children_side_by_side_is_added_up(stream: bool) -> None:
    usage = UsageMiddleware()
    children = [child_of(answer(10 * number, 0), name=f"child{number}") for number in (1, 2, 3)]
    boss = child_of(asks("child1", "child2", "child3"), answer(1, 0), name="boss", middlewares=[usage])
    boss.model.stream = stream
    for child in children:
        boss.toolkit.register_tool_function(child.as_tool("Answers."))
    await boss.reply("go")
    assert usage.of_reply(boss).tokens.input_tokens == usage.total().tokens.input_tokens == 62
    assert usage.of_reply(boss).calls == 5


async def test_without_inheritance_a_child_is_not_counted() -> None:
    usage = UsageMiddleware()
    boss = child_of(asks("child"), answer(1, 0), name="boss", middlewares=[usage])
    boss.toolkit.register_tool_function(child_of(answer(10, 0)).as_tool("Answers.", inherit=False))
    await boss.reply("go")
    assert usage.of_reply(boss).calls == usage.total().calls == 2


async def test_a_childs_own_count_is_its_own() -> None:
    of_boss, of_child = UsageMiddleware(), UsageMiddleware()
    child = child_of(answer(10, 0), middlewares=[of_child])
    boss = child_of(asks("child"), answer(1, 0), name="boss", middlewares=[of_boss])
    boss.toolkit.register_tool_function(child.as_tool("Answers."))
    await boss.reply("go")
    assert of_boss.of_reply(boss).calls == 3
    assert of_child.total().calls == 1


async def test_an_agent_asked_by_a_function_counts_as_well() -> None:
    usage = UsageMiddleware()
    expert = child_of(answer(10, 0), middlewares=[usage], name="expert")

    async def ask() -> str:
        return (await expert.reply("?")).get_text_content() or ""

    boss = agent_of([answer(1, 0, content=[call("1", "ask")]), answer(1, 0)], ask, middlewares=[usage])
    await boss.reply("go")
    assert usage.of_reply(boss).calls == 3
    assert usage.of_reply(expert).calls == usage.of_conversation(expert).calls == 1


async def test_what_a_tool_leaves_behind_is_not_of_the_reply() -> None:
    usage = UsageMiddleware()
    expert = child_of(answer(10, 0), middlewares=[usage], name="expert")
    may_ask = anyio.Event()

    async with anyio.create_task_group() as group:

        async def ask_later() -> None:
            await may_ask.wait()
            await expert.reply("?")

        async def begin() -> str:
            group.start_soon(ask_later)
            return "begun"

        script = [answer(1, 0, content=[call("1", "begin")]), answer(1, 0), answer(1, 0)]
        boss = agent_of(script, begin, middlewares=[usage])
        await boss.reply("go")
        await boss.reply("go on")
        assert usage.of_reply(boss).calls == 1
        may_ask.set()
    assert usage.of_reply(boss).calls == 1
    assert usage.of_conversation(boss).calls == usage.total().calls == 4
