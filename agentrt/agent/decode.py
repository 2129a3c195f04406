"""A model's answer, decoded into events."""

import logging
from collections.abc import Callable
from typing import Any

from agentrt.agent.pieces import DataPieces
from agentrt.errors import ChainContractError
from agentrt.event import (
    AgentEvent,
    DataBlockDeltaEvent,
    DataBlockEndEvent,
    DataBlockStartEvent,
    ModelCallEndEvent,
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
)
from agentrt.message import (
    Base64Source,
    ContentBlock,
    DataBlock,
    ProviderBlock,
    TextBlock,
    ThinkingBlock,
    ToolCallBlock,
)
from agentrt.types import ChatResponse, ChatUsage

__all__ = ["Decoder"]

_logger = logging.getLogger("agentrt")
Events = list[AgentEvent]
_NO_USAGE = ChatUsage()


class Decoder:
    """Turns one attempt at a model call into events.

    What was streamed is what was said; of the last response only what no piece delivered is added. Tool calls keep the
    ids that the provider gave them unless the reply has used that id before. `written` counts characters;
    `message_blocks` is what the message of the round says as it enters the layers.
    """

    __slots__ = (
        "_before",
        "_block_id",
        "_blocks",
        "_by",
        "_calls",
        "_data",
        "_last",
        "_media_types",
        "_names",
        "_new_id",
        "_open",
        "_pieces_of_data",
        "_reply_id",
        "_signature",
        "_streamed",
        "_taken",
        "message_blocks",
        "written",
    )

    def __init__(self, reply_id: str, new_id: Callable[[], str], taken: set[str], by: str) -> None:
        self._reply_id = reply_id
        self._new_id = new_id
        self._taken = taken
        self._by = by
        self._last: ChatResponse | None = None
        self.written = 0
        self.message_blocks: list[ContentBlock] | None = None
        self._reset()

    def _reset(self) -> None:
        self._before = self.written
        self._open: type | None = None
        self._block_id = ""
        self._signature: str | None = None
        self._streamed: set[type] = set()
        self._blocks: list[str] = []
        self._calls: dict[str, str] = {}
        self._names: dict[str, str] = {}
        self._data: dict[str, str] = {}
        self._pieces_of_data: DataPieces | None = None

    @property
    def block_ids(self) -> list[str]:
        """The ids of the blocks that were begun, and of the calls."""
        return self._blocks

    @property
    def calls_tools(self) -> bool:
        """Whether there is a tool call in it."""
        return bool(self._names)

    def discard(self) -> list[str]:
        """Forget everything so far; return the ids of the blocks that were begun."""
        blocks = self._blocks
        self._taken.difference_update(self._names)
        self._reset()
        return blocks

    def feed(self, response: Any) -> Events:
        """Return the events of one response of a stream."""
        if not isinstance(response, ChatResponse):
            raise ChainContractError(f"model {self._by!r} streamed {response!r:.200}: each item must be a ChatResponse")
        if self._last is not None:
            raise ChainContractError(
                f"model {self._by!r} streamed {response!r:.200} after the response with is_last=True: "
                f"end the stream there"
            )
        if not response.is_last:
            content = response.content
            if self._open is TextBlock and len(content) == 1 and content[0].__class__ is TextBlock:
                return self._more_text(content[0].text)
            return self._pieces(content)
        self._last = response
        return self._rest(response.content)

    def whole(self, content: list[ContentBlock]) -> Events:
        """Return the events of an answer that was not streamed, up to the ends of its blocks."""
        events: Events = []
        for block in _thinking_first(content):
            self._close(events)
            if isinstance(block, ToolCallBlock):
                self._whole_call(block, events)
            else:
                self._piece(block, events)
        self._close(events)
        return events

    def answer(self, response: ChatResponse) -> Events:
        """Return the events of an answer that was not streamed, to the end of the model call."""
        content = response.content
        if not isinstance(content, list):
            raise ChainContractError(
                f"model {self._by!r} answered with the content {content!r:.200}: it must be a list of blocks, "
                f"as in ChatResponse([TextBlock(text)])"
            )
        first = content[0] if len(content) == 1 else None
        if first.__class__ is TextBlock and first.text:
            events = self._one_text(first.text)
        elif first.__class__ is ToolCallBlock:
            events = self._one_call(first)
        else:
            events = self.said(content)
        events.append(self._model_call_end(response))
        return events

    def _one_text(self, text: str) -> Events:
        """What most whole answers are, in a third of the time."""
        self.written += len(text)
        block_id = self._new_id()
        self._blocks.append(block_id)
        return [
            TextBlockStartEvent(self._reply_id, block_id),
            TextBlockDeltaEvent(self._reply_id, block_id, _whole_characters(text)),
            TextBlockEndEvent(self._reply_id, block_id),
        ]

    def _one_call(self, block: ToolCallBlock) -> Events:
        """What most of the others are, in half of the time."""
        events: Events = []
        call_id = self._whole_call(block, events)
        events.append(ToolCallEndEvent(self._reply_id, call_id))
        return events

    def said(self, content: list[ContentBlock]) -> Events:
        """Return the events of an answer that was not streamed, to the ends of its blocks."""
        events = self.whole(content)
        self._end_blocks(events)
        return events

    def end(self) -> Events:
        """Return the events that end a stream; raises `ChainContractError` when no last response came."""
        if self._last is None:
            raise ChainContractError(
                f"the stream of model {self._by!r} ended without a response that has is_last=True: "
                f"end it with the whole content and is_last=True"
            )
        events: Events = []
        self._close(events)
        self._end_blocks(events)
        events.append(self._model_call_end(self._last))
        return events

    def _end_blocks(self, events: Events) -> None:
        for call_id in self._names:
            events.append(ToolCallEndEvent(self._reply_id, call_id))
        for block_id in self._data.values():
            rest = self._pieces_of_data.rest(block_id) if self._pieces_of_data is not None else ""
            if rest:
                events.append(DataBlockDeltaEvent(self._reply_id, block_id, self._media_types[block_id], rest))
            events.append(DataBlockEndEvent(self._reply_id, block_id))

    def _model_call_end(self, response: ChatResponse) -> ModelCallEndEvent:
        usage = response.usage or _NO_USAGE
        return ModelCallEndEvent(
            self._reply_id,
            usage.input_tokens,
            usage.output_tokens,
            usage.cache_input_tokens or 0,
            usage.cache_creation_input_tokens or 0,
            response.finished_reason,
            usage.estimated,
        )

    def _pieces(self, content: list[ContentBlock]) -> Events:
        events: Events = []
        for block in _thinking_first(content):
            self._piece(block, events)
        return events

    def _rest(self, content: list[ContentBlock]) -> Events:
        """Return the events of what the whole content holds and no piece delivered."""
        streamed_calls, streamed = set(self._calls), set(self._streamed)
        missing: list[ContentBlock] = []
        known = 0
        for block in content:
            is_known = block.id in streamed_calls if isinstance(block, ToolCallBlock) else type(block) in streamed
            if is_known:
                known += _size(block)
            else:
                missing.append(block)
        if 0 < known < self.written - self._before:
            # A layer may have added to it, so this is no error; mostly it is a model whose pieces grow.
            _logger.warning(
                "model %r streamed %d characters, but its whole answer has %d: each piece must hold only what is new",
                self._by,
                self.written - self._before,
                known,
            )
        return self.whole(missing) if missing else []

    def _piece(self, block: ContentBlock, events: Events) -> None:
        cls = block.__class__
        if cls is TextBlock:
            self._text(block, events)  # type: ignore[arg-type]  # by its class
        elif cls is ThinkingBlock:
            self._thinking(block, events)  # type: ignore[arg-type]  # by its class
        elif cls is ToolCallBlock:
            self._call_piece(block, events)  # type: ignore[arg-type]  # by its class
        elif cls is DataBlock:
            self._data_piece(block, events)  # type: ignore[arg-type]  # by its class
        elif cls is ProviderBlock:
            self._provider(block, events)  # type: ignore[arg-type]  # by its class
        else:
            raise ChainContractError(
                f"model {self._by!r} answered with {block!r:.200}: an answer holds text, thinking, data and tool calls"
            )

    def _more_text(self, text: str) -> Events:
        """What nearly every response of a stream is: more of the text that is open."""
        self.written += len(text)
        return [TextBlockDeltaEvent(self._reply_id, self._block_id, _whole_characters(text))] if text else []

    def _text(self, block: TextBlock, events: Events) -> None:
        if not block.text:
            return
        self.written += len(block.text)
        if self._open is not TextBlock:
            self._streamed.add(TextBlock)
            self._begin(TextBlock, events)
            events.append(TextBlockStartEvent(self._reply_id, self._block_id))
        events.append(TextBlockDeltaEvent(self._reply_id, self._block_id, _whole_characters(block.text)))

    def _thinking(self, block: ThinkingBlock, events: Events) -> None:
        if self._open is not ThinkingBlock and (block.thinking or block.signature):
            self._streamed.add(ThinkingBlock)
            self._begin(ThinkingBlock, events)
            events.append(ThinkingBlockStartEvent(self._reply_id, self._block_id))
        self._signature = block.signature or self._signature
        if block.thinking:
            self.written += len(block.thinking)
            events.append(ThinkingBlockDeltaEvent(self._reply_id, self._block_id, _whole_characters(block.thinking)))

    def _begin(self, kind: type, events: Events) -> None:
        self._close(events)
        self._open = kind
        self._block_id = self._new_id()
        self._blocks.append(self._block_id)

    def _close(self, events: Events) -> None:
        if self._open is TextBlock:
            events.append(TextBlockEndEvent(self._reply_id, self._block_id))
        elif self._open is ThinkingBlock:
            end = ThinkingBlockEndEvent(self._reply_id, self._block_id, self._signature)
            events.append(end)
            self._signature = None
        self._open = None

    def _call_piece(self, block: ToolCallBlock, events: Events) -> None:
        call_id = self._calls.get(block.id)
        if call_id is None or block.name not in ("", self._names[call_id]):
            call_id = self._start_call(block, events)
        if block.input:
            self.written += len(block.input)
            events.append(ToolCallDeltaEvent(self._reply_id, call_id, _whole_characters(block.input)))

    def _whole_call(self, block: ToolCallBlock, events: Events) -> str:
        call_id = self._start_call(block, events)
        self.written += len(block.input)
        events.append(ToolCallDeltaEvent(self._reply_id, call_id, _whole_characters(block.input)))
        return call_id

    def _start_call(self, block: ToolCallBlock, events: Events) -> str:
        if not isinstance(block.input, str):
            raise ChainContractError(
                f"model {self._by!r} called {block.name!r} with the input {block.input!r:.200}: it must be JSON text"
            )
        if self._open is not None:
            self._close(events)
        call_id = block.id if block.id and block.id not in self._taken else self._new_id()
        self._taken.add(call_id)
        self._calls[block.id] = call_id
        self._names[call_id] = block.name
        self._blocks.append(call_id)
        events.append(ToolCallStartEvent(self._reply_id, call_id, block.name))
        return call_id

    def _data_piece(self, block: DataBlock, events: Events) -> None:
        block_id = self._data.get(block.id)
        media_type = block.source.media_type
        if block_id is None:
            self._streamed.add(DataBlock)
            block_id = self._data[block.id] = self._new_id()
            self._blocks.append(block_id)
            events.append(DataBlockStartEvent(self._reply_id, block_id, media_type, block.name))
        source = block.source
        if isinstance(source, Base64Source):
            if self._pieces_of_data is None:
                self._pieces_of_data = DataPieces()
                self._media_types: dict[str, str] = {}
            self._media_types[block_id] = media_type
            data = self._pieces_of_data.take(block_id, source.data)
            if data or not source.data:
                events.append(DataBlockDeltaEvent(self._reply_id, block_id, media_type, data))
        else:
            events.append(DataBlockDeltaEvent(self._reply_id, block_id, media_type, None, source.url))

    def _provider(self, block: ProviderBlock, events: Events) -> None:
        self.written += len(block.content)
        self._streamed.add(ProviderBlock)
        self._close(events)
        block_id = self._new_id()
        self._blocks.append(block_id)
        events.append(ProviderBlockEvent(self._reply_id, block_id, block.provider, _whole_characters(block.content)))


def _size(block: ContentBlock) -> int:
    if isinstance(block, TextBlock):
        return len(block.text)
    if isinstance(block, ThinkingBlock):
        return len(block.thinking)
    if isinstance(block, ProviderBlock):
        return len(block.content)
    return len(block.input) if isinstance(block, ToolCallBlock) else 0


def _thinking_first(content: list[ContentBlock]) -> list[ContentBlock]:
    # Between the things that a provider does it may think anew, and wants its thoughts back where they were.
    if len(content) == 1 or any(isinstance(block, ProviderBlock) for block in content):
        return content
    return sorted(content, key=lambda block: not isinstance(block, ThinkingBlock))


def _whole_characters(text: str) -> str:
    # Half of a surrogate pair fits into no file and no wire, and would make the whole conversation unfit for them.
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text
