"""All shipped middlewares together, in the order that the catalogue recommends, while models and tools fail."""

from itertools import permutations
from typing import Any

import anyio
import pytest

from agentrt import Agent, AgentState, Toolkit
from agentrt.errors import MiddlewareConfigError, RateLimited, Refused, Rejected, Timeout, Transient
from agentrt.event import ToolResultEndEvent
from agentrt.message import ToolCallBlock
from agentrt.middleware import (
    Budget,
    BudgetMiddleware,
    CacheMiddleware,
    CircuitBreakerMiddleware,
    DynamicContextMiddleware,
    GuardrailMiddleware,
    LoggingMiddleware,
    MiddlewareBase,
    ModelFallbackMiddleware,
    RateLimitMiddleware,
    RedactionMiddleware,
    RetryMiddleware,
    TimeoutMiddleware,
    Timing,
    TimingMiddleware,
    ToolRetryMiddleware,
    TracingMiddleware,
    UsageMiddleware,
)
from agentrt.model import ChatModelBase, ScriptedChatModel
from agentrt.testing import InMemoryStateStore, ToolLog, check_every_suspension
from agentrt.tool import FunctionTool
from tests.loop.helpers import call, items_of
from tests.middleware.fake_time import Least, in_jumping_time, rebuilt, retries, text_of


async def passes(value: object, agent: object) -> None: ...


def layers_of(second: ChatModelBase, timings: list[Timing] | None = None) -> list[MiddlewareBase]:
    return [
        TracingMiddleware(),
        LoggingMiddleware(),
        DynamicContextMiddleware("It rains."),
        GuardrailMiddleware(input=passes, output=passes, tool_call=passes, tool_result=passes),
        BudgetMiddleware(conversation=Budget(tokens=1_000_000)),
        RedactionMiddleware(),
        CacheMiddleware(scope="conversation"),
        ModelFallbackMiddleware(second, sticky=True),
        RetryMiddleware(1, random=Least()),
        CircuitBreakerMiddleware(3),
        UsageMiddleware({"scripted": (1, 1)}),
        TimingMiddleware(([] if timings is None else timings).append),
        RateLimitMiddleware(max_concurrency=8),
        TimeoutMiddleware(first_chunk=30, between_chunks=30, total=60),
        ToolRetryMiddleware(random=Least()),
    ]


def look_up() -> FunctionTool:
    runs = 0

    async def look(city: str) -> str:
        nonlocal runs
        runs += 1
        if runs % 2:
            raise ConnectionError("the first run always fails")
        return f"sunny in {city}"

    return FunctionTool(look, is_read_only=True)


FAILURES: list[Any] = [
    Transient("503"),
    RateLimited(retry_after=0.0),
    Timeout("slow"),
    ["half ", Transient("cut")],
    ["half ", call("9", "look", city="Nowhere"), Timeout("idle")],
    [RateLimited()],
]


@pytest.mark.parametrize("stream", [True, None])
@pytest.mark.parametrize("failure", FAILURES)
async def test_one_failure_in_each_round_is_repaired(failure: Any, stream: bool | None) -> None:
    timings: list[Timing] = []
    script = [failure, [call("1", "look", city="Beijing")], failure, "Sunny."]
    second = ScriptedChatModel([], model="second")
    layers = layers_of(second, timings)
    agent = Agent("tester", "", ScriptedChatModel(script, stream=stream), Toolkit(tools=[look_up()]), layers)
    items = await items_of(agent)
    assert text_of(agent) == "Sunny."
    assert rebuilt(items).content == agent.state.context[-1].content
    assert [event.state for event in items if isinstance(event, ToolResultEndEvent)] == ["success"]
    assert len(retries(items)) == 2
    assert [timing.ended for timing in timings if timing.kind == "model_call"] == ["error", "ok"] * 2
    assert second.calls == []


@pytest.mark.parametrize("failure", [*FAILURES, Rejected("quota")])
async def test_a_failing_model_is_replaced_and_no_longer_called(failure: Any) -> None:
    first = ScriptedChatModel([failure, failure])
    if isinstance(failure, Rejected):
        first = ScriptedChatModel([failure])
    second = ScriptedChatModel([[call("1", "look", city="Beijing")], "Sunny.", "Still sunny."], model="second")
    agent = Agent("tester", "", first, Toolkit(tools=[look_up()]), layers_of(second))
    items = await items_of(agent)
    assert rebuilt(items).content == agent.state.context[-1].content
    assert (await agent.reply("And now?")).get_text_content() == "Still sunny."
    usage = next(layer for layer in agent.chains.middlewares if isinstance(layer, UsageMiddleware))
    assert usage.of_conversation(agent).models["second"].calls == 3
    assert usage.of_conversation(agent).cost is None


async def test_a_refused_request_is_raised_unchanged() -> None:
    error = Refused("filtered")
    agent = Agent("tester", model=ScriptedChatModel([error]), middlewares=layers_of(ScriptedChatModel(["x"])))
    with pytest.raises(Refused) as raised:
        await agent.reply("go")
    assert raised.value is error


async def test_concurrent_conversations_over_one_list_do_not_mix() -> None:
    second = ScriptedChatModel(["spare"] * 9, model="second")

    def answer(messages: Any, tools: Any) -> Any:
        question = messages[-1].get_text_content()
        return ["half ", Transient("cut")] if int(question) % 3 == 0 else f"answer {question}"

    first = ScriptedChatModel([answer] * 40)
    layers = layers_of(second)
    layers[9] = CircuitBreakerMiddleware(99)
    agent = Agent("tester", model=first, middlewares=layers)
    conversations = [agent.with_state(AgentState()) for _ in range(9)]
    async with anyio.create_task_group() as group:
        for number, conversation in enumerate(conversations):
            group.start_soon(conversation.reply, str(number))
    answers = [text_of(conversation) for conversation in conversations]
    assert answers == ["spare" if number % 3 == 0 else f"answer {number}" for number in range(9)]


@in_jumping_time
async def test_a_cancellation_in_any_wait_spares_the_next_reply() -> None:
    for failure in (RateLimited(retry_after=90), ["half ", RateLimited(retry_after=90)]):
        layers = layers_of(ScriptedChatModel([]))
        agent = Agent("tester", model=ScriptedChatModel([failure, "hello"]), middlewares=layers)
        with anyio.move_on_after(10) as scope:
            await agent.reply("go")
        assert scope.cancelled_caught
        assert (await agent.reply("again")).get_text_content() == "hello"


@pytest.mark.slow
async def test_a_fault_anywhere_leaves_a_valid_conversation() -> None:
    def make_agent(log: ToolLog) -> Agent:
        async def look(city: str) -> str:
            return f"sunny in {city}"

        script = [["half ", Transient("cut")], [ToolCallBlock("1", "look", '{"city": "Beijing"}')], "Sunny.", "Sunny."]
        layers = layers_of(ScriptedChatModel([]))
        # The harness continues with a model of its own, which a sticky conversation would never ask.
        layers[7] = ModelFallbackMiddleware(ScriptedChatModel(["spare"] * 9, model="second"))
        return Agent(
            "tester",
            model=ScriptedChatModel(script),
            toolkit=Toolkit(tools=[log.watch(look)]),
            middlewares=layers,
            state_store=InMemoryStateStore(),
        )

    await check_every_suspension(make_agent, ["What is the weather in Beijing?"], at_least=10)


@pytest.mark.parametrize("swapped", list(permutations([0, 3, 4, 6, 7, 8, 9, 12, 13], 2)))
def test_the_layers_around_a_model_call_have_one_valid_order(swapped: tuple[int, int]) -> None:
    layers = layers_of(ScriptedChatModel([]))
    one, other = swapped
    layers[one], layers[other] = layers[other], layers[one]
    with pytest.raises(MiddlewareConfigError, match=r"must (wrap|be wrapped by) .*: put "):
        Agent("tester", model=ScriptedChatModel([]), middlewares=layers)
