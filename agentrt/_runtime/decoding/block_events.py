"""The blocks of a model's answer, whole or in pieces, as events."""

import sys
from collections.abc import Callable, Iterator
from itertools import repeat
from time import time_ns

from agentrt._runtime.block import HIDDEN_CALL
from agentrt._runtime.decoding.base64_groups import DataPieces
from agentrt._runtime.text import whole_characters
from agentrt.event import (
    AgentEvent,
    DataBlockDeltaEvent,
    DataBlockEndEvent,
    DataBlockStartEvent,
    ProviderBlockEvent,
    TextBlockDeltaEvent,
    TextBlockEndEvent,
    TextBlockStartEvent,
    ThinkingBlockDeltaEvent,
    ThinkingBlockEndEvent,
    ThinkingBlockStartEvent,
    ToolCallDeltaEvent,
    ToolCallEndEvent,
    ToolCallStartEvent,
    ToolResultEndEvent,
    ToolResultStartEvent,
    ToolResultTextDeltaEvent,
)
from agentrt.message import (
    Base64Source,
    ContentBlock,
    DataBlock,
    ProviderBlock,
    TextBlock,
    ThinkingBlock,
    ToolCallBlock,
    ToolResultBlock,
    ToolResultState,
)

Events = list[AgentEvent]

NO_NUMBERS = repeat(0)
"""For events that get their numbers as they leave."""
bare_event = object.__new__
"""Makes an event without fields, at half the price of a call of its class; its maker sets all of them."""
# Providers refuse an empty name; a call of this one is answered with "no such tool".
_NAMELESS = "tool_without_a_name"


def events_of(reply_id: str, block: ContentBlock, numbers: Iterator[int] = NO_NUMBERS) -> Events:
    """Return the events that make a block which was put on record as it is: applied in order, they give the block."""
    if type(block) is ToolResultBlock:
        begun: Events = [ToolResultStartEvent(reply_id, block.id, block.name)]
        begun[0].seq = next(numbers)
        return begun if block.state is ToolResultState.RUNNING else begun + events_of_output(reply_id, block, numbers)
    now = time_ns()
    if type(block) is ToolCallBlock:
        call_id, name = block.id, block.name
        call = bare_event(ToolCallStartEvent)
        call.reply_id, call.tool_call_id, call.tool_call_name = reply_id, call_id, name
        call.seq, call.created_at, call.metadata = next(numbers), now, None
        call.type = "TOOL_CALL_START"
        arguments = bare_event(ToolCallDeltaEvent)
        arguments.reply_id, arguments.tool_call_id, arguments.tool_call_name = reply_id, call_id, name
        arguments.seq, arguments.created_at, arguments.metadata = next(numbers), now, None
        arguments.delta, arguments.type = block.input, "TOOL_CALL_DELTA"
        written = bare_event(ToolCallEndEvent)
        written.reply_id, written.tool_call_id, written.tool_call_name = reply_id, call_id, name
        written.seq, written.created_at, written.metadata = next(numbers), now, None
        written.type = "TOOL_CALL_END"
        return [call, arguments, written]
    assert block.__class__ is TextBlock
    block_id = block.id
    start = bare_event(TextBlockStartEvent)
    start.reply_id, start.block_id, start.type = reply_id, block_id, "TEXT_BLOCK_START"
    start.seq, start.created_at, start.metadata = next(numbers), now, None
    delta = bare_event(TextBlockDeltaEvent)
    delta.reply_id, delta.block_id, delta.type = reply_id, block_id, "TEXT_BLOCK_DELTA"
    delta.seq, delta.created_at, delta.metadata = next(numbers), now, None
    delta.delta = block.text
    end = bare_event(TextBlockEndEvent)
    end.reply_id, end.block_id, end.type = reply_id, block_id, "TEXT_BLOCK_END"
    end.seq, end.created_at, end.metadata = next(numbers), now, None
    end.text = None
    return [start, delta, end]


def events_of_output(reply_id: str, result: ToolResultBlock, numbers: Iterator[int] = NO_NUMBERS) -> Events:
    """Return the events that end a result which is texts, after the one that starts it."""
    now, call_id, name = time_ns(), result.id, result.name
    events: Events = []
    for part in result.output:
        assert isinstance(part, TextBlock)
        text = bare_event(ToolResultTextDeltaEvent)
        text.reply_id, text.tool_call_id, text.tool_call_name = reply_id, call_id, name
        text.seq, text.created_at, text.metadata = next(numbers), now, None
        text.block_id, text.delta, text.type = part.id, part.text, "TOOL_RESULT_TEXT_DELTA"
        events.append(text)
    end = bare_event(ToolResultEndEvent)
    end.reply_id, end.tool_call_id, end.tool_call_name = reply_id, call_id, name
    end.seq, end.created_at, end.metadata = next(numbers), now, result.metadata or None
    end.state, end.output, end.type = result.state, None, "TOOL_RESULT_END"
    events.append(end)
    return events


class BlockEvents:
    """Turns blocks into the events that start, fill and end them, up to a limit of characters.

    Text and thinking are open one at a time, and end when another block starts; calls and data end with the answer,
    since pieces of several may alternate. `written` counts characters: of texts, data, ids and names. If it
    exceeds `limit`, text is cut, and a note replaces any other block.
    """

    __slots__ = (
        "_block_id",
        "_block_ids",
        "_call_ids",
        "_call_names",
        "_data_ids",
        "_has_provider_block",
        "_keep_text",
        "_media_types",
        "_new_id",
        "_open_kind",
        "_pieces_of_data",
        "_reply_id",
        "_signature",
        "_streamed_inputs",
        "_streamed_texts",
        "_taken_call_ids",
        "limit",
        "written",
    )

    def __init__(
        self, reply_id: str, new_id: Callable[[], str], taken_call_ids: dict[str, bool], limit: int = sys.maxsize
    ) -> None:
        self._reply_id = reply_id
        self._new_id = new_id
        self._taken_call_ids = taken_call_ids
        self.limit = limit
        self.written = 0
        self._reset()

    def _reset(self) -> None:
        self._open_kind: type | None = None
        self._block_id = ""
        self._signature: str | None = None
        self._block_ids: list[str] = []
        self._call_ids: dict[str, str] = {}  # by the provider's id
        self._call_names: dict[str, str] = {}
        self._data_ids: dict[str, str] = {}
        self._pieces_of_data: DataPieces | None = None
        # The streamed content, to find the additions of a whole answer: what calls were given by their ids, and the
        # texts by the kind and the id of their blocks.
        self._has_provider_block = False
        self._streamed_inputs: dict[str, list[str]] = {}
        self._streamed_texts: dict[type, dict[str, list[str]]] = {}
        self._keep_text: Callable[[str], None] | None = None

    @property
    def block_ids(self) -> list[str]:
        """The ids of started blocks, and of calls."""
        return self._block_ids

    def text_of(self, block: TextBlock) -> str:
        """Return the text of a block, all of it where the block was recorded without its deltas."""
        pieces = self._streamed_texts.get(TextBlock, {}).get(block.id)
        if pieces is None:
            return block.text
        text = "".join(pieces)
        return text if text.isascii() else "".join(map(whole_characters, pieces))  # as the deltas were mended

    @property
    def calls_tools(self) -> bool:
        """Whether there is a tool call among the blocks."""
        return bool(self._call_names)

    def _add_whole(self, block: ContentBlock, events: Events) -> None:
        self._close(events)
        if isinstance(block, ToolCallBlock):
            self._add_whole_call(block, events)
        else:
            self._add_piece(block, events)

    def _add_piece(self, block: ContentBlock, events: Events) -> None:
        if isinstance(block, TextBlock):
            self._add_text(block, events)
        elif isinstance(block, ThinkingBlock):
            self._add_thinking(block, events)
        elif isinstance(block, ToolCallBlock):
            call_id = self._call_ids.get(block.id)
            if call_id is None or block.name not in ("", self._call_names[call_id]):
                call_id = self._start_call(block, events)
            if call_id is not None and block.input:
                self._add_call_input(call_id, block.input, events)
        elif isinstance(block, DataBlock):
            self._add_data(block, events)
        elif isinstance(block, ProviderBlock):
            self._add_provider_block(block, events)

    def _add_text(self, block: TextBlock, events: Events) -> None:
        text = self._cut_to_limit(block.text)
        if not text:
            return
        if self._open_kind is not TextBlock:
            self._begin(TextBlock, events)
            events.append(TextBlockStartEvent(self._reply_id, self._block_id))
        self._keep_text(text)  # type: ignore[misc]  # set with what is open
        events.append(TextBlockDeltaEvent(self._reply_id, self._block_id, text))

    def _add_thinking(self, block: ThinkingBlock, events: Events) -> None:
        if block.signature and not self._fits(len(block.signature), "a signature", events):
            return
        text = self._cut_to_limit(block.thinking)
        if self._open_kind is not ThinkingBlock and (text or block.signature):
            self._begin(ThinkingBlock, events)
            events.append(ThinkingBlockStartEvent(self._reply_id, self._block_id))
        self._signature = block.signature or self._signature
        if text:
            self._keep_text(text)  # type: ignore[misc]  # set with what is open
            events.append(ThinkingBlockDeltaEvent(self._reply_id, self._block_id, text))

    def _cut_to_limit(self, text: str) -> str:
        """Count the text; returns the part within the limit."""
        room = self.limit - self.written
        self.written += len(text)
        return text if len(text) <= room else text[: max(room, 0)]

    def _fits(self, size: int, what: str, events: Events) -> bool:
        """Count the size of a block; one beyond the limit is replaced by a note, which ends the answer."""
        before = self.written
        self.written += size
        if self.written <= self.limit:
            return True
        if before <= self.limit:  # only the first block beyond the limit gets a note
            self._begin(TextBlock, events)
            note = f"[left out: {what}, {size:,} characters, more than max_output allows]"
            events.append(TextBlockStartEvent(self._reply_id, self._block_id))
            events.append(TextBlockDeltaEvent(self._reply_id, self._block_id, note))
            self._close(events)
        return False

    def _begin(self, kind: type, events: Events) -> None:
        self._close(events)
        self._open_kind = kind
        self._block_id = self._new_id()
        pieces = self._streamed_texts.setdefault(kind, {})[self._block_id] = []
        self._keep_text = pieces.append
        self._block_ids.append(self._block_id)

    def _close(self, events: Events) -> None:
        if self._open_kind is TextBlock:
            events.append(TextBlockEndEvent(self._reply_id, self._block_id))
        elif self._open_kind is ThinkingBlock:
            events.append(ThinkingBlockEndEvent(self._reply_id, self._block_id, self._signature))
            self._signature = None
        self._open_kind = self._keep_text = None

    def _add_call_input(self, call_id: str, text: str, events: Events) -> None:
        if self._fits(len(text), "the input of a call", events):
            self._streamed_inputs.setdefault(call_id, []).append(text)
            events.append(ToolCallDeltaEvent(self._reply_id, call_id, text, tool_call_name=self._call_names[call_id]))

    def _add_whole_call(self, block: ToolCallBlock, events: Events) -> None:
        # Checked first: a call whose input does not fit must not start.
        if self.written + len(block.input) > self.limit:
            self._fits(len(block.input), f"a call of {block.name[:64]}", events)
            return
        call_id = self._start_call(block, events)
        if call_id is not None:
            self.written += len(block.input)
            name = self._call_names[call_id]
            events.append(ToolCallDeltaEvent(self._reply_id, call_id, block.input, tool_call_name=name))

    def _start_call(self, block: ToolCallBlock, events: Events) -> str | None:
        """Start a call and return its id, or `None` if it is beyond the limit."""
        size = len(block.id) + len(block.name or _NAMELESS)
        if self.written + size > self.limit:
            self._fits(size, "a call", events)
            return None
        self.written += size
        if self._open_kind is not None:
            self._close(events)
        call_id = self._note_call(block)
        events.append(ToolCallStartEvent(self._reply_id, call_id, self._call_names[call_id]))
        return call_id

    def _note_call(self, block: ToolCallBlock) -> str:
        # A reused id would mix up two calls: results are found by it.
        call_id = block.id
        # A slash separates paths of inner calls. The id of a hidden call is reserved for the call that it was assigned
        # to.
        if not call_id or self._taken_call_ids.get(call_id, call_id.startswith(HIDDEN_CALL)) or "/" in call_id:
            call_id = self._new_id()
        self._taken_call_ids[call_id] = True
        self._call_ids[block.id] = call_id
        self._call_names[call_id] = block.name or _NAMELESS
        self._block_ids.append(call_id)
        return call_id

    def _add_data(self, block: DataBlock, events: Events) -> None:
        source, media_type = block.source, block.source.media_type
        data, url = (source.data, None) if isinstance(source, Base64Source) else (None, source.url)
        size = len(data or url or "") + len(media_type) + len(block.name or "")
        if not self._fits(size, f"data of the type {media_type[:64]}", events):
            return
        block_id = self._data_ids.get(block.id)
        if block_id is None:
            block_id = self._data_ids[block.id] = self._new_id()
            self._block_ids.append(block_id)
            events.append(DataBlockStartEvent(self._reply_id, block_id, media_type, block.name))
        if data is None:
            events.append(DataBlockDeltaEvent(self._reply_id, block_id, media_type, None, url))
            return
        if self._pieces_of_data is None:
            self._pieces_of_data = DataPieces()  # lazily: hardly any answer holds data
            self._media_types: dict[str, str] = {}
        self._media_types[block_id] = media_type
        piece = self._pieces_of_data.take(block_id, data)
        if piece or not data:
            events.append(DataBlockDeltaEvent(self._reply_id, block_id, media_type, piece))

    def _add_provider_block(self, block: ProviderBlock, events: Events) -> None:
        if not self._fits(len(block.content), f"what {block.provider[:64]} did on its side", events):
            return
        self._has_provider_block = True
        self._close(events)
        block_id = self._new_id()
        self._block_ids.append(block_id)
        events.append(ProviderBlockEvent(self._reply_id, block_id, block.provider, block.content))

    def _end_blocks(self, events: Events) -> None:
        for call_id, name in self._call_names.items():
            events.append(ToolCallEndEvent(self._reply_id, call_id, tool_call_name=name))
        for block_id in self._data_ids.values():
            rest = self._pieces_of_data.rest(block_id) if self._pieces_of_data is not None else ""
            if rest:
                events.append(DataBlockDeltaEvent(self._reply_id, block_id, self._media_types[block_id], rest))
            events.append(DataBlockEndEvent(self._reply_id, block_id))
