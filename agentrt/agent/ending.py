"""How a reply begins and ends on record: exactly one end, and every tool call with its result."""

from collections.abc import Iterator
from typing import Protocol

from agentrt.agent.config import ReActConfig
from agentrt.agent.reasoning import Conversation
from agentrt.agent.run import Run
from agentrt.agent.stream import Turns, WhenBusy
from agentrt.event import (
    AgentEvent,
    ReplyEndEvent,
    ReplyStartEvent,
    ToolResultEndEvent,
    ToolResultStartEvent,
    ToolResultTextDeltaEvent,
)
from agentrt.message import (
    ToolCallBlock,
    ToolCallState,
    ToolResultBlock,
    ToolResultState,
)
from agentrt.state import ReplyContext, ReplyOutcome, StateStore
from agentrt.tool.base import plan_of
from agentrt.types import FinishedReason

__all__ = [
    "ReplyingConversation",
    "close_unfinished",
    "end",
    "end_event",
    "leftovers",
    "record",
    "settle",
    "start",
]

_INTERRUPTED = "Interrupted: the reply ended before this call was done."
_ABANDONED = "Unknown: the reply ended before this call was done. Its thread cannot be stopped, so it may take effect."
_UNKNOWN = "Unknown: the process ended before this call was known to be done. It may have taken effect."


class ReplyingConversation(Conversation, Protocol):
    """What a reply needs of an agent."""

    react_config: ReActConfig
    _turns: Turns
    when_busy: WhenBusy
    state_store: StateStore | None

    def _begin(self, run: Run | None) -> None: ...
    async def save(self) -> None: ...


def start(agent: Conversation, run: Run) -> ReplyStartEvent:
    run.start = run.admit(ReplyStartEvent(run.id, agent.state.session_id, agent.name))
    return run.start


def end_event(agent: Conversation, run: Run, reason: FinishedReason, error: str | None = None) -> ReplyEndEvent:
    return ReplyEndEvent(run.id, agent.state.session_id, reason, error)


async def end(agent: ReplyingConversation, run: Run, event: ReplyEndEvent) -> ReplyEndEvent:
    """Put the end on record, save it, and return the event that tells of it."""
    record(agent, run, event)
    if agent.state_store is not None:
        await agent.save()
    run.end_is_saved = True
    return event


def record(agent: ReplyingConversation, run: Run, event: ReplyEndEvent) -> None:
    run.admit(event)
    run.ended = True
    state = agent.state
    state.sequence = run.last_number
    state.last_reply = ReplyOutcome(run.id, event.finished_reason, event.error)
    if state.reply_context is not None:
        _keep(agent, state.reply_context)


def _keep(agent: ReplyingConversation, context: ReplyContext) -> None:
    """Put the message of a reply that is over into the history; an empty one would be refused from then on."""
    if context.blocks:
        agent.state.context.append(context.message)
    agent.state.reply_context = None


def close_unfinished(agent: ReplyingConversation) -> None:
    """Put a reply to rest that a process before this one did not finish."""
    left = agent.state.reply_context
    if left is None:
        return
    for event in _results_for_open_calls(agent, left, agent.run, _UNKNOWN):
        left.message.append_event(event)
    left.message.append_event(ReplyEndEvent(left.reply_id, agent.state.session_id, "interrupted"))
    _keep(agent, left)


def leftovers(agent: Conversation, run: Run) -> Iterator[AgentEvent]:
    """Yield what was emitted and not seen yet, and the events that give each open call its result."""
    for event in run.mailbox.take():
        yield run.admit(event)
    yield from settle(agent, run)


def settle(agent: Conversation, run: Run) -> Iterator[AgentEvent]:
    """Yield the events that give each open call its result."""
    context = agent.state.reply_context
    if context is not None:
        for event in _results_for_open_calls(agent, context, run):
            yield run.admit(event)


def _results_for_open_calls(
    agent: Conversation, context: ReplyContext, run: Run, told: str = ""
) -> Iterator[AgentEvent]:
    begun = {block.id for block in context.blocks if isinstance(block, ToolResultBlock)}
    for call in list(context.blocks):
        if not isinstance(call, ToolCallBlock) or call.state is ToolCallState.FINISHED:
            continue
        reply_id = context.reply_id
        text = told or (_ABANDONED if call.id in begun and _runs_in_a_thread(agent, call) else _INTERRUPTED)
        if call.id not in begun:
            yield ToolResultStartEvent(reply_id, call.id, call.name)
        yield ToolResultTextDeltaEvent(reply_id, call.id, text, run.new_id())
        state = ToolResultState.INTERRUPTED if text is _INTERRUPTED else ToolResultState.UNKNOWN
        yield ToolResultEndEvent(reply_id, call.id, state)


def _runs_in_a_thread(agent: Conversation, call: ToolCallBlock) -> bool:
    tool = agent.toolkit.get(call.name)
    return tool is not None and plan_of(tool).in_thread
