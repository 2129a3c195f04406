"""The attributes of the spans of replies, model calls and tool calls, by the conventions for generative AI."""

from urllib.parse import urlsplit

from agentrt.agent import AgentBase, Run
from agentrt.event import AgentEvent
from agentrt.message import ToolCallBlock
from agentrt.model import ChatModelBase
from agentrt.types import ChatResponse, ChatUsage
from agentrt_middleware.reply_info import model_name_of
from agentrt_middleware.tracing import conventions
from agentrt_middleware.tracing.conventions import Attributes


def of_agent(agent: AgentBase, inputs: object) -> tuple[str, Attributes]:
    """Return the name of an agent, and the attributes of the span of its reply."""
    return agent.name, {
        conventions.AGENT_NAME: agent.name,
        conventions.AGENT_REPLY_ID: agent.run.id,
        conventions.CONVERSATION_ID: agent.state.session_id,
        conventions.REQUEST_MODEL: model_name_of(agent),
        conventions.AGENT_INCOMING_EVENT: inputs.type if isinstance(inputs, AgentEvent) else None,
    }


def of_chat(agent: AgentBase, model: ChatModelBase) -> tuple[str, Attributes]:
    """Return the name of a model, and the attributes of the span of a call to it."""
    url = urlsplit(str(getattr(model, "base_url", None) or ""))
    names = conventions.REQUEST_SETTINGS
    settings = {names[name]: value for name, value in model.settings.items() if name in names}
    return model.model, {
        **labels_of(model),
        conventions.AGENT_NAME: agent.name,
        conventions.CONVERSATION_ID: agent.state.session_id,
        conventions.REQUEST_STREAM: model.stream or None,
        # A single stop sequence may be a str, but the attribute is always a list.
        **{name: [value] if isinstance(value, str) else value for name, value in settings.items()},
        conventions.SERVER_ADDRESS: url.hostname,
        conventions.SERVER_PORT: url.port,
        conventions.CHAT_IS_INTERNAL: agent.run.is_internal or None,
    }


def of_tool(run: Run, call: ToolCallBlock, *, captures_content: bool) -> tuple[str, Attributes]:
    """Return the name of a call's tool, as far as it may be shown, and the attributes of its span."""
    tool = run.tool_of(call)
    # The model made up a name that no tool has, so it is content.
    name = call.name if tool is not None or captures_content else conventions.OTHER
    return name, {
        conventions.TOOL_NAME: name,
        conventions.TOOL_TYPE: "function",
        conventions.TOOL_CALL_ID: call.id,
        conventions.TOOL_DESCRIPTION: None if tool is None else tool.description,
        conventions.AGENT_NAME: run.agent.name,
    }


def labels_of(model: ChatModelBase) -> Attributes:
    """Return the attributes that identify a model in spans and metrics."""
    provider = model.provider or type(model).__name__.removesuffix("ChatModel").lower() or conventions.OTHER
    return {
        conventions.OPERATION: conventions.CHAT,
        conventions.PROVIDER: conventions.PROVIDERS.get(provider, provider),
        conventions.REQUEST_MODEL: model.model,
    }


def responding_model(response: ChatResponse) -> str | None:
    """Return the name of the model that answered, if an inner layer, such as a fallback, says so."""
    name = (response.metadata or {}).get("model")
    return name if isinstance(name, str) else None


def of_usage(usage: ChatUsage | None) -> Attributes:
    """Return the attributes of the used tokens."""
    if usage is None:
        return {}
    if usage.replayed:  # backends add up the tokens of traces, and these belong to an earlier call
        return {conventions.USAGE_REPLAYED: True}
    return {
        conventions.INPUT_TOKENS: usage.input_tokens,
        conventions.OUTPUT_TOKENS: usage.output_tokens,
        conventions.CACHE_READ_TOKENS: usage.cache_input_tokens or None,
        conventions.CACHE_WRITE_TOKENS: usage.cache_creation_input_tokens or None,
        conventions.USAGE_ESTIMATED: usage.estimated or None,
    }
