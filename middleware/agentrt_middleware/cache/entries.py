"""What a cache keeps, as text: the answer of a model or the result of a tool, checked when it is read."""

from collections.abc import AsyncGenerator
from dataclasses import dataclass, replace
from functools import cache
from typing import Literal

import pydantic

from agentrt.message import DataBlock, ProviderBlock, TextBlock, ThinkingBlock, ToolCallBlock, ToolResultState
from agentrt.model import ChatModelBase, ChatResponse, ChatUsage, ModelResult
from agentrt.types import ToolResponse
from agentrt_middleware.attempts import StreamedAnswer

__all__ = ["MAX_ENTRY", "Entry", "read_entry", "replay_answer", "whole_answer", "write_entry"]

MAX_ENTRY = 2_000_000
"""Characters of the longest entry that is kept, or taken from a store."""

_CLOCK_SKEW = 60.0  # seconds by which the clocks of two machines may differ
# What a provider says of an answer that came to its end by itself; any other was cut off, filtered or put off.
_ENDED_WELL = (None, "stop", "tool_calls")
_ANSWER_BLOCKS = (TextBlock, ThinkingBlock, DataBlock, ToolCallBlock, ProviderBlock)


@dataclass(frozen=True, slots=True)
class Entry:
    """An answer in its pieces, or a result; `key` is that of the call, so that none is taken for another's."""

    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012  # a slotted dataclass has no other place for it

    key: str
    stored_at: float
    pieces: list[ChatResponse] | None = None
    result: ToolResponse | None = None
    format: Literal[1] = 1


def write_entry(entry: Entry) -> str | None:
    """Return the entry as text, `None` if it is not one to keep, has no JSON form or is too long."""
    try:
        text = _adapter().dump_json(entry, warnings="error").decode()
        read_entry(text, entry.key, entry.stored_at, ttl=1.0)
    except (ValueError, RecursionError):  # an adapter of the user's own may put anything into an answer
        return None
    return text


def read_entry(text: object, key: str, now: float, *, ttl: float) -> Entry | None:
    """Return the entry that the text holds, `None` if it is too old; raises `ValueError` for what is not one."""
    if not isinstance(text, str) or len(text) > MAX_ENTRY:
        raise ValueError("not text, or too long")
    entry = _adapter().validate_json(text)
    if entry.key != key:
        raise ValueError("the entry of another call")
    if not _is_to_keep(entry):
        raise ValueError("not what a cache keeps")
    # One from the future is as good as too old: a clock has gone back, and nothing says how old it really is.
    return entry if -_CLOCK_SKEW <= now - entry.stored_at < ttl else None


def _is_to_keep(entry: Entry) -> bool:
    """Say whether this is the result of a tool that has succeeded, or a whole answer that may be kept."""
    pieces, result = entry.pieces, entry.result
    if result is not None:
        # One that waits for an answer is not a result yet, and one with a message ends the reply.
        is_success = result.state is ToolResultState.SUCCESS and not result.waits
        return is_success and pieces is None and "response_msg" not in result.metadata
    if not pieces or any(piece.is_last for piece in pieces[:-1]):
        return False
    blocks = [block for piece in pieces for block in piece.content]
    if not blocks or not all(isinstance(block, _ANSWER_BLOCKS) for block in blocks):
        return False
    return all(piece.finished_reason in _ENDED_WELL and not (piece.metadata or {}).get("no_store") for piece in pieces)


def replay_answer(pieces: list[ChatResponse], model: ChatModelBase) -> ModelResult:
    """Return the answer as it came, in pieces if the model streams, with its usage marked as replayed."""
    for piece in pieces:  # the entry was made from text for this call alone
        if piece.usage is not None:
            piece.usage.replayed = True
    if not any(piece.usage for piece in pieces):  # not known, but known to be paid
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
    return pydantic.TypeAdapter(Entry)  # on first use, since it takes milliseconds
