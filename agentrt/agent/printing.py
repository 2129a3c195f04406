"""Printing the replies of an `Agent`: one message that grows with what leaves the reply's stream."""

from collections.abc import AsyncGenerator
from contextlib import suppress
from typing import Protocol

from agentrt.event import (
    AgentEvent,
    DataBlockEndEvent,
    HintBlockEvent,
    ModelCallRetryEvent,
    ReplyEndEvent,
    ReplyStartEvent,
    RequireExternalExecutionEvent,
    RequireUserConfirmEvent,
    TextBlockDeltaEvent,
    ThinkingBlockDeltaEvent,
    ToolCallEndEvent,
    ToolResultEndEvent,
)
from agentrt.message import (
    ContentBlock,
    Msg,
    ToolCallBlock,
    ToolCallState,
    ToolResultBlock,
    copy_block,
    headed_like,
)
from agentrt.state import AgentState

__all__ = ["printed"]

# Of the others nothing can be seen, or not yet.
_GROWS = {DataBlockEndEvent, HintBlockEvent, ModelCallRetryEvent, TextBlockDeltaEvent, ThinkingBlockDeltaEvent}
_GROWS |= {ToolCallEndEvent, ToolResultEndEvent}
_STOPS = {ReplyEndEvent, RequireExternalExecutionEvent, RequireUserConfirmEvent}


class Printing(Protocol):
    """An agent that can print, and its conversation."""

    name: str
    state: AgentState
    _growing: Msg | None

    async def print(self, msg: Msg, last: bool = True) -> None: ...


async def printed(
    agent: Printing, items: AsyncGenerator[AgentEvent | Msg, None]
) -> AsyncGenerator[AgentEvent | Msg, None]:
    """Yield the items of a reply, and print its message as it grows, each time before the item that makes it grow.

    The message is the printing's own, and nothing of it is copied. A reply that waits is printed as far as it has come,
    and what comes after the answer is a message with the calls that were waiting and what follows.
    """
    waiting = _waiting(agent)
    message: Msg | None = None
    try:
        async for item in items:
            if isinstance(item, AgentEvent):
                if message is None:
                    message = agent._growing = _begun(agent, item, waiting)
                if item.reply_id == message.id:
                    with suppress(ValueError):  # a layer has made up events that do not fit together
                        message.append_event(item)
                    if item.__class__ in _GROWS:
                        await agent.print(message, False)
                    elif item.__class__ in _STOPS:
                        await agent.print(message, True)
            yield item
    finally:
        agent._growing = None
        await items.aclose()


def _waiting(agent: Printing) -> Msg | None:
    """Return a message with what the events after an answer speak of, of a reply that waits for one."""
    context = agent.state.reply_context
    if context is None:
        return None
    calls = [block for block in context.blocks if isinstance(block, ToolCallBlock)]
    waiting = {call.id: call for call in calls if call.state is not ToolCallState.FINISHED}
    content: list[ContentBlock] = [copy_block(call) for call in waiting.values()]
    for block in context.blocks:
        if isinstance(block, ToolResultBlock) and block.id in waiting:
            content.append(copy_block(block))
    return headed_like(context.message, content)


def _begun(agent: Printing, first: AgentEvent, waiting: Msg | None) -> Msg:
    goes_on = waiting is not None and waiting.id == first.reply_id and not isinstance(first, ReplyStartEvent)
    return waiting if goes_on and waiting is not None else Msg(agent.name, [], "assistant", id=first.reply_id)
