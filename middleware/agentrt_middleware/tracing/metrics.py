"""The metrics of the conventions for generative AI."""

from collections.abc import Mapping

from opentelemetry.metrics import Histogram, Meter
from opentelemetry.util.types import AttributeValue

from agentrt.types import ChatUsage
from agentrt_middleware.tracing import conventions

_Labels = Mapping[str, AttributeValue]


class GenAIMetrics:
    """Records the durations, in seconds, and the usage of replies, model calls and tool calls."""

    def __init__(self, meter: Meter) -> None:
        self._chats = [
            _seconds(meter, conventions.METRIC_INFERENCE_DURATION),
            _seconds(meter, conventions.METRIC_OPERATION_DURATION),
        ]
        self._usage_by_type = _tokens(meter, conventions.METRIC_TOKEN_USAGE)
        self._input = _tokens(meter, conventions.METRIC_INFERENCE_INPUT_TOKENS)
        self._output = _tokens(meter, conventions.METRIC_INFERENCE_OUTPUT_TOKENS)
        counters = conventions.METRICS_INFERENCE_USAGE.items()
        self._usage_counters = [(field, meter.create_counter(name, "{token}")) for field, name in counters]
        self._agents = _seconds(meter, conventions.METRIC_AGENT_DURATION)
        self._inference_calls = meter.create_histogram(conventions.METRIC_AGENT_INFERENCE_CALLS, "{call}")
        self._tool_calls = meter.create_histogram(conventions.METRIC_AGENT_TOOL_CALLS, "{call}")
        self._tools = _seconds(meter, conventions.METRIC_TOOL_DURATION)

    def record_chat(self, seconds: float, usage: ChatUsage | None, labels: _Labels) -> None:
        for histogram in self._chats:
            histogram.record(seconds, labels)
        if usage is None or usage.replayed:  # no tokens, or those of an earlier call
            return
        # The conventions have no error type on tokens: a failed call has used tokens too.
        token_labels = {name: value for name, value in labels.items() if name != conventions.ERROR_TYPE}
        self._usage_by_type.record(usage.input_tokens, {**token_labels, conventions.TOKEN_TYPE: "input"})
        self._usage_by_type.record(usage.output_tokens, {**token_labels, conventions.TOKEN_TYPE: "output"})
        self._input.record(usage.input_tokens, token_labels)
        self._output.record(usage.output_tokens, token_labels)
        for field, counter in self._usage_counters:
            counter.add(getattr(usage, field), token_labels)

    def record_agent(self, seconds: float, inference_calls: int, tool_calls: int, labels: _Labels) -> None:
        self._agents.record(seconds, labels)
        self._inference_calls.record(inference_calls, labels)
        self._tool_calls.record(tool_calls, labels)

    def record_tool(self, seconds: float, labels: _Labels) -> None:
        self._tools.record(seconds, labels)


def _seconds(meter: Meter, name: str) -> Histogram:
    return meter.create_histogram(name, "s", explicit_bucket_boundaries_advisory=conventions.DURATION_BUCKETS)


def _tokens(meter: Meter, name: str) -> Histogram:
    return meter.create_histogram(name, "{token}", explicit_bucket_boundaries_advisory=conventions.TOKEN_BUCKETS)
