"""The attribute names of OpenTelemetry's conventions for generative AI, and our own.

The conventions are still changing, and the packages that hold the names mark them as moved. So they are written out
here, and nowhere else in agentrt.
"""

from collections.abc import Mapping
from typing import Final

from opentelemetry.util.types import AttributeValue

Attributes = Mapping[str, AttributeValue | None]
"""Attributes of a span or a metric; those with the value `None` are left out."""

CAPTURE_VARIABLE: Final = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
CAPTURE_VALUES: Final = {"": False, "NO_CONTENT": False, "SPAN_ONLY": True, "EVENT_ONLY": False, "SPAN_AND_EVENT": True}
"""The values of the variable, and whether spans hold content then."""
OTHER: Final = "_OTHER"
"""Replaces a value that is not one of the known ones."""

INVOKE_AGENT: Final = "invoke_agent"
CHAT: Final = "chat"
EXECUTE_TOOL: Final = "execute_tool"

OPERATION: Final = "gen_ai.operation.name"
PROVIDER: Final = "gen_ai.provider.name"
# The conventions' names of providers, where ours differ.
PROVIDERS: Final = {
    "azure": "azure.ai.openai",
    "bedrock": "aws.bedrock",
    "gemini": "gcp.gemini",
    "mistral": "mistral_ai",
    "openai-responses": "openai",
    "openairesponsesmodel": "openai",
    "vertex": "gcp.vertex_ai",
    "vertex-claude": "gcp.vertex_ai",
    "xai": "x_ai",
}
CONVERSATION_ID: Final = "gen_ai.conversation.id"
ERROR_TYPE: Final = "error.type"
SERVER_ADDRESS: Final = "server.address"
SERVER_PORT: Final = "server.port"

AGENT_NAME: Final = "gen_ai.agent.name"
AGENT_REPLY_ID: Final = "agentrt.agent.reply_id"
AGENT_FINISHED_REASON: Final = "agentrt.agent.finished_reason"
AGENT_INCOMING_EVENT: Final = "agentrt.agent.incoming_event_type"
AGENT_PENDING_CONFIRMATION: Final = "agentrt.agent.hitl_pending_tools"
AGENT_PENDING_EXTERNAL: Final = "agentrt.agent.external_execution_pending_tools"
AGENT_IS_EXTERNAL: Final = "agentrt.agent.is_external_execution"

REQUEST_MODEL: Final = "gen_ai.request.model"
REQUEST_STREAM: Final = "gen_ai.request.stream"
# The settings of a request: the providers' names, and those of the conventions.
REQUEST_SETTINGS: Final = {
    "frequency_penalty": "gen_ai.request.frequency_penalty",
    "max_completion_tokens": "gen_ai.request.max_tokens",
    "max_output_tokens": "gen_ai.request.max_tokens",
    "max_tokens": "gen_ai.request.max_tokens",
    "presence_penalty": "gen_ai.request.presence_penalty",
    "reasoning_effort": "gen_ai.request.reasoning.level",
    "seed": "gen_ai.request.seed",
    "stop": "gen_ai.request.stop_sequences",
    "stop_sequences": "gen_ai.request.stop_sequences",
    "temperature": "gen_ai.request.temperature",
    "top_k": "gen_ai.request.top_k",
    "top_p": "gen_ai.request.top_p",
}
RESPONSE_ID: Final = "gen_ai.response.id"
RESPONSE_MODEL: Final = "gen_ai.response.model"
FINISH_REASONS: Final = "gen_ai.response.finish_reasons"
TIME_TO_FIRST_CHUNK: Final = "gen_ai.response.time_to_first_chunk"
INPUT_TOKENS: Final = "gen_ai.usage.input_tokens"
OUTPUT_TOKENS: Final = "gen_ai.usage.output_tokens"
CACHE_READ_TOKENS: Final = "gen_ai.usage.cache_read.input_tokens"
CACHE_WRITE_TOKENS: Final = "gen_ai.usage.cache_write.input_tokens"
USAGE_ESTIMATED: Final = "agentrt.usage.estimated"
USAGE_REPLAYED: Final = "agentrt.usage.replayed"

CHAT_IS_INTERNAL: Final = "agentrt.model_call.is_internal"
RETRY_EVENT: Final = "agentrt.model_call.retry"
RETRY_ATTEMPT: Final = "agentrt.model_call.attempt"
RETRY_WAIT: Final = "agentrt.model_call.wait_seconds"
RETRY_REASON: Final = "agentrt.model_call.reason"

TOOL_NAME: Final = "gen_ai.tool.name"
TOOL_TYPE: Final = "gen_ai.tool.type"
TOOL_CALL_ID: Final = "gen_ai.tool.call.id"
TOOL_DESCRIPTION: Final = "gen_ai.tool.description"
TOOL_STATE: Final = "agentrt.tool.result.state"

# These hold content, so they are set only if content is captured.
INPUT_MESSAGES: Final = "gen_ai.input.messages"
OUTPUT_MESSAGES: Final = "gen_ai.output.messages"
SYSTEM_INSTRUCTIONS: Final = "gen_ai.system_instructions"
TOOL_DEFINITIONS: Final = "gen_ai.tool.definitions"
TOOL_ARGUMENTS: Final = "gen_ai.tool.call.arguments"
TOOL_RESULT: Final = "gen_ai.tool.call.result"
INPUT_VALUE: Final = "input.value"
"""A name of OpenInference, which Phoenix shows in the row of an agent."""
OUTPUT_VALUE: Final = "output.value"

# Dashboards know the first two today; the conventions replace them with the next three.
METRIC_TOKEN_USAGE: Final = "gen_ai.client.token.usage"
METRIC_OPERATION_DURATION: Final = "gen_ai.client.operation.duration"
METRIC_INFERENCE_DURATION: Final = "gen_ai.client.inference.duration"
METRIC_INFERENCE_INPUT_TOKENS: Final = "gen_ai.client.inference.operation.input_tokens"
# Counters of tokens: the name of a field of `ChatUsage`, and that of its counter.
METRICS_INFERENCE_USAGE: Final = {
    "input_tokens": "gen_ai.client.inference.usage.input_tokens",
    "output_tokens": "gen_ai.client.inference.usage.output_tokens",
    "cache_input_tokens": "gen_ai.client.inference.usage.cache_read.input_tokens",
    "cache_creation_input_tokens": "gen_ai.client.inference.usage.cache_write.input_tokens",
}
METRIC_INFERENCE_OUTPUT_TOKENS: Final = "gen_ai.client.inference.operation.output_tokens"
METRIC_AGENT_DURATION: Final = "gen_ai.invoke_agent.duration"
METRIC_AGENT_INFERENCE_CALLS: Final = "gen_ai.invoke_agent.inference_calls"
METRIC_AGENT_TOOL_CALLS: Final = "gen_ai.invoke_agent.tool_calls"
METRIC_TOOL_DURATION: Final = "gen_ai.execute_tool.duration"
TOKEN_TYPE: Final = "gen_ai.token.type"

DURATION_BUCKETS: Final = tuple(0.01 * 2**power for power in range(14))
TOKEN_BUCKETS: Final = tuple(float(4**power) for power in range(14))
