"""What observers learn of the calls that reach a model."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from agentrt.block import ContentBlock, TextBlock, ThinkingBlock, ToolCallBlock
from agentrt.message import Msg
from agentrt.model_interface.base import ChatModelBase
from agentrt.types import ChatResponse, JSONSchema, ToolChoice

__all__ = ["WireRecord", "joined_response"]


@dataclass(slots=True, repr=False, eq=False)
class WireRecord:
    """A request as it is sent to a model, or the end of that call; both have the same `call_id`.

    `purpose` is that of a call by `agent.run.ask_model`, `None` for the call of a round. The other fields are those of
    the "end". `response` is the answer before any layer has seen it; of a stream that was left or failed, what came of
    it, with `is_last=False`, and `None` where nothing came. `error` is what the call raised, a cancellation too; its
    text may quote the provider. `pieces` counts what the model gave, and `seconds` how long that took.

    What is in it belongs to the reply: look, and change nothing.
    """

    kind: Literal["request", "end"]
    call_id: str
    purpose: str | None
    model: ChatModelBase
    messages: list[Msg]
    tools: list[JSONSchema]
    tool_choice: ToolChoice | None
    response: ChatResponse | None = None
    error: BaseException | None = None
    pieces: int = 0
    seconds: float = 0.0

    def __repr__(self) -> str:  # the messages are a whole conversation
        return f"<WireRecord {self.kind!r} of the call {self.call_id!r} to {self.model.model!r}>"


def joined_response(pieces: Sequence[ChatResponse], *, is_whole: bool) -> ChatResponse | None:
    """Return what the pieces of a stream say together, `None` where there is none."""
    if not pieces:
        return None
    # It holds the whole already, and knows the usage, which no piece does.
    if pieces[-1].is_last is True:
        return pieces[-1]
    content: list[ContentBlock] = []
    for piece in pieces:
        for block in piece.content:
            _join_block(content, block)
    usage = next((piece.usage for piece in reversed(pieces) if piece.usage is not None), None)
    reason = next((piece.finished_reason for piece in reversed(pieces) if piece.finished_reason), None)
    return ChatResponse(content, is_whole, usage, reason)


def _join_block(content: list[ContentBlock], block: ContentBlock) -> None:
    """Add a piece of a block to the content, or to the block that it continues."""
    before: Any = content[-1] if content else None
    if isinstance(block, ToolCallBlock):
        # Not only the last block: pieces of several calls may come in turns.
        place = next(
            (i for i, one in enumerate(content) if isinstance(one, ToolCallBlock) and one.id == block.id), None
        )
        if place is not None:
            begun: Any = content[place]
            content[place] = replace(begun, name=begun.name or block.name, input=begun.input + block.input)
            return
    elif isinstance(block, TextBlock) and isinstance(before, TextBlock):
        content[-1] = replace(before, text=before.text + block.text)
        return
    elif isinstance(block, ThinkingBlock) and isinstance(before, ThinkingBlock):
        signature = block.signature or before.signature
        content[-1] = replace(before, thinking=before.thinking + block.thinking, signature=signature)
        return
    content.append(block)
