"""What survives a process: the conversation so far, and the reply in progress."""

from dataclasses import dataclass, field
from functools import cache
from typing import Any, Literal

import shortuuid
from pydantic import TypeAdapter

from agentrt.block import Strict
from agentrt.message import ContentBlock, Msg, TextBlock
from agentrt.types import (
    FinishedReason,
    JSONSchema,
    PermissionBehavior,
    PermissionContext,
    PermissionDecision,
    PermissionRule,
)

__all__ = ["AgentState", "CallDecision", "ReplyContext", "ReplyOutcome", "StructuredTask", "Waits"]

Waits = Literal["user", "external"]


@dataclass(slots=True)
class CallDecision(Strict):
    """What was decided on one tool call. `by` is "policy" or "user".

    `waits_for` says whose answer the call waits for; `digest` then names what was asked about, the tool and its input
    to the byte, and `asked_at` when, in nanoseconds since the epoch. `original_input` is what the model wrote where a
    person changed it.
    """

    behavior: PermissionBehavior
    by: Literal["policy", "user"] = "policy"
    message: str = ""
    digest: str = ""
    waits_for: Waits | None = None
    asked_at: int = 0
    original_input: str | None = None
    suggested_rules: list[PermissionRule] = field(default_factory=list)

    def question(self) -> PermissionDecision:
        """Return what a person is asked."""
        return PermissionDecision(self.behavior, self.message, suggested_rules=self.suggested_rules)


@dataclass(slots=True)
class StructuredTask(Strict):
    """The form that a reply's answer must have, as a JSON schema, and the answer once it is there."""

    schema: JSONSchema
    output: dict[str, Any] | None = None


@dataclass(slots=True)
class ReplyContext(Strict):
    """The reply in progress. `message` joins the context when the reply is over, and `observed` after it.

    `round_start` is where the blocks of the current round begin in `message.content`; `summarised` is how many of them
    the conversation's summary stands for. `tool_calls` counts the calls, `written` and `received` count in characters
    what the model wrote and the tools gave, and `worked` the seconds that it took so far, what it waited for answers
    not included. `response` is what a tool gave to end the reply with. `decisions` holds what was decided on each tool
    call, by its id, `ids` the number of the last id given out. `parked` says that nothing was going on when this was
    saved; where it is not set, calls without a result may have been running.
    """

    reply_id: str
    message: Msg
    max_iters: int
    cur_iter: int = 0
    round_start: int = 0
    empty_rounds: int = 0
    tool_calls: int = 0
    written: int = 0
    received: int = 0
    worked: float = 0.0
    summarised: int = 0
    ids: int = 0
    parked: bool = False
    response: Msg | None = None
    structured: StructuredTask | None = None
    decisions: dict[str, CallDecision] = field(default_factory=dict)
    observed: list[Msg] = field(default_factory=list)

    @property
    def blocks(self) -> list[ContentBlock]:
        """The blocks of the reply so far."""
        content = self.message.content
        if content.__class__ is str:
            self.message.content = content = [TextBlock(content)]
        return content  # type: ignore[return-value]  # a list by now


@dataclass(slots=True)
class ReplyOutcome(Strict):
    """How a reply ended, and what was decided on its tool calls, by their ids."""

    reply_id: str
    finished_reason: FinishedReason
    error: str | None = None
    decisions: dict[str, CallDecision] = field(default_factory=dict)


@dataclass(slots=True)
class AgentState(Strict):
    """One conversation, whole: saved and loaded again, it continues in another process.

    `context` holds the finished messages, oldest first. `sequence` is the number of the last event. `active_groups`
    are the tool groups that this conversation has switched on, `None` for the toolkit's own choice. `middleware_data`
    is what `agent.state_of(middleware)` hands out, by the middleware's key. `revision` names the
    saved state that this one is based on, 0 for none: stores compare it and set it.

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
    permission_context: PermissionContext = field(default_factory=PermissionContext)
    middleware_data: dict[str, dict[str, Any]] = field(default_factory=dict)
    revision: int = 0

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
