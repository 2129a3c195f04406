"""The part of a conversation that a model sees: everything but the calls of hidden tools and their results."""

from collections.abc import Sequence
from copy import copy
from operator import is_
from typing import NamedTuple

from agentrt._runtime.block import ContentBlock, ToolCallBlock, ToolResultBlock
from agentrt.message import Msg


def has_hidden_calls(blocks: Sequence[ContentBlock]) -> bool:
    """Say whether some of the blocks are hidden from models."""
    for block in blocks:
        kind = block.__class__
        if (kind is ToolCallBlock or kind is ToolResultBlock) and block.is_hidden:  # type: ignore[union-attr]  # both have it
            return True
    return False


def without_hidden_calls(blocks: Sequence[ContentBlock]) -> list[ContentBlock]:
    """Return the blocks that a model may see."""
    return [block for block in blocks if not (isinstance(block, (ToolCallBlock, ToolResultBlock)) and block.is_hidden)]


def visible_message(message: Msg) -> Msg | None:
    """Return the message as a model may see it, mostly the message itself; `None` if nothing is left."""
    content = message.content
    if isinstance(content, str) or not has_hidden_calls(content):
        return message
    visible = copy(message)  # with its metadata, which layers may read; the blocks are the same objects
    visible.content = without_hidden_calls(content)
    return visible if visible.content else None


def visible_messages(messages: Sequence[Msg]) -> list[Msg]:
    """Return the messages as a model may see them."""
    return [message for message in map(visible_message, messages) if message is not None]


class _CheckedMessage(NamedTuple):
    """A message, its blocks at the check, and its visible version."""

    message: Msg
    blocks: list[ContentBlock]
    visible: Msg | None

    def still_holds(self, message: Msg) -> bool:
        if self.message is not message:
            return False
        content = message.content
        if self.visible is message or isinstance(content, str):
            return self.visible is message
        # By identity, which is cheap; a block that was edited in place is the same one in the visible message.
        return len(content) == len(self.blocks) and all(map(is_, content, self.blocks))


class VisibleMessages:
    """The messages of a growing conversation as a model may see them; each is checked once."""

    __slots__ = ("_checked",)

    def __init__(self) -> None:
        self._checked: dict[int, _CheckedMessage] = {}  # by the `id()` of the message, which is kept with it

    def of(self, messages: Sequence[Msg]) -> list[Msg]:
        """Return the visible versions of these messages; an unchanged message gives the same object."""
        known, self._checked = self._checked, {}
        visible: list[Msg] = []
        for message in messages:
            checked = known.get(id(message))
            if checked is None or not checked.still_holds(message):
                blocks = [] if isinstance(message.content, str) else list(message.content)
                checked = _CheckedMessage(message, blocks, visible_message(message))
            self._checked[id(message)] = checked
            if checked.visible is not None:
                visible.append(checked.visible)
        return visible
