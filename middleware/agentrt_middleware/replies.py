"""What a reply is about, whether its agent is an `Agent` or writes its own `reply`."""

from collections.abc import Mapping
from typing import Any

from agentrt.event import AgentEvent
from agentrt.message import Msg
from agentrt.model import ChatModelBase

__all__ = ["input_of", "model_name_of"]


def input_of(input_kwargs: Mapping[str, object]) -> Any:
    """Return what the reply was given: an agent's own `reply` takes it first, if it takes a message at all."""
    if "inputs" in input_kwargs:
        return input_kwargs["inputs"]
    first = next(iter(input_kwargs.values()), None)
    messages = first if isinstance(first, list) else [first]
    return first if all(isinstance(each, (AgentEvent, Msg)) for each in messages) else None


def model_name_of(agent: Any) -> str | None:
    """Return the name of the agent's model, `None` if it has none."""
    model = getattr(agent, "model", None)
    return model.model if isinstance(model, ChatModelBase) else None
