"""The one door to middlewares: the base class, the types of its hooks, and all that ships in `agentrt_middleware`."""

from typing import TYPE_CHECKING

from agentrt._runtime.chain.terms.entries import Bundle, Limited, OnFailure, When
from agentrt._runtime.keywords.moved_names import keep_old_names
from agentrt._runtime.keywords.suggestions import suggest_keywords
from agentrt.agent.installed import InstalledLayer, installed_layers
from agentrt.compat.hook_middleware import HookMiddleware
from agentrt.hooks import (
    ActingOverrides,
    ActingValues,
    AgentChains,
    CheckPermissionOverrides,
    CheckPermissionValues,
    CompressContextOverrides,
    CompressContextValues,
    LayerEntry,
    LayerOutcome,
    LayerRecord,
    MiddlewareBase,
    ModelCallOverrides,
    ModelCallValues,
    NextActing,
    NextCheckPermission,
    NextCompressContext,
    NextModelCall,
    NextObserve,
    NextPrint,
    NextReasoning,
    NextReply,
    ObserveOverrides,
    ObserveValues,
    PrintOverrides,
    PrintValues,
    ReasoningOverrides,
    ReasoningValues,
    ReplyInput,
    ReplyOverrides,
    ReplyValues,
    arrange,
)
from agentrt_middleware.agent_hooks.middleware import AgentHooksMiddleware
from agentrt_middleware.budget.limits import Budget
from agentrt_middleware.budget.middleware import BudgetMiddleware
from agentrt_middleware.budget.redis import RedisBudgetStore
from agentrt_middleware.budget.stores import BudgetStore, MemoryBudgetStore, SQLiteBudgetStore
from agentrt_middleware.cache.middleware import CacheMiddleware
from agentrt_middleware.cache.stores import CacheStore, MemoryCacheStore, RedisCacheStore, SQLiteCacheStore
from agentrt_middleware.circuit_breaker import CircuitBreakerMiddleware
from agentrt_middleware.context.compression import CompressionMiddleware
from agentrt_middleware.context.keep_last import KeepLastMiddleware
from agentrt_middleware.context.tool_selector import ToolSelectorMiddleware
from agentrt_middleware.context.trim_tool_results import TrimToolResultsMiddleware
from agentrt_middleware.dynamic_context import DynamicContextMiddleware
from agentrt_middleware.fallback import ModelFallbackMiddleware
from agentrt_middleware.guardrail.guards import Guard, GuardedCall, Judge, Replace
from agentrt_middleware.guardrail.middleware import GuardrailMiddleware
from agentrt_middleware.information_flow.middleware import InformationFlowMiddleware
from agentrt_middleware.layer_times import LayerTime, LayerTimes
from agentrt_middleware.logging import LoggingMiddleware
from agentrt_middleware.long_term_memory.middleware import LongTermMemoryMiddleware
from agentrt_middleware.models.refusal import RefusalMiddleware
from agentrt_middleware.models.router import ModelRouterMiddleware
from agentrt_middleware.plan.notebook import PlanNotebook
from agentrt_middleware.plan.todo import TodoMiddleware
from agentrt_middleware.rag.middleware import RAGMiddleware, RerankHits
from agentrt_middleware.rate_limit.middleware import RateLimitMiddleware
from agentrt_middleware.rate_limit.redis import RedisLimitStore
from agentrt_middleware.redaction.detectors import Between, Detector, Literals, Pattern
from agentrt_middleware.redaction.middleware import RedactionMiddleware
from agentrt_middleware.redaction.shipped import API_KEY, CARD, EMAIL, IBAN, IP, PHONE, PRIVATE_KEY
from agentrt_middleware.retry import RetryMiddleware
from agentrt_middleware.skills.middleware import SkillsMiddleware
from agentrt_middleware.timeout import TimeoutMiddleware
from agentrt_middleware.timing import Timing, TimingMiddleware
from agentrt_middleware.tool_calls.human_approval import HumanApprovalMiddleware
from agentrt_middleware.tool_calls.question import Answer, Question
from agentrt_middleware.tool_calls.tool_emulator import ToolEmulatorMiddleware
from agentrt_middleware.tool_calls.tool_error import ToolErrorMiddleware
from agentrt_middleware.tool_calls.tool_result_limit import ToolResultLimitMiddleware
from agentrt_middleware.tool_retry import ToolRetryMiddleware
from agentrt_middleware.tracing.middleware import TracingMiddleware
from agentrt_middleware.tracing.otlp import SpanDelivery, setup_tracing
from agentrt_middleware.usage.genai_prices import genai_prices
from agentrt_middleware.usage.middleware import UsageMiddleware, UsageReport

__all__ = [
    "API_KEY",
    "CARD",
    "EMAIL",
    "IBAN",
    "IP",
    "PHONE",
    "PRIVATE_KEY",
    "ActingOverrides",
    "ActingValues",
    "AgentChains",
    "AgentHooksMiddleware",
    "Answer",
    "Between",
    "Budget",
    "BudgetMiddleware",
    "BudgetStore",
    "Bundle",
    "CacheMiddleware",
    "CacheStore",
    "CheckPermissionOverrides",
    "CheckPermissionValues",
    "CircuitBreakerMiddleware",
    "CompressContextOverrides",
    "CompressContextValues",
    "CompressionMiddleware",
    "Detector",
    "DynamicContextMiddleware",
    "Guard",
    "GuardedCall",
    "GuardrailMiddleware",
    "HookMiddleware",
    "HumanApprovalMiddleware",
    "InformationFlowMiddleware",
    "InstalledLayer",
    "Judge",
    "KeepLastMiddleware",
    "LayerEntry",
    "LayerOutcome",
    "LayerRecord",
    "LayerTime",
    "LayerTimes",
    "Limited",
    "Literals",
    "LoggingMiddleware",
    "LongTermMemoryMiddleware",
    "MemoryBudgetStore",
    "MemoryCacheStore",
    "MiddlewareBase",
    "ModelCallOverrides",
    "ModelCallValues",
    "ModelFallbackMiddleware",
    "ModelRouterMiddleware",
    "NextActing",
    "NextCheckPermission",
    "NextCompressContext",
    "NextModelCall",
    "NextObserve",
    "NextPrint",
    "NextReasoning",
    "NextReply",
    "ObserveOverrides",
    "ObserveValues",
    "OnFailure",
    "Pattern",
    "PlanNotebook",
    "PrintOverrides",
    "PrintValues",
    "Question",
    "RAGMiddleware",
    "RateLimitMiddleware",
    "ReasoningOverrides",
    "ReasoningValues",
    "RedactionMiddleware",
    "RedisBudgetStore",
    "RedisCacheStore",
    "RedisLimitStore",
    "RefusalMiddleware",
    "Replace",
    "ReplyInput",
    "ReplyOverrides",
    "ReplyValues",
    "RerankHits",
    "RetryMiddleware",
    "SQLiteBudgetStore",
    "SQLiteCacheStore",
    "SkillsMiddleware",
    "SpanDelivery",
    "TimeoutMiddleware",
    "Timing",
    "TimingMiddleware",
    "TodoMiddleware",
    "ToolEmulatorMiddleware",
    "ToolErrorMiddleware",
    "ToolResultLimitMiddleware",
    "ToolRetryMiddleware",
    "ToolSelectorMiddleware",
    "TracingMiddleware",
    "TrimToolResultsMiddleware",
    "UsageMiddleware",
    "UsageReport",
    "When",
    "arrange",
    "genai_prices",
    "installed_layers",
    "setup_tracing",
    "suggest_keywords",
]

if not TYPE_CHECKING:  # which would take any name for one of these
    __getattr__ = keep_old_names(__name__, RedisStore=RedisLimitStore)
