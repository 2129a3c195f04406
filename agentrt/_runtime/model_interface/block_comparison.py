"""Compares lists of blocks by content, and finds their first difference."""

from collections.abc import Iterable

from agentrt._runtime.block import ContentBlock, DataBlock, ProviderBlock, TextBlock, ThinkingBlock

SPOKEN = (TextBlock, ThinkingBlock, DataBlock, ProviderBlock)
"""The blocks of what a model says, without calls."""


def spoken_blocks(blocks: Iterable[ContentBlock]) -> list[ContentBlock]:
    """Return the blocks with content."""
    return [
        block
        for block in blocks
        if isinstance(block, SPOKEN)
        and not (isinstance(block, TextBlock) and not block.text)
        and not (isinstance(block, ThinkingBlock) and not block.thinking and block.signature is None)
    ]


def is_same(one: ContentBlock, other: ContentBlock) -> bool:
    """Say whether two blocks have the same content, ids aside."""
    if isinstance(one, TextBlock) and isinstance(other, TextBlock):
        return one.text == other.text
    if isinstance(one, ThinkingBlock) and isinstance(other, ThinkingBlock):
        return (one.thinking, one.signature) == (other.thinking, other.signature)
    if isinstance(one, DataBlock) and isinstance(other, DataBlock):
        return (one.source, one.name) == (other.source, other.name)
    if isinstance(one, ProviderBlock) and isinstance(other, ProviderBlock):
        return (one.provider, one.content) == (other.provider, other.content)
    return one == other


def common_start(some: list[ContentBlock], others: list[ContentBlock]) -> int:
    """Return the length of the common start of two lists."""
    count = 0
    for one, other in zip(some, others, strict=False):
        if not is_same(one, other):
            break
        count += 1
    return count


def have_same_content(some: list[ContentBlock], others: list[ContentBlock]) -> bool:
    """Say whether two lists of blocks have the same content."""
    return len(some) == len(others) == common_start(some, others)
