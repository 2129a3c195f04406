"""What the spans of replies, model calls and tool calls say, by the names of the conventions for generative AI."""

from typing import Any
from urllib.parse import urlsplit

from agentrt.event import AgentEvent
from agentrt.message import ToolCallBlock
from agentrt.model import ChatModelBase
from agentrt.tool import Toolkit
from agentrt.types import ChatResponse, ChatUsage
from agentrt_middleware.reply_info import model_name_of
from agentrt_middleware.tracing import conventions

__all__ = ["Attributes", "answering", "labels_of", "of_agent", "of_chat", "of_tool", "of_usage"]

Attributes = dict[str, Any]


def of_agent(agent: Any, inputs: Any) -> tuple[str, Attributes]:
    """Return the name of an agent, and the attributes of the span of its reply."""
    return agent.name, {
        conventions.AGENT_NAME: agent.name,
        conventions.AGENT_REPLY_ID: agent.run.id,
        conventions.CONVERSATION_ID: agent.state.session_id,
        conventions.REQUEST_MODEL: model_name_of(agent),
        conventions.AGENT_INCOMING_EVENT: inputs.type if isinstance(inputs, AgentEvent) else None,
    }


def of_chat(agent: Any, model: ChatModelBase) -> tuple[str, Attributes]:
    """Return the name of a model, and the attributes of the span of a call of it."""
    url = urlsplit(str(getattr(model, "base_url", None) or ""))
    return model.model, {
        **labels_of(model),
        conventions.AGENT_NAME: agent.name,
        conventions.CONVERSATION_ID: agent.state.session_id,
        conventions.REQUEST_STREAM: model.stream or None,
        **_settings(model),
        conventions.SERVER_ADDRESS: url.hostname,
        conventions.SERVER_PORT: url.port,
        conventions.CHAT_IS_INTERNAL: agent.run.is_internal or None,
    }


def _settings(model: ChatModelBase) -> Attributes:
    names = conventions.REQUEST_SETTINGS
    known = {names[name]: value for name, value in model.settings.items() if name in names}
    # One sequence that ends an answer may be given as it is; an attribute is always a list of them.
    return {name: [value] if isinstance(value, str) else value for name, value in known.items()}


def of_tool(agent: Any, toolkit: Toolkit, call: ToolCallBlock, captures: bool) -> tuple[str, Attributes]:
    """Return the name of the tool that a call is for, as far as it may be told, and the attributes of its span."""
    tool = toolkit.get(call.name)
    # A name that no tool has is the model's own words.
    name = call.name if tool is not None or captures else conventions.OTHER
    return name, {
        conventions.TOOL_NAME: name,
        conventions.TOOL_TYPE: "function",
        conventions.TOOL_CALL_ID: call.id,
        conventions.TOOL_DESCRIPTION: None if tool is None else tool.description,
        conventions.AGENT_NAME: agent.name,
    }


def labels_of(model: ChatModelBase) -> Attributes:
    """Return what tells the calls of one model from those of others, in spans and metrics."""
    provider = model.provider or type(model).__name__.removesuffix("ChatModel").lower() or conventions.OTHER
    return {
        conventions.OPERATION: conventions.CHAT,
        conventions.PROVIDER: provider,
        conventions.REQUEST_MODEL: model.model,
    }


def answering(response: ChatResponse) -> str | None:
    """Return the name of the model that answered, where a layer further in says so."""
    name = (response.metadata or {}).get("model")
    return name if isinstance(name, str) else None


def of_usage(usage: ChatUsage | None) -> Attributes:
    """Return the attributes for what was used."""
    if usage is None:
        return {}
    return {
        conventions.INPUT_TOKENS: usage.input_tokens,
        conventions.OUTPUT_TOKENS: usage.output_tokens,
        conventions.CACHE_READ_TOKENS: usage.cache_input_tokens or None,
        conventions.CACHE_WRITE_TOKENS: usage.cache_creation_input_tokens or None,
        conventions.USAGE_ESTIMATED: usage.estimated or None,
    }
