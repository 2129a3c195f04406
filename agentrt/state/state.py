"""What survives a process: the conversation so far, and the reply in progress."""

from dataclasses import dataclass, field
from functools import cache
from typing import Any, Literal

import shortuuid
from pydantic import TypeAdapter

from agentrt.block import Strict
from agentrt.message import ContentBlock, Msg, TextBlock
from agentrt.types import FinishedReason

__all__ = ["AgentState", "ReplyContext", "ReplyOutcome"]


@dataclass(slots=True)
class ReplyContext(Strict):
    """The reply in progress. `message` joins the context when the reply is over.

    `round_start` is where the blocks of the current round begin in `message.content`; `response` is what a tool gave to
    end the reply with.
    """

    reply_id: str
    message: Msg
    max_iters: int
    cur_iter: int = 0
    round_start: int = 0
    empty_rounds: int = 0
    response: Msg | None = None

    @property
    def blocks(self) -> list[ContentBlock]:
        """The blocks of the reply so far."""
        content = self.message.content
        if content.__class__ is str:
            self.message.content = content = [TextBlock(content)]
        return content  # type: ignore[return-value]  # a list by now


@dataclass(slots=True)
class ReplyOutcome(Strict):
    """How a reply ended."""

    reply_id: str
    finished_reason: FinishedReason
    error: str | None = None


@dataclass(slots=True)
class AgentState(Strict):
    """One conversation, whole: saved and loaded again, it continues in another process.

    `context` holds the finished messages, oldest first. `sequence` is the number of the last event. `active_groups`
    are the tool groups that this conversation has switched on, `None` for the toolkit's own choice. `middleware_data`
    is what `agent.state_of(middleware)` hands out, by the middleware's key.

    A dataclass, checked by pydantic when it is loaded, and no pydantic model: the loop reads and sets these fields all
    the time, which costs a model ten times as much.
    """

    version: Literal[1] = 1
    session_id: str = field(default_factory=shortuuid.uuid)
    context: list[Msg] = field(default_factory=list)
    summary: str = ""
    reply_context: ReplyContext | None = None
    last_reply: ReplyOutcome | None = None
    sequence: int = 0
    active_groups: list[str] | None = None
    middleware_data: dict[str, dict[str, Any]] = field(default_factory=dict)

    def model_dump_json(self, *, indent: int | None = None) -> str:
        """Return the state as JSON."""
        return _adapter().dump_json(self, indent=indent).decode()

    @staticmethod
    def model_validate_json(text: str | bytes) -> "AgentState":
        """Return the state that `model_dump_json` wrote; raises `pydantic.ValidationError` for anything else."""
        return _adapter().validate_json(text)


@cache
def _adapter() -> TypeAdapter[AgentState]:
    return TypeAdapter(AgentState)
