"""Joins the pieces of a streamed answer into the whole one."""

from base64 import b64decode, b64encode
from collections.abc import Awaitable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from agentrt._runtime.block import Base64Source, ContentBlock, DataBlock, TextBlock, ThinkingBlock, ToolCallBlock
from agentrt.types import ChatResponse


def joined_response(pieces: Sequence[ChatResponse], *, is_whole: bool) -> ChatResponse | None:
    """Return the pieces of a stream as one response, `None` if there are none."""
    if not pieces:
        return None
    # It already holds the whole answer, and the usage, which no piece has.
    if pieces[-1].is_last is True:
        return pieces[-1]
    joined = ChatResponse(join_blocks(block for piece in pieces for block in piece.content), is_whole)
    for piece in pieces:
        joined.usage = piece.usage or joined.usage
        joined.finished_reason = piece.finished_reason or joined.finished_reason
        joined.id = piece.id or joined.id
        joined.metadata = piece.metadata or joined.metadata
    return joined


def join_blocks(pieces: Iterable[ContentBlock]) -> list[ContentBlock]:
    """Join the pieces of each call and each data block, and text or thinking that follows its own kind."""
    blocks: list[Any] = []
    parts: list[list[str]] = []  # of each block; joined at the end, as there may be thousands
    places: dict[str, int] = {}  # of calls and data, whose pieces may alternate
    for block in pieces:
        text: object = _piece_text(block)
        place = None
        if not isinstance(text, str):
            text = ""  # left unchanged, for the reader of the answer to repair or refuse
        elif isinstance(block, (ToolCallBlock, DataBlock)):
            place = places.setdefault(block.id, len(blocks))
        elif isinstance(block, (TextBlock, ThinkingBlock)) and blocks and type(blocks[-1]) is type(block):
            place = len(blocks) - 1
        if place is None or place == len(blocks):
            blocks.append(block)
            parts.append([text])
            continue
        parts[place].append(text)
        if isinstance(block, ThinkingBlock) and block.signature:
            blocks[place] = replace(blocks[place], signature=block.signature)
        elif isinstance(block, ToolCallBlock) and not blocks[place].name:
            blocks[place] = replace(blocks[place], name=block.name)
    return [block if len(texts) == 1 else _with_text(block, texts) for block, texts in zip(blocks, parts, strict=True)]


def _piece_text(block: ContentBlock) -> str:
    match block:
        case TextBlock(text=text) | ThinkingBlock(thinking=text) | ToolCallBlock(input=text):
            return text
        case DataBlock(source=Base64Source(data=text)):
            return text
    return ""


def _with_text(block: ContentBlock, texts: list[str]) -> ContentBlock:
    match block:
        case TextBlock():
            return replace(block, text="".join(texts))
        case ThinkingBlock():
            return replace(block, thinking="".join(texts))
        case ToolCallBlock():
            return replace(block, input="".join(texts))
        case DataBlock(source=Base64Source() as source):  # each piece is base64 by itself
            data = b64encode(b"".join(map(b64decode, texts))).decode()
            return replace(block, source=replace(source, data=data))
    return block


class CompletedStream:
    """A stream that adds a last response, joined from the pieces, if the model sends none.

    An object rather than a generator, since Python runs no code of a generator that is closed before its first item.
    """

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._steps = aiter(stream)
        self._pieces: list[ChatResponse] = []

    @classmethod
    async def wrap(cls, answer: Awaitable[Any]) -> Any:
        """Return the model's answer, in a stream of this kind if it streams."""
        result = await answer
        is_stream = not isinstance(result, ChatResponse) and hasattr(result, "__aiter__") and hasattr(result, "aclose")
        return cls(result) if is_stream else result

    @property
    def ag_running(self) -> bool:
        """Whether a task waits for the next piece."""
        return bool(getattr(self._stream, "ag_running", False))

    def __aiter__(self) -> "CompletedStream":
        return self

    async def __anext__(self) -> ChatResponse:
        pieces, self._pieces = self._pieces, []  # an error, or a last response, leaves none
        try:
            piece: Any = await self._steps.__anext__()
        except StopAsyncIteration:
            whole = joined_response(pieces, is_whole=True)
            if whole is None:
                raise
            return whole
        if isinstance(piece, ChatResponse) and not piece.is_last:
            pieces.append(piece)
            self._pieces = pieces
        return piece  # type: ignore[no-any-return]  # of whatever type the model gives

    async def aclose(self) -> None:
        self._pieces = []
        await self._stream.aclose()
