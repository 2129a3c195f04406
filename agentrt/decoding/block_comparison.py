"""Whether two lists of blocks say the same, and where they begin to differ."""

from collections.abc import Iterable

from agentrt.block import ContentBlock, DataBlock, ProviderBlock, TextBlock, ThinkingBlock

__all__ = ["common_start", "have_same_content", "is_same", "spoken_blocks"]

_SPOKEN = (TextBlock, ThinkingBlock, DataBlock, ProviderBlock)


def spoken_blocks(blocks: Iterable[ContentBlock]) -> list[ContentBlock]:
    """Return the blocks that say something."""
    return [
        block
        for block in blocks
        if isinstance(block, _SPOKEN)
        and not (isinstance(block, TextBlock) and not block.text)
        and not (isinstance(block, ThinkingBlock) and not block.thinking and block.signature is None)
    ]


def is_same(one: ContentBlock, other: ContentBlock) -> bool:
    """Say whether two blocks say the same, whatever their ids."""
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
    """Return how many blocks two lists have in common at their start."""
    count = 0
    for one, other in zip(some, others, strict=False):
        if not is_same(one, other):
            break
        count += 1
    return count


def have_same_content(some: list[ContentBlock], others: list[ContentBlock]) -> bool:
    """Say whether two lists of blocks say the same."""
    return len(some) == len(others) == common_start(some, others)
