"""What a reply or a tool call is about, whether its agent is an `Agent` or writes its own methods."""

import json
from collections.abc import Mapping
from typing import Any

from agentrt.event import AgentEvent
from agentrt.message import Msg, ToolCallBlock
from agentrt.model import ChatModelBase

__all__ = ["call_of", "input_of", "model_name_of"]


def input_of(input_kwargs: Mapping[str, object]) -> Any:
    """Return what the reply was given: an agent's own `reply` takes it first, if it takes a message at all."""
    if "inputs" in input_kwargs:
        return input_kwargs["inputs"]
    first = next(iter(input_kwargs.values()), None)
    messages = first if isinstance(first, list) else [first]
    return first if all(isinstance(each, (AgentEvent, Msg)) for each in messages) else None


def call_of(input_kwargs: Mapping[str, object]) -> ToolCallBlock:
    """Return the tool call that is to run; a class's own `_acting` gets it as its first argument, maybe as a dict."""
    found = input_kwargs.get("tool_call", next(iter(input_kwargs.values()), None))
    if isinstance(found, ToolCallBlock):
        return found
    told: Mapping[str, object] = found if isinstance(found, Mapping) else {}
    values = told.get("input")
    text = values if isinstance(values, str) else json.dumps(values or {}, default=str)
    return ToolCallBlock(str(told.get("id", "unknown")), str(told.get("name", "unknown")), text)


def model_name_of(agent: Any) -> str | None:
    """Return the name of the agent's model, `None` if it has none."""
    model = getattr(agent, "model", None)
    return model.model if isinstance(model, ChatModelBase) else None
