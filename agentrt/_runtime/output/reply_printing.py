"""Prints the replies of an `Agent`: one message that grows with the reply's stream."""

from contextlib import suppress
from typing import Any, Protocol, runtime_checkable

import anyio
from pydantic_core import to_json

from agentrt._runtime.concurrency.coroutine_reader import CoroutineReader, hand_out
from agentrt._runtime.conversation.conversation import Conversation
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
    new_message_like,
    new_reply_message,
)
from agentrt.state import AgentState
from agentrt.types import STRUCTURED_OUTPUT

# The other events do not change the printed message, or not yet.
_PRINTED_EVENTS = {DataBlockEndEvent, HintBlockEvent, ModelCallRetryEvent, ProviderBlockEvent}
_PRINTED_EVENTS |= {ReplyResumedEvent, TextBlockDeltaEvent, ThinkingBlockDeltaEvent, ToolCallEndEvent}
_PRINTED_EVENTS |= {ToolResultEndEvent}
_LAST_EVENTS = {ReplyEndEvent, RequireExternalExecutionEvent, RequireUserConfirmEvent}
_LAST_SECONDS = 5.0  # for the end of an interrupted reply


@runtime_checkable
class _SizedQueue(Protocol):
    def full(self) -> bool: ...


class PrintingAgent(Protocol):
    """An agent that can print, and its conversation."""

    name: str
    state: AgentState

    @property
    def msg_queue(self) -> Any: ...
    @property
    def live_conversation(self) -> Conversation: ...
    async def print(self, msg: Msg, last: bool = True) -> None: ...


async def print_reply(agent: PrintingAgent, items: CoroutineReader[AgentEvent | Msg]) -> None:
    """Pass on the events of a reply, and print its message as it grows, each time before the event.

    A waiting reply is printed up to that point; after the answer, a second message has the calls
    that were waiting and the rest. The tool through which a model gives a structured answer is not printed; the
    answer is, if it has no text.

    An error of `print` is one of the reader, and not of the reply: that is left, and ends as interrupted.
    """
    conversation, waiting = agent.live_conversation, _waiting_message(agent)
    printed: _PrintedMessage | None = None
    try:
        async for item in items:
            if isinstance(item, AgentEvent):
                if printed is None:
                    printed = _PrintedMessage(agent.name, item, waiting)
                    conversation.printed_message = printed.message  # so that the queue need not copy it
                is_last = printed.add(item)
                if is_last is not None:
                    await _print(agent, printed.message, is_last)
            await hand_out(item)
    finally:
        # It may belong to the reply in progress when this one was refused.
        if printed is not None and conversation.printed_message is printed.message:
            conversation.printed_message = None
        await items.aclose()


class _PrintedMessage:
    """The printed message of a reply; the printing owns it, and copies nothing."""

    __slots__ = ("_hidden_calls", "_round_start", "message")

    def __init__(self, name: str, first: AgentEvent, waiting: Msg | None) -> None:
        resumes = waiting is not None and waiting.id == first.reply_id and not isinstance(first, ReplyStartEvent)
        self.message = waiting if resumes and waiting else new_reply_message(name, first.reply_id)
        self._hidden_calls: set[str] = set()  # of the tool for structured answers
        self._round_start = 0

    def add(self, event: AgentEvent) -> bool | None:
        """Apply an event; returns `None` if there is nothing to print, else whether the message is complete."""
        if event.reply_id != self.message.id:
            return None
        if isinstance(event, (ToolCallStartEvent, ToolResultStartEvent)) and event.tool_call_name == STRUCTURED_OUTPUT:
            self._hidden_calls.add(event.tool_call_id)
        if self._hidden_calls and getattr(event, "tool_call_id", None) in self._hidden_calls:
            return None
        with suppress(ValueError):  # a layer has made up events that do not fit together
            self.message.append_event(event)
        kind = event.__class__
        if kind is ReplyResumedEvent:  # its blocks are the earlier ones, including the hidden calls
            calls = self.message.get_content_blocks("tool_call")
            self._hidden_calls.update(call.id for call in calls if call.name == STRUCTURED_OUTPUT)
            if self._hidden_calls:
                blocks = self.message.get_content_blocks()
                self.message.content = [block for block in blocks if block.id not in self._hidden_calls]
        elif kind is ModelCallStartEvent:
            self._round_start = len(self.message.content)
        elif kind in _LAST_EVENTS:
            blocks, output = self.message.get_content_blocks(), self.message.structured_output
            if output is not None and not any(isinstance(block, TextBlock) for block in blocks[self._round_start :]):
                self.message.content = [*blocks, TextBlock(to_json(output).decode())]
            return True
        return False if kind in _PRINTED_EVENTS else None


async def _print(agent: PrintingAgent, message: Msg, is_last: bool) -> None:
    """Print the message, unless the reply has to stop: then only its end, with a short wait.

    The reader of the queue may have stopped reading, and a reply that waits for room there can be interrupted too.
    """
    run = agent.live_conversation.reply
    # After the end of the reply, only the wait for room in the queue can be interrupted.
    queue: object = agent.msg_queue
    is_full = isinstance(queue, _SizedQueue) and queue.full()
    if run is None or (run.ended and run.interruption.reason is None and not is_full):
        await agent.print(message, is_last)
        return
    if run.interruption.reason is None:
        with anyio.CancelScope() as scope:
            run.interruption.print_scope = scope
            try:
                await agent.print(message, is_last)
            finally:
                run.interruption.print_scope = None
        if not scope.cancelled_caught:
            return
    if is_last:  # told to stop, perhaps during this print
        with anyio.move_on_after(_LAST_SECONDS):
            await agent.print(message, True)


def _waiting_message(agent: PrintingAgent) -> Msg | None:
    """Return a message with the calls that the reply waits for, to which the events after the answer refer."""
    context = agent.state.reply_context
    if context is None:
        return None
    open_calls = {
        block.id: block
        for block in context.blocks
        if isinstance(block, ToolCallBlock)
        and block.name != STRUCTURED_OUTPUT
        and block.state is not ToolCallState.FINISHED
    }
    content: list[ContentBlock] = [copy_block(call) for call in open_calls.values()]
    content += [
        copy_block(block) for block in context.blocks if isinstance(block, ToolResultBlock) and block.id in open_calls
    ]
    return new_message_like(context.message, content)
