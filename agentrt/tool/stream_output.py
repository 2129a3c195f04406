"""The output of a streaming tool, piece by piece, and the result that the pieces make."""

import base64
import binascii
from dataclasses import replace

from agentrt._runtime.block import Base64Source, DataBlock, TextBlock, ToolResultState, new_id
from agentrt.errors import ToolError
from agentrt.tool.base import ToolBase
from agentrt.tool.to_response import (
    OutputBudget,
    blocks_of,
    check_metadata,
    content_of,
    final_result_state,
    response_of,
    state_of,
    to_response,
)
from agentrt.types import JSONObject, ToolChunk, ToolOutput, ToolResponse

# From harmless to bad: the worst state of the pieces is the state of the whole.
_BY_GRAVITY = (
    ToolResultState.RUNNING,
    ToolResultState.SUCCESS,
    ToolResultState.INTERRUPTED,
    ToolResultState.DENIED,
    ToolResultState.TIMEOUT,
    ToolResultState.UNKNOWN,
    ToolResultState.ERROR,
)


class StreamOutput:
    """The output of a streaming tool so far.

    The chunks that `add` and `end` return, joined, are what `response` holds, unless the tool gave the whole itself.
    """

    __slots__ = (
        "_blocks",
        "_budget",
        "_closed",
        "_data",
        "_ids",
        "_metadata",
        "_metadata_size",
        "_state",
        "_text_id",
        "_tool",
        "_whole",
    )

    def __init__(self, tool: ToolBase) -> None:
        self._tool = tool
        self._budget = OutputBudget(tool)
        self._blocks: list[_Pieces] = []
        self._data: dict[str, _Pieces] = {}
        self._ids: set[str] = set()
        self._state = ToolResultState.RUNNING
        self._metadata: JSONObject = {}
        self._metadata_size = 0
        self._text_id = new_id()  # so that the strings of a generator make one block
        self._closed = False
        self._whole: ToolResponse | None = None

    def add(self, item: object) -> ToolChunk | None:
        """Take one item of the tool; returns what to show of it, if anything. Raises `ToolError` for a wrong item.

        Text and blocks are pieces, which the next item may continue; any other value is a block of its own, and `None`
        is nothing.
        """
        if self._closed:
            raise ToolError(f"{self._tool.name} yielded {type(item).__name__} after its last chunk")
        if isinstance(item, str):
            item = ToolChunk([TextBlock(item, self._text_id)])
        if isinstance(item, ToolResponse):
            self._whole, self._closed = to_response(self._tool, item), item.is_last
            return None
        if isinstance(item, ToolChunk):
            return self._add_chunk(item)
        if item is None:
            return None
        content = content_of(item)
        if content is not None:
            return self._add_chunk(ToolChunk(content))
        return self._add_chunk(ToolChunk(response_of(self._tool, item).content), is_open=False)

    def _add_chunk(self, chunk: ToolChunk, *, is_open: bool = True) -> ToolChunk | None:
        # A chunk is checked before any of its content is taken.
        self._metadata_size = check_metadata(self._tool, chunk.metadata, self._metadata_size)
        self._state = _worse(self._state, state_of(self._tool, chunk.state))
        content = self._add_blocks(blocks_of(self._tool, chunk.content), is_open)
        self._metadata.update(chunk.metadata or {})
        self._closed = chunk.is_last
        if not (content or chunk.is_last or chunk.metadata):
            return None
        return ToolChunk(content, chunk.state, chunk.is_last, chunk.metadata)

    def _add_blocks(self, content: ToolOutput, is_open: bool) -> ToolOutput:
        added: ToolOutput = []
        for number, block in enumerate(content):
            affordable = self._budget.take(block)
            if affordable is None:
                continue
            if is_open:
                added.append(self._add_piece(affordable, is_first=number == 0))
            else:
                added.append(self._begin_block(affordable, is_open=False))
        return added

    def _add_piece(self, block: TextBlock | DataBlock, *, is_first: bool) -> TextBlock | DataBlock:
        """Add a piece to the block that it belongs to, and return it under that block's id.

        Data belongs to the data with its id. Text belongs to the text just before it, if that has its id or if it is
        the first in its chunk: most tools give their pieces no id.
        """
        open_block = self._open_block(block, is_first)
        if open_block is None:
            return self._begin_block(block)
        open_block.pieces.append(_payload(block))
        return TextBlock(block.text, open_block.block.id) if isinstance(block, TextBlock) else block

    def _open_block(self, block: TextBlock | DataBlock, is_first: bool) -> "_Pieces | None":
        if isinstance(block, TextBlock):
            last = self._blocks[-1] if self._blocks else None
            return last if last is not None and last.is_open and (is_first or block.id == last.block.id) else None
        return self._data.get(block.id) if _is_inline(block) else None

    def _begin_block(self, block: TextBlock | DataBlock, *, is_open: bool = True) -> TextBlock | DataBlock:
        if block.id in self._ids:  # two blocks under one id could not be distinguished
            block = replace(block, id=new_id())
        self._ids.add(block.id)
        pieces = _Pieces(block, is_open and isinstance(block, TextBlock))
        self._blocks.append(pieces)
        if isinstance(block, DataBlock) and _is_inline(block):
            self._data[block.id] = pieces
        return block

    def end(self, text: str = "", state: ToolResultState = ToolResultState.SUCCESS) -> ToolChunk | None:
        """Finish, with a note on what went wrong, if anything; returns the last chunk to show."""
        self._state = _worse(self._state, state)
        notes = [self._budget.note] if self._budget.left_out else []
        notes += [text] if text else []
        if not notes:
            return None
        note = self._begin_block(TextBlock("\n".join(notes)))
        if self._whole is not None and text:
            whole = self._whole
            self._whole = ToolResponse([*whole.content, note], _worse(whole.state, state), whole.metadata)
        return ToolChunk([note], self._state)

    def response(self) -> ToolResponse:
        """Return the whole; raises `ToolError` when pieces of data cannot be joined."""
        if self._whole is not None:
            return self._whole
        try:
            content = [block.join() for block in self._blocks]
        except binascii.Error as error:
            raise ToolError(f"{self._tool.name} yielded data that is not base64: {error}") from error
        return ToolResponse(content, final_result_state(self._state), self._metadata)


class _Pieces:
    """A block and the pieces that it consists of, joined once at the end; an open text may get more."""

    __slots__ = ("block", "is_open", "pieces")

    def __init__(self, block: TextBlock | DataBlock, is_open: bool) -> None:
        self.block = block
        self.is_open = is_open
        self.pieces = [_payload(block)]

    def join(self) -> TextBlock | DataBlock:
        if len(self.pieces) == 1:
            return self.block
        if isinstance(self.block, TextBlock):
            return TextBlock("".join(self.pieces), self.block.id)
        # Each piece is encoded by itself, padding and all.
        data = b"".join(base64.b64decode(piece, validate=True) for piece in self.pieces)
        source = Base64Source(base64.b64encode(data).decode(), self.block.source.media_type)
        return DataBlock(source, self.block.name, self.block.id)


def _payload(block: TextBlock | DataBlock) -> str:
    if isinstance(block, TextBlock):
        return block.text
    return block.source.data if isinstance(block.source, Base64Source) else ""


def _is_inline(block: DataBlock) -> bool:
    return isinstance(block.source, Base64Source)


def _worse(one: ToolResultState, other: ToolResultState) -> ToolResultState:
    return max(one, other, key=_BY_GRAVITY.index)
