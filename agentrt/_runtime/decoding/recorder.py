"""Rebuilds a message from the events at one point of a reply."""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any

from agentrt._runtime.block import (
    ContentBlock,
    DataBlock,
    HintBlock,
    ProviderBlock,
    TextBlock,
    ThinkingBlock,
    ToolCallBlock,
    ToolResultBlock,
)
from agentrt.event import (
    AgentEvent,
    DataBlockEndEvent,
    HintBlockEvent,
    ProviderBlockEvent,
    TextBlockDeltaEvent,
    TextBlockEndEvent,
    TextBlockStartEvent,
    ThinkingBlockEndEvent,
    ToolResultEndEvent,
)
from agentrt.message import APPLY, CALL_EVENTS, Msg, find_block, new_reply_message

# A call ends with its result: until then, its tool runs with the arguments as the model wrote them.
_ENDED_BY: dict[type[AgentEvent], tuple[type[Any], ...]] = {
    TextBlockEndEvent: (TextBlock,),
    ThinkingBlockEndEvent: (ThinkingBlock,),
    DataBlockEndEvent: (DataBlock,),
    HintBlockEvent: (HintBlock,),
    ProviderBlockEvent: (ProviderBlock,),
    ToolResultEndEvent: (ToolCallBlock, ToolResultBlock),
}


class Recorder:
    """Builds a message from the events of one reply.

    The deltas of the open text are joined at the next other event: appending to a list takes a third of the time.
    """

    __slots__ = ("_block_id", "_message", "_pieces", "_reply_id")

    def __init__(self, reply_id: str, name: str) -> None:
        self._reply_id = reply_id
        self._message = new_reply_message(name, reply_id)
        self._block_id = ""
        self._pieces: list[str] = []

    def record(self, event: Any) -> Sequence[ContentBlock]:
        """Apply an event, unless it belongs to another reply; returns the blocks that it ends."""
        cls = event.__class__
        if event.reply_id != self._reply_id:
            return ()
        if cls is TextBlockDeltaEvent and event.block_id == self._block_id:
            self._pieces.append(event.delta)
            return ()
        if self._pieces:
            self._join()
        if cls is TextBlockStartEvent:
            self._block_id = event.block_id
        if cls in CALL_EVENTS and "/" in event.tool_call_id:
            return ()
        apply = APPLY.get(cls)
        if apply is not None:
            try:  # noqa: SIM105  # each event passes here, and `suppress` costs more than the rest
                apply(self._message, event)
            except ValueError:  # a layer may have made up inconsistent events, or held some back
                pass
        kinds = _ENDED_BY.get(cls)
        if kinds is None:
            return ()
        block_id = event.tool_call_id if cls is ToolResultEndEvent else event.block_id
        ended: list[ContentBlock] = []
        for kind in kinds:
            try:
                ended.append(find_block(self._message, block_id, kind))
            except ValueError:  # likewise
                continue
        return ended

    def record_answer(self, events: Iterable[Any]) -> None:
        """Apply what a model says, which is all of this reply."""
        for event in events:
            self.record(event)

    @property
    def message(self) -> Msg:
        self._join()
        return self._message

    @property
    def blocks(self) -> list[ContentBlock]:
        """The content of the message so far."""
        return self.message.content  # type: ignore[return-value]  # never a str

    def _join(self) -> None:
        more, self._pieces = self._pieces, []
        if more:
            with suppress(ValueError):  # likewise
                find_block(self._message, self._block_id, TextBlock).text += "".join(more)
