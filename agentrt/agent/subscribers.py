"""Telling the other agents of a hub what an agent has said."""

import logging
from collections.abc import Iterable
from dataclasses import replace
from typing import Protocol

from agentrt.block import BlockType
from agentrt.message import Msg

__all__ = ["Observer", "broadcast"]

_logger = logging.getLogger("agentrt")
_KEPT_TO_ONESELF: tuple[BlockType, ...] = ("thinking", "provider")


class Observer(Protocol):
    """Whoever takes in messages."""

    name: str

    async def observe(self, msg: Msg) -> None: ...


async def broadcast(msg: Msg, observers: Iterable[Observer]) -> None:
    """Let each observer take in a message of its own, in order; nobody gets it twice.

    The message comes without thinking and without what is for the provider only. An observer that fails is logged, and
    does not affect the others.
    """
    said = _without_private_blocks(msg)
    for observer in {id(each): each for each in observers}.values():
        try:
            await observer.observe(said.copy())
        except Exception as error:  # noqa: BLE001  # neither the speaker nor the others are to blame
            _logger.error("agent %r failed to observe a message: %s", observer.name, _error_text(error))


def _error_text(error: Exception) -> str:
    # The type alone, as the text may quote what somebody said; but one that is missing says how to mend that.
    name = type(error).__name__
    return f"{name}: {error}" if isinstance(error, NotImplementedError) else name


def _without_private_blocks(msg: Msg) -> Msg:
    if isinstance(msg.content, str) or not any(map(msg.has_content_blocks, _KEPT_TO_ONESELF)):
        return msg
    return replace(msg, content=[block for block in msg.content if block.type not in _KEPT_TO_ONESELF])
