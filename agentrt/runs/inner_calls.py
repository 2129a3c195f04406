"""The calls that tools make: no message has them, so they are read from the events of a run."""

from collections.abc import Iterable
from dataclasses import dataclass

from agentrt.event import (
    AgentEvent,
    RequireExternalExecutionEvent,
    RequireUserConfirmEvent,
    ToolCallStartEvent,
    ToolResultStartEvent,
)
from agentrt.message import APPLY, CALL_EVENTS, Msg, ToolCallBlock, ToolResultBlock

_ASKING_EVENTS = (RequireUserConfirmEvent, RequireExternalExecutionEvent)


@dataclass(frozen=True, slots=True)
class RecordedInnerCall:
    """A call that a tool made, its result, if any, and how many questions the reply had asked before."""

    call: ToolCallBlock
    result: ToolResultBlock | None
    questions_before: int

    @property
    def outer_id(self) -> str:
        """The id of the call whose tool made this one."""
        return self.call.id.rpartition("/")[0]


def read_inner_calls(events: Iterable[AgentEvent]) -> list[RecordedInnerCall]:
    """Return the calls that tools made in a reply with these events, in order."""
    messages: dict[str, tuple[Msg, int]] = {}
    questions = 0
    for event in events:
        if isinstance(event, _ASKING_EVENTS):
            questions += 1
        kind, path = event.__class__, getattr(event, "tool_call_id", "")
        if kind not in CALL_EVENTS or "/" not in path:
            continue
        # A process that was killed may have told the start before, and saved nothing of it.
        if kind is ToolCallStartEvent:
            messages[path] = Msg("", [], "assistant"), questions
        if path not in messages:  # the start was lost with its process
            continue
        message = messages[path][0]
        if kind is ToolResultStartEvent:
            message.content = [*message.get_content_blocks("tool_call")]
        APPLY[kind](message, event)
    found: list[RecordedInnerCall] = []
    for message, before in messages.values():
        [call] = message.get_content_blocks("tool_call")
        results = message.get_content_blocks("tool_result")
        found.append(RecordedInnerCall(call, results[0] if results else None, before))
    return found
