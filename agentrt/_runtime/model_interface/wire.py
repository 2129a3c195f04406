"""Records of the calls that reach a model, for observers."""

from dataclasses import dataclass
from typing import Literal

from agentrt._runtime.model_interface.base import ChatModelBase
from agentrt._runtime.model_interface.prefix import Prefix, moved_parts
from agentrt.message import Msg
from agentrt.types import ChatResponse, JSONSchema, ToolChoice


@dataclass(slots=True, repr=False, eq=False)
class WireRecord:
    """A request to a model, or the end of that call; both have the same `call_id`.

    `purpose` is that of a call by `agent.run.ask_model`, `None` for the call of a round. The other fields are those of
    the "end". `response` is the answer before any layer has seen it; for a stream that was left or failed, the received
    part of it, with `is_last=False`, and `None` if nothing came. `error` is the exception of the call, even a
    cancellation; its text may quote the provider. `pieces` counts the model's responses, and `seconds` is their total
    time.

    `earlier` has the tools and the messages of the last request before it: of the same conversation in this process,
    with the same purpose and to a model of the same name; `None` for the first.

    Its contents belong to the reply: do not change them.
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
    earlier: Prefix | None = None

    @property
    def moved(self) -> str | None:
        """The first part of the `earlier` request that this one does not repeat: "tools", "system" or "history".

        `None` if it repeats all of it up to the hints at its end, and for a first request. What comes after that part
        a provider cannot read from its cache. It is compared when it is asked for, so keep it if you need it twice.
        """
        if self.earlier is None:
            return None
        parts = moved_parts(self.earlier, (self.tools, self.messages))
        return parts[0] if parts else None

    def __repr__(self) -> str:  # the messages are a whole conversation
        return f"<WireRecord {self.kind!r} of the call {self.call_id!r} to {self.model.model!r}>"
