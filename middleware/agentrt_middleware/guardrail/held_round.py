"""The output of one round, held until it has been judged."""

from collections.abc import Iterator
from dataclasses import replace
from math import inf

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

_TEXT_EVENTS = (TextBlockStartEvent, TextBlockDeltaEvent, TextBlockEndEvent)
_SAYS_NOTHING = (ModelCallStartEvent, CustomEvent)


class HeldRound:
    """Takes the items of a round, and gives those at once that say nothing of the answer.

    With a `window`, text is judged as soon as it has that many characters, and may then leave.
    """

    def __init__(self, reply_id: str, window: int | None = None) -> None:
        self._reply_id = reply_id
        self._window = window or inf
        self._context_length = (window or 0) // 2
        self._items: list[AgentEvent | Msg] = []
        self._unjudged = 0  # characters of text in them
        self._has_call = False
        self._judged: list[AgentEvent | Msg] = []  # with a window: what leaves if nobody objects
        self._context = ""  # the end of what has left
        self._sent: list[str] = []
        self._sent_ids: dict[str, None] = {}

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
            self._withdraw(set(item.block_ids))
            return True
        if isinstance(item, _SAYS_NOTHING):
            return True
        self._items.append(item)
        if isinstance(item, TextBlockDeltaEvent):
            self._unjudged += len(item.delta)
        elif isinstance(item, TextBlockEndEvent):
            self._unjudged += len(item.text or "")
        # No call leaves before the whole round has been judged, and nothing that comes after one.
        self._has_call = self._has_call or isinstance(item, ToolCallStartEvent)
        return False

    @property
    def is_due(self) -> bool:
        """Whether enough has come to be judged before the rest."""
        return self._unjudged >= self._window and not self._has_call

    def begin_window(self) -> str:
        """Return the text to be judged now, after the end of what has left."""
        text = self.text()
        self._judged, self._items, self._unjudged = self._items, [], 0
        return text

    def release_window(self) -> list[AgentEvent | Msg]:
        """Return what has been judged, which leaves."""
        judged, self._judged = self._judged, []
        text = _joined_text(judged)
        self._sent.append(text)
        text = self._context + text
        self._context = text[max(0, len(text) - self._context_length) :]
        self._sent_ids.update(dict.fromkeys(block_id for item in judged if (block_id := _id_of(item)) is not None))
        return judged

    def sent_ids(self) -> list[str]:
        """Return the ids of the blocks that have left."""
        return list(self._sent_ids)

    def text(self) -> str:
        """Return the text of the answer that is held, after the end of what has left."""
        text = _joined_text(self._items)
        # The message at the end says what the events have said, unless a layer has put another one there.
        messages = [item.get_text_content("") or "" for item in self._items if isinstance(item, Msg)]
        others = [message for message in messages if message != "".join(self._sent) + text]
        return self._context + text + "".join(others)

    def _withdraw(self, block_ids: set[str]) -> None:
        self._items = [held for held in self._items if _id_of(held) not in block_ids]
        self._judged = [held for held in self._judged if _id_of(held) not in block_ids]
        self._unjudged = len(_joined_text(self._items))
        self._has_call = any(isinstance(held, ToolCallStartEvent) for held in self._items)
        if not block_ids.isdisjoint(self._sent_ids):
            self._context = ""
            self._sent.clear()
            for block_id in block_ids:
                self._sent_ids.pop(block_id, None)

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


def _joined_text(items: list[AgentEvent | Msg]) -> str:
    """Return what the blocks of text say; the end of a block may say something else than its pieces."""
    texts: dict[str, list[str]] = {}
    for item in items:
        if isinstance(item, TextBlockDeltaEvent):
            texts.setdefault(item.block_id, []).append(item.delta)
        elif isinstance(item, TextBlockEndEvent) and item.text is not None:
            texts[item.block_id] = [item.text]
    return "".join("".join(pieces) for pieces in texts.values())


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
