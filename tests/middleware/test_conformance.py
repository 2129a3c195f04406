"""Every shipped middleware keeps the contract of the hooks in all situations of the kit."""

import copy
import logging
from collections.abc import Callable
from itertools import repeat
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import agentrt.middleware
from agentrt import Agent, Msg
from agentrt.errors import RateLimited
from agentrt.memory import LongTermMemoryBase
from agentrt.middleware import (
    AgentHooksMiddleware,
    Budget,
    BudgetMiddleware,
    CacheMiddleware,
    CircuitBreakerMiddleware,
    CompressionMiddleware,
    DynamicContextMiddleware,
    GuardrailMiddleware,
    HookMiddleware,
    HumanApprovalMiddleware,
    InformationFlowMiddleware,
    KeepLastMiddleware,
    LoggingMiddleware,
    LongTermMemoryMiddleware,
    MiddlewareBase,
    ModelFallbackMiddleware,
    ModelRouterMiddleware,
    PlanNotebook,
    RAGMiddleware,
    RateLimitMiddleware,
    RedactionMiddleware,
    RefusalMiddleware,
    RetryMiddleware,
    TimeoutMiddleware,
    TimingMiddleware,
    TodoMiddleware,
    ToolEmulatorMiddleware,
    ToolErrorMiddleware,
    ToolResultLimitMiddleware,
    ToolRetryMiddleware,
    ToolSelectorMiddleware,
    TracingMiddleware,
    TrimToolResultsMiddleware,
    UsageMiddleware,
)
from agentrt.rag import KnowledgeBase, SQLiteTextStore
from agentrt.testing import ScriptedChatModel, check_middleware
from agentrt.tool import ToolFlow, ToolResponse


class Notes(LongTermMemoryBase):
    async def record(self, msgs: list[Msg], **options: object) -> None: ...

    async def record_to_memory(self, thinking: str, content: list[str], **options: object) -> ToolResponse:
        return ToolResponse("Noted.")

    async def retrieve_from_memory(self, keywords: list[str], limit: int = 5, **options: object) -> ToolResponse:
        return ToolResponse("It rained.")

    async def retrieve(self, msg: object, limit: int = 5, **options: object) -> str:
        return "It rained."


def tracing() -> MiddlewareBase:
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(InMemorySpanExporter()))
    return TracingMiddleware(tracer_provider=provider, meter_provider=MeterProvider([InMemoryMetricReader()]))


def fallback() -> MiddlewareBase:
    return ModelFallbackMiddleware(ScriptedChatModel(repeat("spare"), model="second"), sticky=True)


def guardrail() -> MiddlewareBase:
    async def passes(value: object, agent: object) -> None: ...

    return GuardrailMiddleware(input=passes, tool_call=passes, tool_result=passes, output=passes)


def rag() -> MiddlewareBase:
    return RAGMiddleware(KnowledgeBase("handbook", "How we work.", SQLiteTextStore(":memory:")), "both", rewrite=True)


def rate_limit() -> MiddlewareBase:
    return RateLimitMiddleware(requests_per_minute=1e9, tokens_per_minute=1e12, max_concurrency=8)


def budget(**options: Any) -> MiddlewareBase:
    """Budgets of every kind, large enough not to be used up."""
    limits: dict[str, Any] = {"tokens": 1e9, "cost": 1e9, "model_calls": 10**9, "tool_calls": 10**9, "seconds": 1e6}
    every = Budget(**limits)
    owner = Budget(per="day", **limits)
    return BudgetMiddleware(
        reply=every, conversation=every, owner=owner, owner_id="ann", prices=lambda model, usage: 0.1, **options
    )


class AllowAll:
    def intercept(self, context: dict[str, Any]) -> dict[str, Any]:
        return {"decision": "allow"}


SHIPPED: dict[type[MiddlewareBase], Callable[[], MiddlewareBase]] = {
    AgentHooksMiddleware: lambda: AgentHooksMiddleware([AllowAll()]),
    BudgetMiddleware: budget,
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
    InformationFlowMiddleware: lambda: InformationFlowMiddleware({"*": ToolFlow(trusted_output=True)}),
    ModelRouterMiddleware: lambda: ModelRouterMiddleware(lambda agent, messages: None, {"other": "rules"}),
    RefusalMiddleware: lambda: RefusalMiddleware(ScriptedChatModel(repeat("spare"), model="second")),
    ToolEmulatorMiddleware: lambda: ToolEmulatorMiddleware("rules", tools=["no_such_tool"]),
    ToolErrorMiddleware: lambda: ToolErrorMiddleware("*", "It failed."),
    LoggingMiddleware: lambda: LoggingMiddleware(logging.getLogger("agentrt.tests"), content=True),
    ModelFallbackMiddleware: fallback,
    LongTermMemoryMiddleware: lambda: LongTermMemoryMiddleware(Notes(), owner="ann"),
    PlanNotebook: PlanNotebook,
    TodoMiddleware: TodoMiddleware,
    RAGMiddleware: rag,
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
@pytest.mark.parametrize("layer", HookMiddleware.__subclasses__())
async def test_hook_middlewares_keep_the_contract(layer):
    def pre(agent, kwargs):
        return dict(kwargs)

    def post(agent, kwargs, output):
        return output

    await check_middleware(lambda: layer({"one": pre}, {"one": post}), faults=[])


@EACH
@pytest.mark.slow
async def test_each_shipped_middleware_keeps_the_contract(make):
    await check_middleware(make, every=2)


@pytest.mark.slow
@pytest.mark.parametrize(
    "make",
    [
        lambda: budget(reserve=True),
        lambda: budget(on_exceed="ask"),
        lambda: budget(on_exceed="raise", warn_at=0, weights=(1, 5, 0)),
        lambda: BudgetMiddleware(reply=Budget(model_calls=2, tool_calls=1)),
        # Of a conversation, it would refuse to compress the history between two replies, too.
        lambda: BudgetMiddleware(reply=Budget(tokens=10, seconds=10), warn_at=None),
    ],
    ids=["reserving", "asking", "raising", "calls used up", "tokens used up"],
)
async def test_budgets_keep_the_contract(make):
    await check_middleware(make, faults=["cancel"], every=3)


@pytest.mark.slow
async def test_the_kit_passes_with_max_concurrency_of_one():
    await check_middleware(lambda: RateLimitMiddleware(max_concurrency=1), faults=[])


def test_all_shipped_middlewares_are_tried():
    shipped = (getattr(agentrt.middleware, name) for name in agentrt.middleware.__all__)
    layers = {value for value in shipped if isinstance(value, type) and issubclass(value, MiddlewareBase)}
    assert layers - {MiddlewareBase} == set(SHIPPED)
