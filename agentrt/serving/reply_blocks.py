"""The blocks that the events of a reply tell in pieces, also those of calls that tools make."""

from contextlib import suppress
from typing import Any, TypeVar

from agentrt.event import (
    DataBlockDeltaEvent,
    DataBlockStartEvent,
    ToolCallDeltaEvent,
    ToolCallStartEvent,
    ToolResultStartEvent,
)
from agentrt.message import (
    APPLY,
    CALL_EVENTS,
    AssistantMsg,
    ContentBlock,
    DataBlock,
    ToolCallBlock,
    ToolResultBlock,
    find_block,
    new_tool_result,
)

_ReplyBlock = TypeVar("_ReplyBlock", ToolCallBlock, ToolResultBlock, DataBlock)
_DATA_EVENTS = (DataBlockStartEvent, DataBlockDeltaEvent)
_BEFORE_RESULTS = (ToolCallStartEvent, ToolCallDeltaEvent, ToolResultStartEvent)


class ReplyBlocks:
    """The calls, results and files of a reply; of a call that began before the first event, what came since."""

    def __init__(self) -> None:
        self._blocks: list[ContentBlock] = []
        # Not the message of the reply, which takes no events of calls that tools make.
        self._message = AssistantMsg("", self._blocks)

    def read(self, event: Any) -> None:
        """Apply an event, if it is about such a block."""
        kind = event.__class__
        if kind in CALL_EVENTS:
            self._begin_call(event)
        if kind in CALL_EVENTS or kind in _DATA_EVENTS:
            APPLY[kind](self._message, event)

    def _begin_call(self, event: Any) -> None:
        """Add the blocks whose start came before this listener."""
        call_id, name, blocks = event.tool_call_id, event.tool_call_name, self._blocks
        if event.__class__ is not ToolCallStartEvent and self.find(call_id, ToolCallBlock) is None:
            blocks.append(ToolCallBlock(call_id, name))
        if event.__class__ not in _BEFORE_RESULTS and self.find(call_id, ToolResultBlock) is None:
            blocks.append(new_tool_result(call_id, name))

    def find(self, block_id: str, kind: type[_ReplyBlock]) -> _ReplyBlock | None:
        """Return a block, `None` if no event told of it."""
        with suppress(ValueError):
            block: _ReplyBlock = find_block(self._message, block_id, kind)
            return block
        return None
