"""Cache entries as text: the answer of a model or the result of a tool, checked when it is read."""

from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Literal

import pydantic

from agentrt.message import (
    ContentBlock,
    DataBlock,
    Msg,
    ProviderBlock,
    TextBlock,
    ThinkingBlock,
    ToolCallBlock,
    ToolResultState,
)
from agentrt.model import ChatModelBase, ChatResponse, ChatUsage, ModelResult, RequestHandles
from agentrt.types import ToolResponse
from agentrt_middleware.attempts import StreamedAnswer

MAX_ENTRY = 2_000_000
"""The maximum length of an entry, in characters."""

_CLOCK_SKEW = 60.0  # seconds by which the clocks of two machines may differ
# The finish reasons of complete answers; all others were cut off, filtered or paused.
_ENDED_WELL = (None, "stop", "tool_calls")
_FIELDS_OF_ANSWERS = ("text", "thinking", "input")
_ANSWER_BLOCKS = (TextBlock, ThinkingBlock, DataBlock, ToolCallBlock, ProviderBlock)


@dataclass(frozen=True, slots=True)
class Entry:
    """An answer in its pieces, or a result; `key` identifies the call, so that entries cannot be mixed up."""

    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012  # a slotted dataclass has no other place for it

    key: str
    stored_at: float
    pieces: list[ChatResponse] | None = None
    result: ToolResponse | None = None
    format: Literal[1] = 1


def write_entry(entry: Entry) -> str | None:
    """Return the entry as text, `None` if it is not cacheable, has no JSON form or is too long."""
    try:
        text = _adapter().dump_json(entry, warnings="error").decode()
        read_entry(text, entry.key, entry.stored_at, ttl=1.0)
    except (ValueError, RecursionError):  # a custom adapter may put anything into an answer
        return None
    return text


def read_entry(text: object, key: str, now: float, *, ttl: float) -> Entry | None:
    """Return the entry in the text, `None` if it is too old; raises `ValueError` for an invalid one."""
    if not isinstance(text, str) or len(text) > MAX_ENTRY:
        raise ValueError("not text, or too long")
    entry = _adapter().validate_json(text)
    if entry.key != key:
        raise ValueError("the entry of another call")
    if not _is_to_keep(entry):
        raise ValueError("not what a cache keeps")
    # An entry from the future counts as too old: a clock has gone back, so its real age is unknown.
    return entry if -_CLOCK_SKEW <= now - entry.stored_at < ttl else None


def _is_to_keep(entry: Entry) -> bool:
    """Say whether this is the result of a successful tool call, or a complete, cacheable answer."""
    pieces, result = entry.pieces, entry.result
    if result is not None:
        # A waiting call has no result yet, and a result with a message ends the reply.
        is_success = result.state is ToolResultState.SUCCESS and not result.waits
        is_kept = "response_msg" not in result.metadata and not result.metadata.get("no_store")
        return is_success and pieces is None and is_kept
    if not pieces or any(piece.is_last for piece in pieces[:-1]):
        return False
    blocks = [block for piece in pieces for block in piece.content]
    if not blocks or not all(isinstance(block, _ANSWER_BLOCKS) for block in blocks):
        return False
    return all(piece.finished_reason in _ENDED_WELL and not (piece.metadata or {}).get("no_store") for piece in pieces)


def without_handles(pieces: list[ChatResponse], messages: Sequence[Msg]) -> list[ChatResponse] | None:
    """Return an answer with numbers in the place of the handles of its request; `None` if that cannot be undone."""
    if not any("<" in text for piece in pieces for block in piece.content for text in _texts_of(block)):
        return pieces
    # Not before, since this reads the whole request once more.
    handles = RequestHandles.of(messages)
    whole = whole_answer(pieces)
    blocks = []
    for block in whole.content:
        changed = _change_texts(block, handles.without_tags)
        if changed is None:
            return None
        blocks.append(changed)
    if all(block is before for block, before in zip(blocks, whole.content, strict=True)):
        return pieces
    # In one piece, since a handle may be cut into several.
    return [replace(whole, content=blocks)]


def with_handles(entry: Entry, messages: Sequence[Msg]) -> Entry:
    """Return a kept answer with the handles of this request in the place of numbers."""
    pieces = entry.pieces or []
    if not any("_#" in text for piece in pieces for block in piece.content for text in _texts_of(block)):
        return entry
    handles = RequestHandles.of(messages)
    for piece in pieces:  # the entry was parsed for this call only
        piece.content = [_change_texts(block, handles.with_tags) or block for block in piece.content]
    return entry


def _texts_of(block: object) -> list[str]:
    return [text for name in _FIELDS_OF_ANSWERS if isinstance(text := getattr(block, name, None), str)]


def _change_texts(block: ContentBlock, change: Callable[[str], str | None]) -> ContentBlock | None:
    """Return the block with its texts changed, `None` if one of them cannot be."""
    changed: dict[str, str] = {}
    for name in _FIELDS_OF_ANSWERS:
        text = getattr(block, name, None)
        if isinstance(text, str):
            new = change(text)
            if new is None:
                return None
            if new != text:
                changed[name] = new
    return replace(block, **changed) if changed else block  # type: ignore[arg-type]  # fields of each kind of block


def replay_answer(pieces: list[ChatResponse], model: ChatModelBase) -> ModelResult:
    """Return the recorded answer, in pieces if the model streams, with its usage marked as replayed."""
    for piece in pieces:  # the entry was parsed for this call only
        if piece.usage is not None:
            piece.usage.replayed = True
    if not any(piece.usage for piece in pieces):  # unknown, but already paid for
        pieces[-1].usage = ChatUsage(replayed=True)
    if len(pieces) == 1 and pieces[0].is_last:
        return pieces[0]
    return _stream(pieces) if model.stream is not False else whole_answer(pieces)


async def _stream(pieces: list[ChatResponse]) -> AsyncGenerator[ChatResponse, None]:
    for piece in pieces:
        yield piece


def whole_answer(pieces: list[ChatResponse]) -> ChatResponse:
    """Return the answer in one piece."""
    answer = StreamedAnswer(with_content=True)
    for piece in pieces:
        answer.add(piece)
    response = answer.response()
    assert response is not None  # there is at least one piece
    return replace(response, is_last=True)


@cache
def _adapter() -> "pydantic.TypeAdapter[Entry]":
    return pydantic.TypeAdapter(Entry)  # lazily, since it takes milliseconds
