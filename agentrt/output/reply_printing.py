"""Printing the replies of an `Agent`: one message that grows with what leaves the reply's stream."""

from collections.abc import AsyncGenerator
from contextlib import suppress
from typing import Any, Protocol

import anyio
from pydantic_core import to_json

from agentrt.conversation.conversation import Conversation
from agentrt.conversation.run import Run
from agentrt.conversation.step import STRUCTURED_OUTPUT
from agentrt.event import (
    AgentEvent,
    DataBlockEndEvent,
    HintBlockEvent,
    ModelCallRetryEvent,
    ModelCallStartEvent,
    ProviderBlockEvent,
    ReplyEndEvent,
    ReplyResumedEvent,
    ReplyStartEvent,
    RequireExternalExecutionEvent,
    RequireUserConfirmEvent,
    TextBlockDeltaEvent,
    ThinkingBlockDeltaEvent,
    ToolCallEndEvent,
    ToolCallStartEvent,
    ToolResultEndEvent,
    ToolResultStartEvent,
)
from agentrt.message import (
    ContentBlock,
    Msg,
    TextBlock,
    ToolCallBlock,
    ToolCallState,
    ToolResultBlock,
    copy_block,
    headed_like,
)
from agentrt.state import AgentState

__all__ = ["print_reply"]

# Of the others nothing can be seen, or not yet.
_GROWS = {DataBlockEndEvent, HintBlockEvent, ModelCallRetryEvent, ProviderBlockEvent}
_GROWS |= {ReplyResumedEvent, TextBlockDeltaEvent, ThinkingBlockDeltaEvent, ToolCallEndEvent, ToolResultEndEvent}
_LAST_SECONDS = 5.0  # for the end of a reply that was interrupted
_STOPS = {ReplyEndEvent, RequireExternalExecutionEvent, RequireUserConfirmEvent}


class PrintingAgent(Protocol):
    """An agent that can print, and its conversation."""

    name: str
    state: AgentState

    @property
    def msg_queue(self) -> Any: ...
    @property
    def conversation(self) -> Conversation: ...
    async def print(self, msg: Msg, last: bool = True) -> None: ...


async def print_reply(
    agent: PrintingAgent, items: AsyncGenerator[AgentEvent | Msg, None]
) -> AsyncGenerator[AgentEvent | Msg, None]:
    """Yield the items of a reply, and print its message as it grows, each time before the item that makes it grow.

    The message is the printing's own, and nothing of it is copied. A reply that waits is printed as far as it has come,
    and what comes after the answer is a message with the calls that were waiting and what follows. The tool through
    which a model gives an answer of a certain form is not shown; the answer is, where no text stands for it.
    """
    conversation = agent.conversation
    waiting = _waiting(agent)
    message: Msg | None = None
    form_calls: set[str] = set()
    round_start = 0
    try:
        async for item in items:
            if isinstance(item, AgentEvent):
                if message is None:
                    message = conversation.printed_message = _begun(agent, item, waiting)
                if item.reply_id == message.id and not _is_about_form(item, form_calls):
                    with suppress(ValueError):  # a layer has made up events that do not fit together
                        message.append_event(item)
                    if item.__class__ is ReplyResumedEvent:
                        _leave_out_form(message, form_calls)
                    if item.__class__ in _GROWS:
                        await _print(agent, message, False)
                    elif item.__class__ in _STOPS:
                        _say_form(message, round_start)
                        await _print(agent, message, True)
                    elif item.__class__ is ModelCallStartEvent:
                        round_start = len(message.content)
            yield item
    finally:
        # It may be that of the reply which was in progress when this one was refused.
        if conversation.printed_message is message:
            conversation.printed_message = None
        await items.aclose()


async def _print(agent: PrintingAgent, message: Msg, last: bool) -> None:
    """Print the message, unless the reply is asked to stop: then only its end, and not waiting for long.

    Whoever reads what is printed may have stopped reading, and a reply that waits for room can be interrupted too.
    """
    run = agent.conversation.run
    if run is None or (run.interruption.reason is None and not _can_be_stopped(agent, run)):
        await agent.print(message, last)
        return
    if run.interruption.reason is None:
        with anyio.CancelScope() as run.interruption.print_scope:
            try:
                await agent.print(message, last)
            finally:
                run.interruption.print_scope = None
            return
    if last:
        with anyio.move_on_after(_LAST_SECONDS):
            await agent.print(message, True)


def _can_be_stopped(agent: PrintingAgent, run: Run) -> bool:
    # Of a reply that has ended, nothing can be stopped but the wait for room.
    return not run.ended or (hasattr(agent.msg_queue, "full") and bool(agent.msg_queue.full()))


def _is_about_form(event: AgentEvent, form_calls: set[str]) -> bool:
    if isinstance(event, (ToolCallStartEvent, ToolResultStartEvent)) and event.tool_call_name == STRUCTURED_OUTPUT:
        form_calls.add(event.tool_call_id)
    return bool(form_calls) and getattr(event, "tool_call_id", None) in form_calls


def _leave_out_form(message: Msg, form_calls: set[str]) -> None:
    calls = message.get_content_blocks("tool_call")
    form_calls.update(call.id for call in calls if call.name == STRUCTURED_OUTPUT)
    if form_calls:
        message.content = [block for block in message.get_content_blocks() if block.id not in form_calls]


def _say_form(message: Msg, round_start: int) -> None:
    blocks, output = message.get_content_blocks(), message.structured_output
    if output is not None and not any(isinstance(block, TextBlock) for block in blocks[round_start:]):
        message.content = [*blocks, TextBlock(to_json(output).decode())]


def _waiting(agent: PrintingAgent) -> Msg | None:
    """Return a message with what the events after an answer speak of, of a reply that waits for one."""
    context = agent.state.reply_context
    if context is None:
        return None
    calls = [block for block in context.blocks if isinstance(block, ToolCallBlock)]
    calls = [call for call in calls if call.name != STRUCTURED_OUTPUT]
    waiting = {call.id: call for call in calls if call.state is not ToolCallState.FINISHED}
    content: list[ContentBlock] = [copy_block(call) for call in waiting.values()]
    for block in context.blocks:
        if isinstance(block, ToolResultBlock) and block.id in waiting:
            content.append(copy_block(block))
    return headed_like(context.message, content)


def _begun(agent: PrintingAgent, first: AgentEvent, waiting: Msg | None) -> Msg:
    goes_on = waiting is not None and waiting.id == first.reply_id and not isinstance(first, ReplyStartEvent)
    return waiting if goes_on and waiting is not None else Msg(agent.name, [], "assistant", id=first.reply_id)
