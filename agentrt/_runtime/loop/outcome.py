"""How a reply begins and ends on record: exactly one end, and every tool call with its result."""

from collections.abc import Iterator
from dataclasses import replace
from inspect import isawaitable

from agentrt._runtime.conversation.conversation import ReplyingAgent
from agentrt._runtime.conversation.final_message import end_error
from agentrt._runtime.conversation.open_calls import close_abandoned_calls, open_calls
from agentrt._runtime.conversation.progress import ReplyProgress
from agentrt._runtime.conversation.reply_run import ReplyRun
from agentrt.errors import ChainContractError
from agentrt.event import (
    AgentEvent,
    ModelCallEndEvent,
    ReplyEndEvent,
    ReplyResumedEvent,
    ReplyStartEvent,
    TextBlockDeltaEvent,
    TextBlockEndEvent,
    TextBlockStartEvent,
    ThinkingBlockDeltaEvent,
    ThinkingBlockEndEvent,
    ThinkingBlockStartEvent,
    ToolCallDeltaEvent,
    ToolCallEndEvent,
    ToolCallStartEvent,
)
from agentrt.hooks import ReplyInput
from agentrt.message import Msg, copy_block, new_reply_message
from agentrt.state import AgentState, ReplyContext, ReplyOutcome
from agentrt.types import FinishedReason

# More events than any process sends between two saves, and still nine million times less than the largest number that
# readers of JSON keep exactly.
UNSAVED = 1_000_000_000


def begin_context(agent: ReplyingAgent, run: ReplyRun) -> ReplyContext:
    """Begin the message of a reply, which is in progress once the state holds what is returned."""
    progress = run.progress
    message = new_reply_message(agent.name, run.id)
    progress.open(message)
    if progress.start_event is not None:  # it is out already, since a layer spoke before us
        message.append_event(progress.start_event)
    return ReplyContext(
        run.id,
        message,
        agent.react_config.max_iters,
        identities=run.identities,
        middleware_data=run.middleware_data,
        conditions=run.conditions,
    )


def start_event(agent: ReplyingAgent, run: ReplyRun) -> ReplyStartEvent | ReplyResumedEvent:
    """Return the event that a reply begins with, or resumes with after its process died; it is recorded."""
    progress = run.progress
    if progress.start_event is None:
        if progress.message is not None and progress.was_left:
            progress.start_event = resumption_event(agent, run, progress.message)
        else:
            progress.start_event = progress.record_event(ReplyStartEvent(run.id, agent.state.session_id, agent.name))
    return progress.start_event


def resumption_event(agent: ReplyingAgent, run: ReplyRun, message: Msg) -> ReplyResumedEvent:
    """Record and return the event that gives a listener everything that the reply holds."""
    blocks = [copy_block(block) for block in message.get_content_blocks()]
    head = message.name, message.role, message.usage, message.created_at
    return run.progress.record_event(ReplyResumedEvent(run.id, blocks, agent.state.session_id, *head))


def skip_unsaved(state: AgentState) -> None:
    """Leave out the numbers that a process which died has given to events after its last save."""
    unfinished = state.reply_context
    if unfinished is not None and not unfinished.parked:
        state.sequence += UNSAVED
        unfinished.ids += UNSAVED


def end_event(agent: ReplyingAgent, run: ReplyRun, reason: FinishedReason, error: str | None = None) -> ReplyEndEvent:
    """Return the event that tells of this end, before it is on record."""
    context = agent.state.reply_context
    task = context.structured if context is not None else None
    output = task.answer if task is not None and reason == "completed" else None
    if context is not None and error is None:
        error = end_error(context, reason)
    return ReplyEndEvent(run.id, agent.state.session_id, reason, error, output)


async def end_reply(agent: ReplyingAgent, run: ReplyRun, event: ReplyEndEvent) -> ReplyEndEvent:
    """Put the end on record, save it, and return the event that tells of it."""
    record_end(agent, run, event)
    if agent.state_store is not None:
        await agent.save()
    run.progress.mark_saved()
    return event


def record_end(agent: ReplyingAgent, run: ReplyRun, event: ReplyEndEvent) -> None:
    """Put the end on record, and the reply's message into the history."""
    progress, state = run.progress, agent.state
    progress.end(event)
    run.ended = True
    state.sequence = progress.highest_seq
    context = state.reply_context
    if context is None:
        state.last_reply = ReplyOutcome(run.id, event.finished_reason, event.error)
        return
    start = context.round_start - context.summarised
    state.last_reply = ReplyOutcome(run.id, event.finished_reason, event.error, context.decisions, start)
    _move_to_history(agent, context)


def _move_to_history(agent: ReplyingAgent, context: ReplyContext) -> None:
    """Put the message of a reply that is over into the history; an empty one would be refused from then on."""
    if context.summarised:
        context.message.content = context.blocks[context.summarised :]
    state = agent.state
    if context.blocks:
        state.context.append(context.message)
    state.context += context.observed
    state.reply_context = None


def forget_unfinished_round(progress: ReplyProgress, context: ReplyContext | None) -> None:
    """Take out of a reply that is handed over what the model was saying: it is asked once more by who resumes it."""
    if context is not None and progress.attempt is not None:
        # Half an answer would pass for a whole one: the state does not say that it is not finished.
        del context.blocks[context.round_start :]
        progress.attempt = None


def abandon_unfinished_reply(agent: ReplyingAgent) -> None:
    """Close a reply that nobody resumes: a process before this one left it, or it was asked to stop while it waited."""
    context = agent.state.reply_context
    if context is None:
        return
    skip_unsaved(agent.state)
    for event in close_abandoned_calls(context):
        context.message.append_event(event)
    context.message.append_event(ReplyEndEvent(context.reply_id, agent.state.session_id, "interrupted"))
    agent.state.last_reply = ReplyOutcome(context.reply_id, "interrupted", None, context.decisions)
    _move_to_history(agent, context)


def end_partial_message(context: ReplyContext, last: AgentEvent | None, reason: str) -> Iterator[AgentEvent]:
    """Yield the events that end a model's answer which was stopped after `last`."""
    reply_id = context.reply_id
    if isinstance(last, (TextBlockStartEvent, TextBlockDeltaEvent)):
        yield TextBlockEndEvent(reply_id, last.block_id)
    elif isinstance(last, (ThinkingBlockStartEvent, ThinkingBlockDeltaEvent)):
        yield ThinkingBlockEndEvent(reply_id, last.block_id)
    elif isinstance(last, (ToolCallStartEvent, ToolCallDeltaEvent)):
        for call in open_calls(context):
            yield ToolCallEndEvent(reply_id, call.id, tool_call_name=call.name)
    if not isinstance(last, ModelCallEndEvent):
        yield ModelCallEndEvent(reply_id, finished_reason=reason)


async def message_when_interrupted(agent: ReplyingAgent, inputs: ReplyInput, reason: str | None) -> Msg:
    """Return the message of an interrupted reply; raises `ChainContractError` where a subclass gives none."""
    message: object = agent.handle_interrupt(inputs, reason=reason)
    name = f"{type(agent).__name__}.handle_interrupt()"
    if not isawaitable(message):
        raise ChainContractError(f"{name} must be a coroutine function: write `async def handle_interrupt`")
    message = await message
    if not isinstance(message, Msg):
        raise ChainContractError(f"{name} must return a Msg, not {message!r:.200}")
    return replace(message, finished_reason="interrupted")
