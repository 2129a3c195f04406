"""Checks a model's answer: a layer or an adapter may return anything."""

from collections.abc import Callable
from typing import Any

from agentrt._runtime.boundary import mend_block
from agentrt._runtime.text import repr_of
from agentrt.errors import ChainContractError
from agentrt.event import ModelCallEndEvent
from agentrt.message import ContentBlock, DataBlock, ProviderBlock, TextBlock, ThinkingBlock, ToolCallBlock
from agentrt.types import ChatUsage

_MAX_TOKEN_COUNT = 1 << 53  # beyond any real count; JSON parsers keep no larger number exactly
_WRITTEN_BY_MODELS = (TextBlock, ThinkingBlock, DataBlock, ToolCallBlock, ProviderBlock)

AnswerRefusal = Callable[[str], ChainContractError]
"""Makes the error for a problem; it names the hook and the model."""


def checked_blocks(content: object, refusal: AnswerRefusal) -> list[ContentBlock]:
    """Return the content with each block repaired so that it can be saved; raises if that is impossible."""
    if not isinstance(content, (list, tuple)):
        raise refusal(
            f"answered with the content {repr_of(content)}: it must be a list of blocks, "
            f"as in ChatResponse([TextBlock(text)])"
        )
    return [block if is_plain(block) else _checked_block(block, refusal) for block in content]


def _checked_block(block: ContentBlock, refusal: AnswerRefusal) -> ContentBlock:
    if block.__class__ not in _WRITTEN_BY_MODELS:
        raise refusal(f"answered with {repr_of(block)}: an answer holds text, thinking, data and tool calls")
    try:
        return mend_block(block, empty=True)
    except ValueError as error:
        problem = str(error)
    # Raised here, so that the error above does not become the context of this one.
    raise refusal(f"answered with {problem}")


def is_plain(block: Any) -> bool:
    """Say whether the block needs no repair, as nearly always."""
    kind = block.__class__
    if kind is TextBlock:
        return block.text.__class__ is str and block.text.isascii()
    if kind is ThinkingBlock:
        return plain_thinking(block).__class__ is str and block.thinking.isascii()
    if kind is ToolCallBlock:
        call_id, name, text = block.id, block.name, block.input
        if call_id.__class__ is str and name.__class__ is str and text.__class__ is str:
            return call_id.isascii() and name.isascii() and text.isascii()
    return False


def plain_thinking(block: ThinkingBlock) -> str | None:
    """Return the thinking of a block without other content."""
    return block.thinking if block.signature is None else None


def model_call_end(
    reply_id: str, usage: ChatUsage | None, reason: str | None, refusal: AnswerRefusal
) -> ModelCallEndEvent:
    """Return the event that ends a model call; raises for an invalid usage."""
    if reason.__class__ is not str and reason is not None:
        reason = str(reason)  # an enumeration's member
    if usage is None:
        return ModelCallEndEvent(reply_id, None, None, 0, 0, reason)  # by position: keywords cost a third more
    if usage.__class__ is not ChatUsage:
        raise refusal(f"reported the usage {repr_of(usage)}: it must be a ChatUsage")
    input_tokens, output_tokens = (
        _count(usage, usage.input_tokens, refusal),
        _count(usage, usage.output_tokens, refusal),
    )
    # Infinite counts mean nothing, and neither does an estimate of 0.
    if input_tokens is None or output_tokens is None or (usage.estimated and not (input_tokens or output_tokens)):
        return ModelCallEndEvent(reply_id, None, None, 0, 0, reason)
    cached, created = usage.cache_input_tokens, usage.cache_creation_input_tokens
    return ModelCallEndEvent(
        reply_id,
        input_tokens,
        output_tokens,
        (_count(usage, cached, refusal) or 0) if cached else 0,
        (_count(usage, created, refusal) or 0) if created else 0,
        reason,
        bool(usage.estimated),
        bool(usage.replayed),
    )


def _count(usage: ChatUsage, tokens: Any, refusal: AnswerRefusal) -> int | None:
    """Return a count that can be saved, `None` for one that is not finite."""
    if tokens.__class__ is int and -_MAX_TOKEN_COUNT <= tokens <= _MAX_TOKEN_COUNT:
        return tokens
    try:
        return max(min(int(tokens or 0), _MAX_TOKEN_COUNT), -_MAX_TOKEN_COUNT)
    except (TypeError, ValueError, OverflowError):
        if isinstance(tokens, float):
            return None
    raise refusal(f"reported the usage {repr_of(usage)}: it must be in whole numbers")
