"""A model's answer, decoded into events."""

import logging
import sys
from collections.abc import Callable
from itertools import chain
from time import time_ns
from typing import Any

from agentrt._runtime.block import HIDDEN_CALL
from agentrt._runtime.decoding.block_events import BlockEvents, Events, bare_event, events_of
from agentrt._runtime.decoding.model_answer import checked_blocks, is_plain, model_call_end, plain_thinking
from agentrt._runtime.text import repr_of, whole_characters
from agentrt.errors import ChainContractError
from agentrt.event import ModelCallEndEvent, TextBlockDeltaEvent, ThinkingBlockDeltaEvent
from agentrt.message import ContentBlock, DataBlock, ProviderBlock, TextBlock, ThinkingBlock, ToolCallBlock
from agentrt.types import ChatResponse, ChatUsage

_logger = logging.getLogger("agentrt")
_LARGE = 4_096  # characters: a piece that has as many is looked at before it is passed on


class Decoder(BlockEvents):
    """Turns one attempt at a model call into events.

    The streamed pieces are the answer; the last response only adds content that no piece delivered. Without
    a last response, the pieces are the whole answer. Tool calls keep the provider's ids unless the reply has
    used an id before. Content that could not be saved or sent again is repaired, or refused with `ChainContractError`.

    Each response counts as at least one written character. `message_blocks` is the content of the round's message as it
    enters the layers.
    """

    __slots__ = ("_finished_reason", "_has_ended", "_hook", "_last", "_latest", "_model", "_usage", "message_blocks")

    def __init__(
        self,
        reply_id: str,
        new_id: Callable[[], str],
        taken_call_ids: dict[str, bool],
        model: str,
        *,
        hook: str = "on_model_call",
        limit: int = sys.maxsize,
    ) -> None:
        self._model = model
        self._hook = hook
        self._last: ChatResponse | None = None
        self._has_ended = False
        self.message_blocks: list[ContentBlock] | None = None
        self._latest: ChatResponse | None = None
        self._usage: ChatUsage | None = None
        self._finished_reason: str | None = None
        super().__init__(reply_id, new_id, taken_call_ids, limit)

    def discard(self) -> list[str]:
        """Reset the decoder; return the ids of the blocks that were started."""
        block_ids = self._block_ids
        for call_id in self._call_names:  # the next attempt may use the same ids
            # The id of a hidden call stays assigned, since its layer may send the call again.
            if self._taken_call_ids.pop(call_id, False) and call_id.startswith(HIDDEN_CALL):
                self._taken_call_ids[call_id] = False
        self._reset()
        self._latest = self._usage = self._finished_reason = None
        return block_ids

    def feed(self, response: Any) -> Events:
        """Return the events of one response of a stream."""
        # Nearly every response continues the open text or thinking. The same as `_feed` does with
        # it, four times as fast; a property test compares them.
        if response.__class__ is ChatResponse and not response.is_last:
            content = response.content
            if content.__class__ is list and len(content) == 1:
                block: Any = content[0]
                kind = block.__class__
                if kind is self._open_kind:
                    text = block.text if kind is TextBlock else plain_thinking(block)
                    if text.__class__ is str and text and (size := len(text)) < _LARGE:
                        self._latest = response
                        self.written += size
                        keep = self._keep_text  # set with what is open; a local, since a method would be looked for
                        keep(text)  # type: ignore[misc]  # likewise
                        delta = text if text.isascii() else whole_characters(text)
                        if kind is not TextBlock:
                            return [ThinkingBlockDeltaEvent(self._reply_id, self._block_id, delta)]
                        event = bare_event(TextBlockDeltaEvent)
                        event.reply_id, event.block_id, event.delta = self._reply_id, self._block_id, delta
                        event.seq, event.created_at, event.metadata = 0, time_ns(), None
                        event.type = "TEXT_BLOCK_DELTA"
                        return [event]
        return self._feed(response)

    def _feed(self, response: object) -> Events:
        if not isinstance(response, ChatResponse):
            raise self._refusal(f"streamed {repr_of(response)}: each item must be a ChatResponse")
        if self._last is not None:
            raise self._refusal(
                f"streamed {repr_of(response)} after the response with is_last=True: end the stream there"
            )
        self._note(self._latest)  # the last one whose fields `feed` did not check
        self._note(response)
        self._latest = response
        content = checked_blocks(response.content, self._refusal)
        events: Events = []
        if response.is_last:
            self._last = response
            self._add_missing(content, events)
            self._close(events)
            return events
        written = self.written
        for block in content if len(content) == 1 else _thinking_first(content):
            self._add_piece(block, events)
        if self.written == written:
            self.written += 1  # an empty stream has an end too
        return events

    def _note(self, response: ChatResponse | None) -> None:
        """Record a piece's facts about the whole answer, for a stream without a last response."""
        if response is not None:
            self._usage = self._usage if response.usage is None else response.usage
            if response.finished_reason is not None:
                self._finished_reason = response.finished_reason

    def _refusal(self, problem: str) -> ChainContractError:
        return ChainContractError(f"{self._hook}: model {self._model!r} {problem}")

    def decode_answer(self, response: ChatResponse) -> Events:
        """Return the events of an answer that was not streamed, to the end of the model call."""
        only = self.only_block(response)
        if only is not None:
            return [*events_of(self._reply_id, only[0]), only[1]]
        self._has_ended = True
        events = self.decode_content(response.content)
        events.append(model_call_end(self._reply_id, response.usage, response.finished_reason, self._refusal))
        return events

    def only_block(self, response: ChatResponse) -> tuple[ContentBlock, ModelCallEndEvent] | None:
        """Return the single block that the events of a whole answer would make, and the event after these.

        `None` for an answer that is more than one text or one call: its events are what `decode_answer` gives.
        """
        content = response.content
        first = content[0] if content.__class__ is list and len(content) == 1 else None
        if first.__class__ is TextBlock and first.text.__class__ is str and 0 < len(first.text) < _LARGE:
            end = model_call_end(self._reply_id, response.usage, response.finished_reason, self._refusal)
            self.written += len(first.text)
            block_id = self._new_id()
            self._block_ids.append(block_id)
            self._has_ended = True
            return TextBlock(whole_characters(first.text), block_id), end
        if first.__class__ is ToolCallBlock and is_plain(first):
            written = self.written + len(first.id) + len(first.name) + len(first.input)
            if first.name and written <= self.limit:
                end = model_call_end(self._reply_id, response.usage, response.finished_reason, self._refusal)
                self.written = written
                self._has_ended = True
                return ToolCallBlock(self._note_call(first), first.name, first.input), end
        return None

    def decode_content(self, content: object) -> Events:
        """Return the events of content that was not streamed, up to the ends of its blocks."""
        events: Events = []
        for block in _thinking_first(checked_blocks(content, self._refusal)):
            self._add_whole(block, events)
        self._close(events)
        self._end_blocks(events)
        return events

    def end(self) -> Events:
        """Return the events that end a stream; raises `ChainContractError` for an empty one.

        There are none after `decode_answer`, which ends the model call by itself.
        """
        if self._has_ended:
            return []
        if self._latest is None:
            raise self._refusal(
                "gave a stream that ended without any response: end it with the whole content and is_last=True"
            )
        self._note(self._latest)
        events: Events = []
        self._close(events)
        self._end_blocks(events)
        events.append(model_call_end(self._reply_id, self._usage, self._finished_reason, self._refusal))
        return events

    def _add_missing(self, content: list[ContentBlock], events: Events) -> None:
        """Announce the content that no piece delivered."""
        # Read before anything is added, since added content counts as streamed from then on.
        call_ids, had_provider_block, data_count = set(self._call_ids), self._has_provider_block, len(self._data_ids)
        inputs = {call_id: "".join(pieces) for call_id, pieces in self._streamed_inputs.items()}
        texts = {kind: "".join(chain(*by_id.values())) for kind, by_id in self._streamed_texts.items()}
        left = {}  # the streamed length of each kind of text, if the content starts with it and is longer
        for streamed_kind, text in texts.items():
            whole = "".join(_text_or_thinking(block) for block in content if isinstance(block, streamed_kind))
            if len(whole) > len(text) and whole.startswith(whole_characters(text)):
                left[streamed_kind] = len(text)
        known = 0
        for block in _thinking_first(content):
            kind = type(block)
            if isinstance(block, ToolCallBlock) and block.id in call_ids:
                known += len(block.input)
                self._add_rest_of_call(block, inputs.get(self._call_ids[block.id], ""), events)
            elif isinstance(block, (TextBlock, ThinkingBlock)) and kind in texts:
                known += len(_text_or_thinking(block))
                if kind in left:
                    left[kind] = self._add_rest_of_text(block, left[kind], events)
            elif isinstance(block, DataBlock) and data_count > 0:
                data_count -= 1
            elif not (isinstance(block, ProviderBlock) and had_provider_block):
                self._add_whole(block, events)
        written = sum(map(len, chain(inputs.values(), texts.values())))
        if 0 < known < written:
            # A layer may have added content, so this is not an error; mostly it is a model whose pieces are cumulative.
            _logger.warning(
                "model %r streamed %d characters, but its whole answer has %d: each piece must hold only what is new",
                self._model,
                written,
                known,
            )

    def _add_rest_of_text(self, block: TextBlock | ThinkingBlock, known: int, events: Events) -> int:
        """Announce the part of the block after the known characters; returns how many known ones remain."""
        text = _text_or_thinking(block)
        if known >= len(text):
            return known - len(text)
        if not known:
            self._close(events)
        rest = text[known:]
        self._add_piece(TextBlock(rest) if isinstance(block, TextBlock) else ThinkingBlock(rest), events)
        return 0

    def _add_rest_of_call(self, block: ToolCallBlock, known: str, events: Events) -> None:
        call_id = self._call_ids[block.id]
        is_same_call = self._call_names[call_id] == block.name and block.input.startswith(known)
        if is_same_call and len(block.input) > len(known):
            self._add_call_input(call_id, block.input[len(known) :], events)


def _text_or_thinking(block: ContentBlock) -> str:
    return block.text if isinstance(block, TextBlock) else block.thinking if isinstance(block, ThinkingBlock) else ""


def _thinking_first(content: list[ContentBlock]) -> list[ContentBlock]:
    # Thinking may be interleaved with a provider's own tools; it keeps its position.
    if len(content) == 1 or any(isinstance(block, ProviderBlock) for block in content):
        return content
    return sorted(content, key=lambda block: not isinstance(block, ThinkingBlock))
