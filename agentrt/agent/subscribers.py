"""Giving what an agent answers to the other agents of its hubs."""

import logging
from collections.abc import Iterable
from dataclasses import replace
from typing import Protocol

from pydantic_core import to_jsonable_python

from agentrt._runtime.block import BlockType
from agentrt.message import Msg

__all__ = ["Observer", "broadcast"]

_logger = logging.getLogger("agentrt")
_UNOBSERVED_BLOCKS: tuple[BlockType, ...] = ("thinking", "provider")


class Observer(Protocol):
    """The part of an agent that receives messages."""

    name: str

    async def observe(self, msg: Msg) -> None: ...


async def broadcast(msg: Msg, observers: Iterable[Observer]) -> None:
    """Give each observer a copy of the message, in order, and no observer two.

    The copies are without thinking and without what is for the provider only, and their structured output is JSON. An
    observer that fails is logged, and does not affect the others.
    """
    if not isinstance(msg.content, str) and any(map(msg.has_content_blocks, _UNOBSERVED_BLOCKS)):
        msg = replace(msg, content=[block for block in msg.content if block.type not in _UNOBSERVED_BLOCKS])
    if msg.structured_output is not None:  # an instance need not be one that can be copied
        msg = replace(msg, structured_output=to_jsonable_python(msg.structured_output))
    for observer in {id(observer): observer for observer in observers}.values():
        try:
            await observer.observe(msg.copy())  # its own, since an observer may keep and change it
        except Exception as error:  # noqa: BLE001  # neither the speaker nor the others are to blame
            # By its type, as the text may quote a message; a missing `observe` is described in our own words.
            problem = type(error).__name__
            if isinstance(error, NotImplementedError):
                problem = f"{problem}: {error}"
            _logger.error("agent %r failed to observe a message: %s", observer.name, problem)
