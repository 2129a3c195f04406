"""The subject of a reply or a tool call, of an `Agent` or of a custom class."""

import json
from collections.abc import Mapping

from agentrt.agent import Agent, AgentBase
from agentrt.event import AgentEvent
from agentrt.message import Msg, ToolCallBlock
from agentrt.model import ChatModelBase
from agentrt.tool.group import META_TOOL
from agentrt.types import STRUCTURED_OUTPUT


def input_of(input_kwargs: Mapping[str, object]) -> object:
    """Return the input of the reply: an event, a message or a list of messages; `None` for anything else."""
    if "inputs" in input_kwargs:
        return input_kwargs["inputs"]
    # The `reply` of a custom agent takes its input as the first parameter, if it takes a message at all.
    first = next(iter(input_kwargs.values()), None)
    items = first if isinstance(first, list) else [first]
    return first if all(isinstance(item, (AgentEvent, Msg)) for item in items) else None


def messages_of(inputs: object) -> list[Msg] | None:
    """Return the input of a reply as a list of messages, `None` if it is not made of messages."""
    if isinstance(inputs, Msg):
        return [inputs]
    return inputs if isinstance(inputs, list) else None


def call_of(input_kwargs: Mapping[str, object]) -> ToolCallBlock:
    """Return the tool call that is to run."""
    # A custom `_acting` gets the call as its first argument, which may be a dict.
    value = input_kwargs.get("tool_call", next(iter(input_kwargs.values()), None))
    if isinstance(value, ToolCallBlock):
        return value
    call: Mapping[str, object] = value if isinstance(value, Mapping) else {}
    tool_input = call.get("input")
    text = tool_input if isinstance(tool_input, str) else json.dumps(tool_input or {}, default=str)
    return ToolCallBlock(str(call.get("id", "unknown")), str(call.get("name", "unknown")), text)


def is_users_tool(agent: AgentBase, name: str) -> bool:
    """Say whether a tool is the user's own, neither the runtime's nor from a middleware."""
    brought = agent.middleware_tools if isinstance(agent, Agent) else ()
    return name not in brought and name not in (STRUCTURED_OUTPUT, META_TOOL)


def model_name_of(agent: AgentBase) -> str | None:
    """Return the name of the agent's model, `None` if it has none."""
    model = getattr(agent, "model", None)
    return model.model if isinstance(model, ChatModelBase) else None
