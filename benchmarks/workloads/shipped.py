"""Each middleware that ships, with nothing to do: no error, no limit in the way, nobody who listens."""

import logging
from collections.abc import Callable, Mapping

from agentrt import MiddlewareBase
from agentrt.middleware import (
    CircuitBreakerMiddleware,
    DynamicContextMiddleware,
    LoggingMiddleware,
    ModelFallbackMiddleware,
    PlanNotebook,
    RateLimitMiddleware,
    RetryMiddleware,
    TimeoutMiddleware,
    TimingMiddleware,
    ToolRetryMiddleware,
    TracingMiddleware,
    UsageMiddleware,
)
from benchmarks.workloads.agents import CannedChatModel

__all__ = ["IDLE", "make_tracing"]


def quiet_logger() -> logging.Logger:
    """Return a logger that is switched off."""
    logger = logging.Logger("benchmarks")
    logger.disabled = True
    return logger


IDLE: Mapping[str, Callable[[], MiddlewareBase]] = {
    "CircuitBreakerMiddleware": CircuitBreakerMiddleware,
    "DynamicContextMiddleware": lambda: DynamicContextMiddleware("Today is Sunday."),
    "LoggingMiddleware": LoggingMiddleware,  # which logs only failures, as long as nobody sets up logging
    "LoggingMiddleware, switched off": lambda: LoggingMiddleware(quiet_logger()),
    "ModelFallbackMiddleware": lambda: ModelFallbackMiddleware([CannedChatModel()]),
    "PlanNotebook": PlanNotebook,  # without a plan: it says so in each request
    "RateLimitMiddleware": lambda: RateLimitMiddleware(requests_per_minute=1e9, tokens_per_minute=1e9),
    "RetryMiddleware": RetryMiddleware,
    "TimeoutMiddleware": lambda: TimeoutMiddleware(total=3600),
    "TimingMiddleware": TimingMiddleware,
    "ToolRetryMiddleware": lambda: ToolRetryMiddleware(["add"]),
    "TracingMiddleware": TracingMiddleware,
    "UsageMiddleware": UsageMiddleware,
}


def make_tracing(*, samples: bool) -> MiddlewareBase:
    """Return a layer with a provider of its own that records every span, or none; spans are dropped when they end."""
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON

    return TracingMiddleware(tracer_provider=TracerProvider(sampler=ALWAYS_ON if samples else ALWAYS_OFF))
