"""The metrics of the conventions for generative AI."""

from collections.abc import Mapping
from typing import Any

from opentelemetry.metrics import Histogram, Meter

from agentrt.types import ChatUsage
from agentrt_middleware.tracing import conventions

__all__ = ["GenAIMetrics"]

Attributes = Mapping[str, Any]


class GenAIMetrics:
    """Records what replies, model calls and tool calls took; durations are in seconds."""

    def __init__(self, meter: Meter) -> None:
        self._chats = [
            _seconds(meter, conventions.METRIC_INFERENCE_DURATION),
            _seconds(meter, conventions.METRIC_OPERATION_DURATION),
        ]
        self._usage = _tokens(meter, conventions.METRIC_TOKEN_USAGE)
        self._input = _tokens(meter, conventions.METRIC_INFERENCE_INPUT_TOKENS)
        self._output = _tokens(meter, conventions.METRIC_INFERENCE_OUTPUT_TOKENS)
        counted = conventions.METRICS_INFERENCE_USAGE.items()
        self._used = [(field, meter.create_counter(name, "{token}")) for field, name in counted]
        self._agents = _seconds(meter, conventions.METRIC_AGENT_DURATION)
        self._inference_calls = meter.create_histogram(conventions.METRIC_AGENT_INFERENCE_CALLS, "{call}")
        self._tool_calls = meter.create_histogram(conventions.METRIC_AGENT_TOOL_CALLS, "{call}")
        self._tools = _seconds(meter, conventions.METRIC_TOOL_DURATION)

    def chat(self, seconds: float, usage: ChatUsage | None, attributes: Attributes) -> None:
        for histogram in self._chats:
            histogram.record(seconds, attributes)
        if usage is None:
            return
        known = {name: value for name, value in attributes.items() if name != conventions.ERROR_TYPE}
        self._usage.record(usage.input_tokens, {**known, conventions.TOKEN_TYPE: "input"})
        self._usage.record(usage.output_tokens, {**known, conventions.TOKEN_TYPE: "output"})
        self._input.record(usage.input_tokens, known)
        self._output.record(usage.output_tokens, known)
        for field, counter in self._used:
            counter.add(getattr(usage, field), known)

    def agent(self, seconds: float, inference_calls: int, tool_calls: int, attributes: Attributes) -> None:
        self._agents.record(seconds, attributes)
        self._inference_calls.record(inference_calls, attributes)
        self._tool_calls.record(tool_calls, attributes)

    def tool(self, seconds: float, attributes: Attributes) -> None:
        self._tools.record(seconds, attributes)


def _seconds(meter: Meter, name: str) -> Histogram:
    return meter.create_histogram(name, "s", explicit_bucket_boundaries_advisory=conventions.DURATION_BUCKETS)


def _tokens(meter: Meter, name: str) -> Histogram:
    return meter.create_histogram(name, "{token}", explicit_bucket_boundaries_advisory=conventions.TOKEN_BUCKETS)
