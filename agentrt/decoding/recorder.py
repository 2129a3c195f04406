"""A message rebuilt from the events that pass one place of a reply."""

from agentrt.block import ContentBlock, TextBlock, ThinkingBlock
from agentrt.event import (
    AgentEvent,
    BlocksWithdrawnEvent,
    DataBlockDeltaEvent,
    DataBlockEndEvent,
    DataBlockStartEvent,
    ModelCallEndEvent,
    ModelCallRetryEvent,
    ProviderBlockEvent,
    ReplyResumedEvent,
    TextBlockDeltaEvent,
    TextBlockEndEvent,
    TextBlockStartEvent,
    ThinkingBlockDeltaEvent,
    ThinkingBlockEndEvent,
    ThinkingBlockStartEvent,
)
from agentrt.message import Msg, new_reply_message

__all__ = ["DELTAS", "RECORDED", "Recorder"]

DELTAS: frozenset[type[AgentEvent]] = frozenset({TextBlockDeltaEvent, ThinkingBlockDeltaEvent})
"""The events that come by the thousand."""
RECORDED: frozenset[type[AgentEvent]] = DELTAS | {
    TextBlockStartEvent,
    TextBlockEndEvent,
    ThinkingBlockStartEvent,
    ThinkingBlockEndEvent,
    DataBlockStartEvent,
    DataBlockDeltaEvent,
    DataBlockEndEvent,
    ProviderBlockEvent,
    ModelCallRetryEvent,
    BlocksWithdrawnEvent,
    ReplyResumedEvent,
}
"""The events that say something, or take back what was said."""


class Recorder:
    """Builds a message from the events of one reply that say something; what is done with tools is left out.

    `pieces` holds the deltas of the open block that are not joined yet: a list takes them in a third of the time.
    """

    __slots__ = ("_block_id", "_message", "pieces")

    def __init__(self, reply_id: str, name: str) -> None:
        self._message = new_reply_message(name, reply_id)
        self._block_id = ""
        self.pieces: list[str] = []

    def record(self, event: AgentEvent) -> None:
        """Take in an event; one that says nothing, or belongs to another reply, is passed over."""
        cls = event.__class__
        if event.reply_id != self._message.id:
            return
        if cls in DELTAS and event.block_id == self._block_id:  # type: ignore[attr-defined]  # deltas have one
            self.pieces.append(event.delta)  # type: ignore[attr-defined]
        elif cls in RECORDED or cls is ModelCallEndEvent:
            self._join()
            try:
                self._message.append_event(event)
            except ValueError:  # a layer has made up events that do not fit together
                return
            if cls is TextBlockStartEvent or cls is ThinkingBlockStartEvent:
                self._block_id = event.block_id  # type: ignore[attr-defined]  # starts of blocks have one

    @property
    def message(self) -> Msg:
        """The message so far."""
        self._join()
        return self._message

    @property
    def blocks(self) -> list[ContentBlock]:
        """What the message says so far."""
        self._join()
        return self._message.content  # type: ignore[return-value]  # never a str

    def _join(self) -> None:
        if not self.pieces:
            return
        more = "".join(self.pieces)
        self.pieces.clear()
        for block in reversed(self._message.content):
            if isinstance(block, (TextBlock, ThinkingBlock)) and block.id == self._block_id:
                name = "text" if isinstance(block, TextBlock) else "thinking"
                setattr(block, name, getattr(block, name) + more)
                break
