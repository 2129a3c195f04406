"""Every shipped middleware keeps the contract of the hooks in all situations of the kit."""

import copy
import logging
from collections.abc import Callable
from itertools import repeat

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import agentrt.middleware
from agentrt import Agent
from agentrt.errors import RateLimited
from agentrt.middleware import (
    CacheMiddleware,
    CircuitBreakerMiddleware,
    CompressionMiddleware,
    DynamicContextMiddleware,
    GuardrailMiddleware,
    HookMiddleware,
    HumanApprovalMiddleware,
    KeepLastMiddleware,
    LoggingMiddleware,
    MiddlewareBase,
    ModelFallbackMiddleware,
    ModelRouterMiddleware,
    RateLimitMiddleware,
    RedactionMiddleware,
    RefusalMiddleware,
    RetryMiddleware,
    TimeoutMiddleware,
    TimingMiddleware,
    ToolEmulatorMiddleware,
    ToolErrorMiddleware,
    ToolResultLimitMiddleware,
    ToolRetryMiddleware,
    ToolSelectorMiddleware,
    TracingMiddleware,
    TrimToolResultsMiddleware,
    UsageMiddleware,
)
from agentrt.testing import ScriptedChatModel, check_middleware


def tracing() -> MiddlewareBase:
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(InMemorySpanExporter()))
    return TracingMiddleware(tracer_provider=provider, meter_provider=MeterProvider([InMemoryMetricReader()]))


def fallback() -> MiddlewareBase:
    return ModelFallbackMiddleware(ScriptedChatModel(repeat("spare"), model="second"), sticky=True)


def guardrail() -> MiddlewareBase:
    async def passes(value: object, agent: object) -> None: ...

    return GuardrailMiddleware(input=passes, tool_call=passes, tool_result=passes, output=passes)


def rate_limit() -> MiddlewareBase:
    return RateLimitMiddleware(requests_per_minute=1e9, tokens_per_minute=1e12, max_concurrency=8)


SHIPPED: dict[type[MiddlewareBase], Callable[[], MiddlewareBase]] = {
    CacheMiddleware: lambda: CacheMiddleware(tools={"look": 60}, max_entries=4),
    CircuitBreakerMiddleware: lambda: CircuitBreakerMiddleware(3),
    DynamicContextMiddleware: lambda: DynamicContextMiddleware("It rains."),
    GuardrailMiddleware: guardrail,
    HookMiddleware: HookMiddleware,
    CompressionMiddleware: lambda: CompressionMiddleware("window"),
    KeepLastMiddleware: lambda: KeepLastMiddleware(2),
    ToolResultLimitMiddleware: lambda: ToolResultLimitMiddleware(4, head=2, tail=1),
    ToolSelectorMiddleware: lambda: ToolSelectorMiddleware(1),
    TrimToolResultsMiddleware: lambda: TrimToolResultsMiddleware(20, keep_last=0),
    HumanApprovalMiddleware: lambda: HumanApprovalMiddleware({"*": lambda arguments: False}),
    ModelRouterMiddleware: lambda: ModelRouterMiddleware(lambda agent, messages: None, {"other": "rules"}),
    RefusalMiddleware: lambda: RefusalMiddleware(ScriptedChatModel(repeat("spare"), model="second")),
    ToolEmulatorMiddleware: lambda: ToolEmulatorMiddleware("rules", tools=["no_such_tool"]),
    ToolErrorMiddleware: lambda: ToolErrorMiddleware("*", "It failed."),
    LoggingMiddleware: lambda: LoggingMiddleware(logging.getLogger("agentrt.tests"), content=True),
    ModelFallbackMiddleware: fallback,
    RateLimitMiddleware: rate_limit,
    RedactionMiddleware: RedactionMiddleware,
    RetryMiddleware: lambda: RetryMiddleware(initial_delay=0),
    TimeoutMiddleware: lambda: TimeoutMiddleware(first_chunk=30, between_chunks=30, total=60),
    TimingMiddleware: TimingMiddleware,
    ToolRetryMiddleware: lambda: ToolRetryMiddleware(["*"], initial_delay=0),
    TracingMiddleware: tracing,
    UsageMiddleware: lambda: UsageMiddleware({"stage": (1, 2)}),
}
EACH = pytest.mark.parametrize("make", SHIPPED.values(), ids=[cls.__name__ for cls in SHIPPED])


@EACH
async def test_an_agent_with_each_can_be_copied_after_a_reply_too(make):
    agent = Agent("a", model=ScriptedChatModel(repeat("Hello.")), middlewares=[make()])
    for _ in range(2):
        copied = copy.deepcopy(agent)
        assert (await copied.reply("Hi.")).get_text_content() == "Hello."
        assert copied.middlewares[0] is not agent.middlewares[0]
        await agent.reply("Hi.")
    assert len(agent.state.context) == 4


def test_a_copy_of_usage_counts_for_itself():
    usage = UsageMiddleware()
    boss = Agent("boss", model=ScriptedChatModel(repeat("Hello.")), middlewares=[usage])
    boss.run_sync("Hi.")
    copied = copy.deepcopy(boss)
    copied.run_sync("Hi.")
    assert usage.total().calls == 1
    assert [layer.total().calls for layer in copied.middlewares] == [2]


async def test_copies_of_an_agent_share_its_rate_limit():
    limit = RateLimitMiddleware(requests_per_minute=1, max_wait=0)
    agent = Agent("a", model=ScriptedChatModel(repeat("Hello.")), middlewares=[limit])
    await agent.reply("Hi.")
    with pytest.raises(RateLimited):
        await copy.deepcopy(agent).reply("Hi.")


@pytest.mark.slow
@EACH
async def test_each_shipped_middleware_keeps_the_contract(make):
    await check_middleware(make, faults=[])


@pytest.mark.slow
@pytest.mark.parametrize("layer", HookMiddleware.__subclasses__())
async def test_hook_middlewares_keep_the_contract(layer):
    def pre(agent, kwargs):
        return dict(kwargs)

    def post(agent, kwargs, output):
        return output

    await check_middleware(lambda: layer({"one": pre}, {"one": post}), faults=[])


@EACH
@pytest.mark.slow
async def test_each_shipped_middleware_survives_a_fault_anywhere(make):
    await check_middleware(make)


async def test_the_kit_passes_with_max_concurrency_of_one():
    await check_middleware(lambda: RateLimitMiddleware(max_concurrency=1), faults=[])


def test_all_shipped_middlewares_are_tried():
    shipped = (getattr(agentrt.middleware, name) for name in agentrt.middleware.__all__)
    layers = {value for value in shipped if isinstance(value, type) and issubclass(value, MiddlewareBase)}
    assert layers - {MiddlewareBase} == set(SHIPPED)
