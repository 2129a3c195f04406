"""What observers learn of the calls that reach a model."""

from dataclasses import dataclass
from typing import Literal

from agentrt.message import Msg
from agentrt.model_interface.base import ChatModelBase
from agentrt.types import ChatResponse, JSONSchema, ToolChoice

__all__ = ["WireRecord"]


@dataclass(slots=True, repr=False, eq=False)
class WireRecord:
    """A request as it is sent to a model, or the end of that call; both have the same `call_id`.

    `purpose` is that of a call by `agent.run.ask_model`, `None` for the call of a round. The other fields are those of
    the "end". `response` is the answer before any layer has seen it; of a stream that was left or failed, what came of
    it, with `is_last=False`, and `None` where nothing came. `error` is what the call raised, a cancellation too; its
    text may quote the provider. `pieces` counts what the model gave, and `seconds` how long that took.

    What is in it belongs to the reply: look, and change nothing.
    """

    kind: Literal["request", "end"]
    call_id: str
    purpose: str | None
    model: ChatModelBase
    messages: list[Msg]
    tools: list[JSONSchema]
    tool_choice: ToolChoice | None
    response: ChatResponse | None = None
    error: BaseException | None = None
    pieces: int = 0
    seconds: float = 0.0

    def __repr__(self) -> str:  # the messages are a whole conversation
        return f"<WireRecord {self.kind!r} of the call {self.call_id!r} to {self.model.model!r}>"
