"""A model's answer, decoded into events."""

import logging
import sys
from collections.abc import Callable
from typing import Any

from agentrt.boundary import mend_block, whole_characters
from agentrt.decoding.base64_groups import DataPieces
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
from agentrt.text import repr_of
from agentrt.types import ChatResponse, ChatUsage

__all__ = ["Decoder"]

_logger = logging.getLogger("agentrt")
Events = list[AgentEvent]
_MAX_TOKENS = 1 << 53  # nobody has so many, and readers of JSON keep no larger number exactly
_LARGE = 4_096  # characters: a piece that has as many is looked at before it is handed on
# No provider takes a name that is empty; the model is told that there is no such tool.
_NAMELESS = "tool_without_a_name"
_WRITTEN_BY_MODELS = (TextBlock, ThinkingBlock, DataBlock, ToolCallBlock, ProviderBlock)


class Decoder:
    """Turns one attempt at a model call into events.

    What was streamed is what was said; of the last response only what no piece delivered is added, and where there is
    no last response the pieces are the answer. Tool calls keep the ids that the provider gave them unless the reply has
    used that id before. What could not be kept or sent again is mended, or refused with `ChainContractError`.

    `written` counts characters: of texts, data, ids and names, and at least one for each response. Where it comes to
    more than `limit`, text is cut, and a note stands in the place of any other block. `message_blocks`
    is what the message of the round says as it enters the layers.
    """

    __slots__ = (
        "_before",
        "_block_id",
        "_blocks",
        "_by",
        "_calls",
        "_data",
        "_hook",
        "_keep",
        "_last",
        "_latest",
        "_media_types",
        "_names",
        "_new_id",
        "_open",
        "_pieces_of_data",
        "_reason",
        "_reply_id",
        "_said",
        "_signature",
        "_streamed",
        "_taken",
        "_usage",
        "limit",
        "message_blocks",
        "written",
    )

    def __init__(
        self,
        reply_id: str,
        new_id: Callable[[], str],
        taken: set[str],
        by: str,
        *,
        hook: str = "on_model_call",
        limit: int = sys.maxsize,
    ) -> None:
        self._reply_id = reply_id
        self._new_id = new_id
        self._taken = taken
        self._by = by
        self._hook = hook
        self.limit = limit
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
        # What the pieces said, by the kind of block or the id of the call, to know what the last response adds to it.
        self._said: dict[type | str, list[str]] = {}
        self._keep: Callable[[str], None] | None = None
        self._latest: ChatResponse | None = None
        self._usage: ChatUsage | None = None
        self._reason: str | None = None

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
        # What nearly every response is: more of the text or the thinking that is open.
        if response.__class__ is ChatResponse and not response.is_last:
            content = response.content
            if content.__class__ is list and len(content) == 1:
                block: Any = content[0]
                kind = block.__class__
                if kind is self._open:
                    text = block.text if kind is TextBlock else _plain_thinking(block)
                    if text.__class__ is str and 0 < (size := len(text)) < _LARGE:
                        self._latest = response
                        self.written += size
                        self._keep(text)  # type: ignore[misc]  # set with what is open
                        delta = text if text.isascii() else whole_characters(text)
                        if kind is TextBlock:
                            return [TextBlockDeltaEvent(self._reply_id, self._block_id, delta)]
                        return [ThinkingBlockDeltaEvent(self._reply_id, self._block_id, delta)]
        return self._feed(response)

    def _feed(self, response: Any) -> Events:
        if not isinstance(response, ChatResponse):
            raise self._refused(f"streamed {repr_of(response)}: each item must be a ChatResponse")
        if self._last is not None:
            raise self._refused(
                f"streamed {repr_of(response)} after the response with is_last=True: end the stream there"
            )
        self._note(self._latest)
        self._note(response)
        self._latest = response
        content = self._checked(response.content)
        events: Events = []
        if response.is_last:
            self._last = response
            self._rest(content, events)
            self._close(events)
            return events
        written = self.written
        for block in content if len(content) == 1 else _thinking_first(content):
            self._piece(block, events)
        if self.written == written:
            self.written += 1  # a stream of nothing has an end, too
        return events

    def _note(self, response: ChatResponse | None) -> None:
        """Remember what a piece says of the whole, for a stream that ends without a last response."""
        if response is not None:
            self._usage = self._usage if response.usage is None else response.usage
            self._reason = self._reason if response.finished_reason is None else response.finished_reason

    def _checked(self, content: Any) -> list[ContentBlock]:
        """Return the content, each block of which can be kept."""
        if not isinstance(content, (list, tuple)):
            raise self._refused(
                f"answered with the content {repr_of(content)}: it must be a list of blocks, "
                f"as in ChatResponse([TextBlock(text)])"
            )
        return [block if _is_plain(block) else self._checked_block(block) for block in content]

    def _checked_block(self, block: Any) -> ContentBlock:
        if block.__class__ not in _WRITTEN_BY_MODELS:
            raise self._refused(f"answered with {repr_of(block)}: an answer holds text, thinking, data and tool calls")
        try:
            return mend_block(block, empty=True)
        except ValueError as error:
            problem = str(error)
        raise self._refused(f"answered with {problem}")

    def _refused(self, what: str) -> ChainContractError:
        return ChainContractError(f"{self._hook}: model {self._by!r} {what}")

    def answer(self, response: ChatResponse) -> Events:
        """Return the events of an answer that was not streamed, to the end of the model call."""
        self._last = response
        content = response.content
        first = content[0] if content.__class__ is list and len(content) == 1 else None
        if first.__class__ is TextBlock and first.text.__class__ is str and 0 < len(first.text) < _LARGE:
            events = self._one_text(first.text)
        elif first.__class__ is ToolCallBlock and _is_plain(first):
            events = []
            self._whole_call(first, events)
            self._end_blocks(events)
        else:
            events = self.said(content)
        events.append(self._model_call_end(response.usage, response.finished_reason))
        return events

    def _one_text(self, text: str) -> Events:
        """What most whole answers are, in a third of the time."""
        self.written += len(text)
        block_id = self._new_id()
        self._blocks.append(block_id)
        return [
            TextBlockStartEvent(self._reply_id, block_id),
            TextBlockDeltaEvent(self._reply_id, block_id, whole_characters(text)),
            TextBlockEndEvent(self._reply_id, block_id),
        ]

    def said(self, content: Any) -> Events:
        """Return the events of an answer that was not streamed, to the ends of its blocks."""
        events: Events = []
        for block in _thinking_first(self._checked(content)):
            self._whole(block, events)
        self._close(events)
        self._end_blocks(events)
        return events

    def _whole(self, block: ContentBlock, events: Events) -> None:
        self._close(events)
        if isinstance(block, ToolCallBlock):
            self._whole_call(block, events)
        else:
            self._piece(block, events)

    def end(self) -> Events:
        """Return the events that end a stream; raises `ChainContractError` when nothing came.

        There are none after `answer`, which ends the model call by itself.
        """
        if self._latest is None:
            if self._last is not None:
                return []
            raise self._refused(
                "gave a stream that ended without any response: end it with the whole content and is_last=True"
            )
        self._note(self._latest)
        events: Events = []
        self._close(events)
        self._end_blocks(events)
        events.append(self._model_call_end(self._usage, self._reason))
        return events

    def _end_blocks(self, events: Events) -> None:
        for call_id in self._names:
            events.append(ToolCallEndEvent(self._reply_id, call_id))
        for block_id in self._data.values():
            rest = self._pieces_of_data.rest(block_id) if self._pieces_of_data is not None else ""
            if rest:
                events.append(DataBlockDeltaEvent(self._reply_id, block_id, self._media_types[block_id], rest))
            events.append(DataBlockEndEvent(self._reply_id, block_id))

    def _model_call_end(self, usage: ChatUsage | None, reason: str | None) -> ModelCallEndEvent:
        if reason.__class__ is not str and reason is not None:
            reason = str(reason)  # an enumeration's member
        if usage is None:
            return ModelCallEndEvent(self._reply_id, finished_reason=reason)
        if usage.__class__ is not ChatUsage:
            raise self._refused(f"reported the usage {repr_of(usage)}: it must be a ChatUsage")
        asked, said = self._count(usage, usage.input_tokens), self._count(usage, usage.output_tokens)
        # What is not finite says nothing, and neither does an estimate of nothing.
        if asked is None or said is None or (usage.estimated and not (asked or said)):
            return ModelCallEndEvent(self._reply_id, finished_reason=reason)
        cached, created = usage.cache_input_tokens, usage.cache_creation_input_tokens
        return ModelCallEndEvent(
            self._reply_id,
            asked,
            said,
            (self._count(usage, cached) or 0) if cached else 0,
            (self._count(usage, created) or 0) if created else 0,
            reason,
            bool(usage.estimated),
        )

    def _count(self, usage: ChatUsage, tokens: Any) -> int | None:
        """Return a count as a number that can be kept, `None` for one that is not finite."""
        if tokens.__class__ is int and -_MAX_TOKENS <= tokens <= _MAX_TOKENS:
            return tokens
        try:
            return max(min(int(tokens or 0), _MAX_TOKENS), -_MAX_TOKENS)
        except (TypeError, ValueError, OverflowError):
            if isinstance(tokens, float):
                return None
        raise self._refused(f"reported the usage {repr_of(usage)}: it must be in whole numbers")

    def _rest(self, content: list[ContentBlock], events: Events) -> None:
        """Announce what the whole content holds and no piece delivered."""
        calls, streamed, data, known = set(self._calls), set(self._streamed), len(self._data), 0
        said = {key: "".join(pieces) for key, pieces in self._said.items()}
        left = {
            kind: len(text) for kind, text in said.items() if isinstance(kind, type) and _goes_on(kind, text, content)
        }
        for block in _thinking_first(content):
            kind = type(block)
            if isinstance(block, ToolCallBlock) and block.id in calls:
                known += len(block.input)
                self._rest_of_call(block, said.get(self._calls[block.id], ""), events)
            elif isinstance(block, (TextBlock, ThinkingBlock)) and kind in streamed:
                known += len(_text_of(block))
                if kind in left:
                    left[kind] = self._rest_of_text(block, left[kind], events)
            elif isinstance(block, DataBlock) and data > 0:
                data -= 1
            elif not (isinstance(block, ProviderBlock) and kind in streamed):
                self._whole(block, events)
        written = sum(map(len, said.values()))
        if 0 < known < written:
            # A layer may have added to it, so this is no error; mostly it is a model whose pieces grow.
            _logger.warning(
                "model %r streamed %d characters, but its whole answer has %d: each piece must hold only what is new",
                self._by,
                written,
                known,
            )

    def _rest_of_text(self, block: TextBlock | ThinkingBlock, known: int, events: Events) -> int:
        """Announce what of the block comes after the characters that are known; returns how many of these are left."""
        text = _text_of(block)
        if known >= len(text):
            return known - len(text)
        if not known:
            self._close(events)
        rest = text[known:]
        self._piece(TextBlock(rest) if isinstance(block, TextBlock) else ThinkingBlock(rest), events)
        return 0

    def _rest_of_call(self, block: ToolCallBlock, known: str, events: Events) -> None:
        call_id = self._calls[block.id]
        if self._names[call_id] == block.name and len(block.input) > len(known) and block.input.startswith(known):
            self._more_input(call_id, block.input[len(known) :], events)

    def _piece(self, block: ContentBlock, events: Events) -> None:
        if isinstance(block, TextBlock):
            self._text(block, events)
        elif isinstance(block, ThinkingBlock):
            self._thinking(block, events)
        elif isinstance(block, ToolCallBlock):
            self._call_piece(block, events)
        elif isinstance(block, DataBlock):
            self._data_piece(block, events)
        elif isinstance(block, ProviderBlock):
            self._provider(block, events)

    def _text(self, block: TextBlock, events: Events) -> None:
        text = self._cut(block.text)
        if not text:
            return
        if self._open is not TextBlock:
            self._begin(TextBlock, events)
            events.append(TextBlockStartEvent(self._reply_id, self._block_id))
        self._keep(text)  # type: ignore[misc]  # set with what is open
        events.append(TextBlockDeltaEvent(self._reply_id, self._block_id, text))

    def _thinking(self, block: ThinkingBlock, events: Events) -> None:
        if block.signature and not self._fits(len(block.signature), "a signature", events):
            return
        text = self._cut(block.thinking)
        if self._open is not ThinkingBlock and (text or block.signature):
            self._begin(ThinkingBlock, events)
            events.append(ThinkingBlockStartEvent(self._reply_id, self._block_id))
        self._signature = block.signature or self._signature
        if text:
            self._keep(text)  # type: ignore[misc]  # set with what is open
            events.append(ThinkingBlockDeltaEvent(self._reply_id, self._block_id, text))

    def _cut(self, text: str) -> str:
        """Count the text; returns as much of it as may be written."""
        room = self.limit - self.written
        self.written += len(text)
        return text if len(text) <= room else text[: max(room, 0)]

    def _fits(self, size: int, what: str, events: Events) -> bool:
        """Count what a block adds; where that is too much, a note takes its place, and is the last thing said."""
        before = self.written
        self.written += size
        if self.written <= self.limit:
            return True
        if before <= self.limit:
            self._begin(TextBlock, events)
            note = f"[left out: {what}, {size:,} characters, more than max_output allows]"
            events.append(TextBlockStartEvent(self._reply_id, self._block_id))
            events.append(TextBlockDeltaEvent(self._reply_id, self._block_id, note))
            self._close(events)
        return False

    def _begin(self, kind: type, events: Events) -> None:
        self._close(events)
        self._streamed.add(kind)
        self._open = kind
        self._keep = self._said.setdefault(kind, []).append
        self._block_id = self._new_id()
        self._blocks.append(self._block_id)

    def _close(self, events: Events) -> None:
        if self._open is TextBlock:
            events.append(TextBlockEndEvent(self._reply_id, self._block_id))
        elif self._open is ThinkingBlock:
            end = ThinkingBlockEndEvent(self._reply_id, self._block_id, self._signature)
            events.append(end)
            self._signature = None
        self._open = self._keep = None

    def _call_piece(self, block: ToolCallBlock, events: Events) -> None:
        call_id = self._calls.get(block.id)
        if call_id is None or block.name not in ("", self._names[call_id]):
            call_id = self._start_call(block, events)
        if call_id is not None and block.input:
            self._more_input(call_id, block.input, events)

    def _more_input(self, call_id: str, text: str, events: Events) -> None:
        if self._fits(len(text), "the input of a call", events):
            self._said.setdefault(call_id, []).append(text)
            events.append(ToolCallDeltaEvent(self._reply_id, call_id, text))

    def _whole_call(self, block: ToolCallBlock, events: Events) -> None:
        if self.written + len(block.input) > self.limit:
            self._fits(len(block.input), f"a call of {block.name[:64]}", events)
            return
        call_id = self._start_call(block, events)
        if call_id is not None:
            self.written += len(block.input)
            events.append(ToolCallDeltaEvent(self._reply_id, call_id, block.input))

    def _start_call(self, block: ToolCallBlock, events: Events) -> str | None:
        """Begin a call and return its id, or `None` where that would be too much."""
        name = block.name or _NAMELESS
        size = len(block.id) + len(name)
        if self.written + size > self.limit:
            self._fits(size, "a call", events)
            return None
        self.written += size
        if self._open is not None:
            self._close(events)
        call_id = block.id if block.id and block.id not in self._taken else self._new_id()
        self._taken.add(call_id)
        self._calls[block.id] = call_id
        self._names[call_id] = name
        self._blocks.append(call_id)
        events.append(ToolCallStartEvent(self._reply_id, call_id, name))
        return call_id

    def _data_piece(self, block: DataBlock, events: Events) -> None:
        source, media_type = block.source, block.source.media_type
        data, url = (source.data, None) if isinstance(source, Base64Source) else (None, source.url)
        size = len(data or url or "") + len(media_type) + len(block.name or "")
        if not self._fits(size, f"data of the type {media_type[:64]}", events):
            return
        block_id = self._data.get(block.id)
        if block_id is None:
            block_id = self._data[block.id] = self._new_id()
            self._blocks.append(block_id)
            events.append(DataBlockStartEvent(self._reply_id, block_id, media_type, block.name))
        if data is not None:
            if self._pieces_of_data is None:
                self._pieces_of_data = DataPieces()
                self._media_types: dict[str, str] = {}
            self._media_types[block_id] = media_type
            piece = self._pieces_of_data.take(block_id, data)
            if piece or not data:
                events.append(DataBlockDeltaEvent(self._reply_id, block_id, media_type, piece))
        else:
            events.append(DataBlockDeltaEvent(self._reply_id, block_id, media_type, None, url))

    def _provider(self, block: ProviderBlock, events: Events) -> None:
        if not self._fits(len(block.content), f"what {block.provider[:64]} did on its side", events):
            return
        self._streamed.add(ProviderBlock)
        self._close(events)
        block_id = self._new_id()
        self._blocks.append(block_id)
        events.append(ProviderBlockEvent(self._reply_id, block_id, block.provider, block.content))


def _is_plain(block: Any) -> bool:
    """Say whether a closer look at a block would change nothing, as nearly always."""
    kind = block.__class__
    if kind is TextBlock:
        return block.text.__class__ is str and block.text.isascii()
    if kind is ThinkingBlock:
        return _plain_thinking(block).__class__ is str and block.thinking.isascii()
    if kind is ToolCallBlock:
        name, text = block.name, block.input
        if block.id.__class__ is str and name.__class__ is str and text.__class__ is str:
            return block.id.isascii() and name.isascii() and text.isascii()
    return False


def _plain_thinking(block: ThinkingBlock) -> str | None:
    return block.thinking if block.signature is None else None


def _goes_on(kind: type, text: str, content: list[ContentBlock]) -> bool:
    """Say whether the whole content begins with the text that was streamed of that kind, and has more of it."""
    whole = "".join(_text_of(block) for block in content if isinstance(block, kind))
    return len(whole) > len(text) and whole.startswith(whole_characters(text))


def _text_of(block: ContentBlock) -> str:
    return block.text if isinstance(block, TextBlock) else block.thinking if isinstance(block, ThinkingBlock) else ""


def _thinking_first(content: list[ContentBlock]) -> list[ContentBlock]:
    # Between the things that a provider does it may think anew, and wants its thoughts back where they were.
    if len(content) == 1 or any(isinstance(block, ProviderBlock) for block in content):
        return content
    return sorted(content, key=lambda block: not isinstance(block, ThinkingBlock))
