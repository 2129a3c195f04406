"""The work of a reply, as the progress of a call."""

from collections.abc import Awaitable, Callable
from time import monotonic

from agentrt._runtime.text import whole_characters
from agentrt.event import (
    AnyEvent,
    ModelCallRetryEvent,
    RequireExternalExecutionEvent,
    RequireUserConfirmEvent,
    SubagentStartEvent,
    TextBlockDeltaEvent,
    TextBlockStartEvent,
    ToolCallStartEvent,
    ToolResultEndEvent,
)

_TEXT_SECONDS = 1.0
"""How often text is shown while it comes; a notice for each word would be longer than the answer."""
_TEXT_TAIL = 200


class Progress:
    """Reports in one line what the reply does; `report` sends it, with a rising number."""

    def __init__(self, report: Callable[[float, float | None, str | None], Awaitable[None]]) -> None:
        self._report = report
        self._count = 0
        self._text = ""
        self._told_at = monotonic()

    async def tell(self, line: str) -> None:
        self._count += 1
        await self._report(self._count, None, whole_characters(line))

    async def read(self, event: AnyEvent) -> None:
        """Report an event, if it is one that a user wants to see."""
        line = self._line(event)
        if line:
            await self.tell(line)

    def _line(self, event: AnyEvent) -> str:
        if isinstance(event, TextBlockDeltaEvent):
            # Only the end: a client shows one line, and the result has all of the text.
            self._text = (self._text + event.delta)[-_TEXT_TAIL:]
            if monotonic() - self._told_at < _TEXT_SECONDS:
                return ""
            self._told_at = monotonic()
            return f"says: {self._text}"
        if isinstance(event, TextBlockStartEvent):
            self._text = ""
        elif isinstance(event, ToolCallStartEvent):
            return f"calls {event.tool_call_name}"
        elif isinstance(event, ToolResultEndEvent):
            return f"{event.tool_call_name or 'a call'}: {event.state.value}"
        elif isinstance(event, SubagentStartEvent):
            return f"asks {event.name}"
        elif isinstance(event, ModelCallRetryEvent):
            return "asks the model again"
        elif isinstance(event, (RequireUserConfirmEvent, RequireExternalExecutionEvent)):
            return f"waits for an answer about {', '.join(call.name for call in event.tool_calls)}"
        return ""
