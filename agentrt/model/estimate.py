"""How many tokens there are about, where nobody has counted them."""

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

_CHARACTERS_PER_TOKEN = 4


def estimated_usage(messages: Iterable[Msg], content: Iterable[ContentBlock]) -> ChatUsage:
    """Return the usage of a call that asked `messages` and was answered with `content`, by the length of their text."""
    asked, said = sum(map(_characters, messages)), sum(map(characters_of, content))
    return ChatUsage(_tokens(asked), _tokens(said), estimated=True)


def characters_of(block: Any) -> int:
    """Return how many characters of text the block holds; images, files and what cannot be counted are none."""
    kind = block.__class__
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
    except TypeError:  # a model's own adapter may give anything for a text
        return 0


def _tokens(characters: int) -> int:
    return characters // _CHARACTERS_PER_TOKEN + 1


def _characters(msg: Msg) -> int:
    return len(msg.content) if isinstance(msg.content, str) else sum(map(characters_of, msg.content))
