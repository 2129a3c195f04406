"""The output of one round, held until it has been judged."""

from collections.abc import Iterator
from dataclasses import replace

from agentrt.event import (
    AgentEvent,
    BlocksWithdrawnEvent,
    CustomEvent,
    ModelCallEndEvent,
    ModelCallRetryEvent,
    ModelCallStartEvent,
    TextBlockDeltaEvent,
    TextBlockEndEvent,
    TextBlockStartEvent,
    ToolCallDeltaEvent,
    ToolCallStartEvent,
)
from agentrt.message import ContentBlock, Msg, TextBlock
from agentrt.types import STRUCTURED_OUTPUT

__all__ = ["HeldRound"]

_TEXT_EVENTS = (TextBlockStartEvent, TextBlockDeltaEvent, TextBlockEndEvent)
_SAYS_NOTHING = (ModelCallStartEvent, CustomEvent)


class HeldRound:
    """Takes the items of a round, and gives those at once that say nothing of the answer."""

    def __init__(self, reply_id: str) -> None:
        self._reply_id = reply_id
        self._items: list[AgentEvent | Msg] = []

    def take(self, item: object) -> bool:
        """Take in an item; returns whether it may leave at once."""
        if isinstance(item, Msg):
            self._items.append(item)
            return False
        if not isinstance(item, AgentEvent) or item.reply_id not in (
            "",
            self._reply_id,
        ):  # of another reply, which is not ours to judge
            return True
        if isinstance(item, (ModelCallRetryEvent, BlocksWithdrawnEvent)):
            withdrawn = set(item.block_ids)
            self._items = [held for held in self._items if _id_of(held) not in withdrawn]
            return True
        if isinstance(item, _SAYS_NOTHING):
            return True
        self._items.append(item)
        return False

    def text(self) -> str:
        """Return the text of the answer; without events of it, that of its message."""
        text = "".join(item.delta for item in self._items if isinstance(item, TextBlockDeltaEvent))
        if text:
            return text
        return "".join(item.get_text_content() or "" for item in self._items if isinstance(item, Msg))

    def structured_outputs(self) -> dict[str, str]:
        """Return the answers that were asked for in a form, as JSON, by the ids of their calls."""
        outputs: dict[str, str] = {}
        for item in self._items:
            if isinstance(item, ToolCallStartEvent) and item.tool_call_name == STRUCTURED_OUTPUT:
                outputs[item.tool_call_id] = ""
            elif isinstance(item, ToolCallDeltaEvent) and item.tool_call_id in outputs:
                outputs[item.tool_call_id] += item.delta
        return outputs

    def replace_text(self, text: str) -> None:
        """Let the round say this instead, in one block."""
        first: str | None = None
        items: list[AgentEvent | Msg] = []
        for item in self._items:
            if isinstance(item, Msg):
                items.append(_say_instead(item, text))
            elif not isinstance(item, _TEXT_EVENTS):
                items.append(item)
            elif isinstance(item, TextBlockStartEvent) and first is None:
                first = item.block_id
                items += [item, TextBlockDeltaEvent(item.reply_id, first, text)]
            elif isinstance(item, TextBlockEndEvent) and item.block_id == first:
                items.append(replace(item, text=None))
        self._items = items

    def replace_input(self, call_id: str, text: str) -> None:
        """Let the call have this input instead."""
        items: list[AgentEvent | Msg] = []
        for item in self._items:
            if isinstance(item, ToolCallDeltaEvent) and item.tool_call_id == call_id:
                continue
            items.append(item)
            if isinstance(item, ToolCallStartEvent) and item.tool_call_id == call_id:
                items.append(ToolCallDeltaEvent(item.reply_id, call_id, text))
        self._items = items

    def release(self) -> Iterator[AgentEvent | Msg]:
        """Yield what is held."""
        yield from self._items

    def end_of_call(self) -> Iterator[AgentEvent]:
        """Yield what tells what the model's answer has cost, and nothing of what it says."""
        return (item for item in self._items if isinstance(item, ModelCallEndEvent))


def _id_of(item: AgentEvent | Msg) -> str | None:
    return getattr(item, "block_id", None) or getattr(item, "tool_call_id", None)


def _say_instead(message: Msg, text: str) -> Msg:
    if isinstance(message.content, str):
        return replace(message, content=text)
    content: list[ContentBlock] = []
    has_text = False
    for block in message.content:
        if not isinstance(block, TextBlock):
            content.append(block)
        elif not has_text:
            has_text = True
            content.append(TextBlock(text, block.id))
    return replace(message, content=content)
