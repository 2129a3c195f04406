"""The prefix of a request: what it shares with the one before it, by which providers cache.

A request begins with its tools, then comes the system prompt, then the history. It keeps the prefix of an earlier one
if it begins with all of that but its tail: the hints in messages of their own at its end, which may go.
"""

from collections.abc import Sequence
from itertools import zip_longest

from agentrt._runtime.block import ContentBlock, HintBlock, TextBlock, ToolCallBlock, ToolResultBlock
from agentrt._runtime.model_interface.block_comparison import is_same
from agentrt.message import Msg
from agentrt.types import JSONSchema

Prefix = tuple[list[JSONSchema], list[Msg]]
"""The tools and the messages of a request."""

_SentPiece = tuple[str, str | ContentBlock]  # with the role of its message


def moved_parts(earlier: Prefix, later: Prefix) -> list[str]:
    """Return the parts of the earlier request that the later one does not begin with: "tools", "system", "history"."""
    moved = ["tools"] if earlier[0] is not later[0] and earlier[0] != later[0] else []
    old, new = earlier[1], later[1]
    same = 0
    # By identity first: most messages of a conversation are the very ones that were sent before.
    for one, other in zip(old, new, strict=False):
        if one is not other:
            break
        same += 1
    rest = len(old) - same
    # The reply in progress is the last message, and new each time, with blocks more.
    if not rest or (rest == 1 and same < len(new) and _has_grown(old[same], new[same])):
        return moved
    end = len(old)
    while (
        end > same
        and old[end - 1].role == "user"
        and all(isinstance(block, HintBlock) for block in old[end - 1].get_content_blocks())
    ):
        end -= 1
    old_system, old_rest = _system_and_others(old[same:end])
    new_system, new_rest = _system_and_others(new[same:])
    if not _begins_with(new_system, old_system) or len(new_system) > len(old_system):
        moved.append("system")
    if not _begins_with(new_rest, old_rest):
        moved.append("history")
    return moved


def _has_grown(old: Msg, new: Msg) -> bool:
    """Say whether the new message holds the very blocks of the old one, and then maybe more."""
    if old.content.__class__ is str or new.content.__class__ is str or old.role != new.role or old.role == "system":
        return False
    for one, other in zip_longest(old.content, new.content):
        if one is not other:
            return one is None
    return True


def _system_and_others(messages: Sequence[Msg]) -> tuple[list[_SentPiece], list[_SentPiece]]:
    """Return what the messages of the system say, and what the others say."""
    pieces: tuple[list[_SentPiece], list[_SentPiece]] = [], []
    for message in messages:
        content = message.content
        blocks: Sequence[str | ContentBlock] = [content] if isinstance(content, str) else content
        pieces[message.role != "system"].extend((message.role, block) for block in blocks)
    return pieces


def _begins_with(pieces: Sequence[_SentPiece], start: Sequence[_SentPiece]) -> bool:
    return len(pieces) >= len(start) and all(
        role == old_role and _is_sent_alike(one, other)
        for (role, one), (old_role, other) in zip(pieces, start, strict=False)
    )


def _is_sent_alike(one: str | ContentBlock, other: str | ContentBlock) -> bool:
    if one is other:
        return True
    one = TextBlock(one) if isinstance(one, str) else one
    other = TextBlock(other) if isinstance(other, str) else other
    if isinstance(one, ToolCallBlock) and isinstance(other, ToolCallBlock):  # its state is the runtime's
        return (one.id, one.name, one.input) == (other.id, other.name, other.input)
    if isinstance(one, ToolResultBlock) and isinstance(other, ToolResultBlock):
        outputs = zip_longest(*([r.output] if isinstance(r.output, str) else r.output for r in (one, other)))
        is_alike = (one.id, one.name, one.state) == (other.id, other.name, other.state)
        return is_alike and all(a is not None and b is not None and _is_sent_alike(a, b) for a, b in outputs)
    if isinstance(one, HintBlock) and isinstance(other, HintBlock):
        return one.hint == other.hint
    return is_same(one, other)
