"""One instance of each shipped middleware, with options that let the kit's conversations pass."""

import logging
from collections.abc import Callable
from itertools import repeat
from pathlib import Path
from typing import Any

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import agentrt.middleware as shipped
from agentrt import Msg
from agentrt.memory import LongTermMemoryBase
from agentrt.rag import KnowledgeBase, SQLiteTextStore
from agentrt.testing import ScriptedChatModel
from agentrt.tool import ToolFlow, ToolResponse


class Notes(LongTermMemoryBase):
    async def record(self, msgs: list[Msg], **options: object) -> None: ...

    async def record_to_memory(self, thinking: str, content: list[str], **options: object) -> ToolResponse:
        return ToolResponse("Noted.")

    async def retrieve_from_memory(self, keywords: list[str], limit: int = 5, **options: object) -> ToolResponse:
        return ToolResponse("It rained.")

    async def retrieve(self, msg: object, limit: int = 5, **options: object) -> str:
        return "It rained."


def tracing() -> shipped.MiddlewareBase:
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(InMemorySpanExporter()))
    return shipped.TracingMiddleware(tracer_provider=provider, meter_provider=MeterProvider([InMemoryMetricReader()]))


def fallback() -> shipped.MiddlewareBase:
    return shipped.ModelFallbackMiddleware(ScriptedChatModel(repeat("spare"), model="second"), sticky=True)


def guardrail() -> shipped.MiddlewareBase:
    async def passes(value: object, agent: object) -> None: ...

    return shipped.GuardrailMiddleware(input=passes, tool_call=passes, tool_result=passes, output=passes)


def rag() -> shipped.MiddlewareBase:
    return shipped.RAGMiddleware(
        KnowledgeBase("handbook", "How we work.", SQLiteTextStore(":memory:")), "both", rewrite=True
    )


def rate_limit() -> shipped.MiddlewareBase:
    return shipped.RateLimitMiddleware(requests_per_minute=1e9, tokens_per_minute=1e12, max_concurrency=8)


def budget(**options: Any) -> shipped.MiddlewareBase:
    """Budgets of every kind, large enough not to be used up."""
    limits: dict[str, Any] = {"tokens": 1e9, "cost": 1e9, "model_calls": 10**9, "tool_calls": 10**9, "seconds": 1e6}
    every = shipped.Budget(**limits)
    owner = shipped.Budget(per="day", **limits)
    return shipped.BudgetMiddleware(
        reply=every, conversation=every, owner=owner, owner_id="ann", prices=lambda model, usage: 0.1, **options
    )


class AllowAll:
    def intercept(self, context: dict[str, Any]) -> dict[str, Any]:
        return {"decision": "allow"}


SHIPPED: dict[type[shipped.MiddlewareBase], Callable[[], shipped.MiddlewareBase]] = {
    shipped.AgentHooksMiddleware: lambda: shipped.AgentHooksMiddleware([AllowAll()]),
    shipped.BudgetMiddleware: budget,
    shipped.CacheMiddleware: lambda: shipped.CacheMiddleware(tools={"look": 60}, max_entries=4),
    shipped.CircuitBreakerMiddleware: lambda: shipped.CircuitBreakerMiddleware(3),
    shipped.DynamicContextMiddleware: lambda: shipped.DynamicContextMiddleware("It rains."),
    shipped.GuardrailMiddleware: guardrail,
    shipped.HookMiddleware: shipped.HookMiddleware,
    shipped.CompressionMiddleware: lambda: shipped.CompressionMiddleware("window"),
    shipped.KeepLastMiddleware: lambda: shipped.KeepLastMiddleware(2),
    shipped.ToolResultLimitMiddleware: lambda: shipped.ToolResultLimitMiddleware(4, head=2, tail=1),
    shipped.ToolSelectorMiddleware: lambda: shipped.ToolSelectorMiddleware(1),
    shipped.TrimToolResultsMiddleware: lambda: shipped.TrimToolResultsMiddleware(20, keep_last=0),
    shipped.HumanApprovalMiddleware: lambda: shipped.HumanApprovalMiddleware({"*": lambda arguments: False}),
    shipped.InformationFlowMiddleware: lambda: shipped.InformationFlowMiddleware({"*": ToolFlow(trusted_output=True)}),
    shipped.ModelRouterMiddleware: lambda: shipped.ModelRouterMiddleware(
        lambda agent, messages: None, {"other": "rules"}
    ),
    shipped.RefusalMiddleware: lambda: shipped.RefusalMiddleware(ScriptedChatModel(repeat("spare"), model="second")),
    shipped.ToolEmulatorMiddleware: lambda: shipped.ToolEmulatorMiddleware("rules", tools=["no_such_tool"]),
    shipped.ToolErrorMiddleware: lambda: shipped.ToolErrorMiddleware("*", "It failed."),
    shipped.LayerTimes: shipped.LayerTimes,
    shipped.LoggingMiddleware: lambda: shipped.LoggingMiddleware(logging.getLogger("agentrt.tests"), content=True),
    shipped.ModelFallbackMiddleware: fallback,
    shipped.LongTermMemoryMiddleware: lambda: shipped.LongTermMemoryMiddleware(Notes(), owner="ann"),
    shipped.PlanNotebook: shipped.PlanNotebook,
    shipped.TodoMiddleware: shipped.TodoMiddleware,
    shipped.RAGMiddleware: rag,
    shipped.RateLimitMiddleware: rate_limit,
    shipped.RedactionMiddleware: shipped.RedactionMiddleware,
    shipped.RetryMiddleware: lambda: shipped.RetryMiddleware(initial_delay=0),
    shipped.SkillsMiddleware: lambda: shipped.SkillsMiddleware([Path(__file__).parent / "skills" / "folder"]),
    shipped.TimeoutMiddleware: lambda: shipped.TimeoutMiddleware(first_chunk=30, between_chunks=30, total=60),
    shipped.TimingMiddleware: shipped.TimingMiddleware,
    shipped.ToolRetryMiddleware: lambda: shipped.ToolRetryMiddleware(["*"], initial_delay=0),
    shipped.TracingMiddleware: tracing,
    shipped.UsageMiddleware: lambda: shipped.UsageMiddleware({"stage": (1, 2)}),
}
