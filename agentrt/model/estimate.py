"""An estimate of the tokens that a call takes, where the provider does not count them."""

from collections.abc import Iterable
from typing import Any

from agentrt.block import (
    ContentBlock,
    HintBlock,
    ProviderBlock,
    TextBlock,
    ThinkingBlock,
    ToolCallBlock,
    ToolResultBlock,
)
from agentrt.message import Msg
from agentrt.types import ChatUsage

__all__ = ["characters_of", "estimated_usage"]

_ESTIMATED_TOKEN_LENGTH = 4  # about right for English; tokenizers differ, and none is asked for an estimate


def estimated_usage(messages: Iterable[Msg], content: Iterable[ContentBlock]) -> ChatUsage:
    """Return the usage of a call with these messages and this answer, by the length of their text."""
    input_length = output_length = 0
    for msg in messages:
        # A message of plain text is counted as it is: `get_content_blocks` would make a block of it.
        blocks = msg.content
        input_length += len(blocks) if isinstance(blocks, str) else sum(map(characters_of, blocks))
    for block in content:
        output_length += characters_of(block)
    return ChatUsage(
        input_length // _ESTIMATED_TOKEN_LENGTH + 1, output_length // _ESTIMATED_TOKEN_LENGTH + 1, estimated=True
    )


def characters_of(block: Any) -> int:
    """Return how many characters of text the block holds; images, files and what cannot be counted are none."""
    kind = block.__class__  # compared by identity and in the order of their numbers: a stream counts every piece
    try:
        if kind is TextBlock:
            return len(block.text)
        if kind is ToolCallBlock:
            return len(block.name) + len(block.input)
        if kind is ToolResultBlock:
            return len(block.output) if isinstance(block.output, str) else sum(map(characters_of, block.output))
        if kind is ThinkingBlock:
            return len(block.thinking)
        if kind is ProviderBlock:
            return len(block.content)
        return len(block.hint) if kind is HintBlock else 0
    except TypeError:  # an adapter of the user's own may put anything where text belongs
        return 0
