"""How a reply begins and ends on record: exactly one end, and every tool call with its result."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from inspect import isawaitable
from typing import Any

from agentrt.block import new_id
from agentrt.conversation.conversation import ReplyingAgent
from agentrt.conversation.progress import Origin, Phase
from agentrt.conversation.run import Run
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
    ToolResultEndEvent,
    ToolResultStartEvent,
    ToolResultTextDeltaEvent,
)
from agentrt.hooks import ReplyInput
from agentrt.loop.reasoning import known_tools
from agentrt.message import Msg, ToolCallBlock, ToolCallState, ToolResultBlock, ToolResultState, copy_block
from agentrt.state import AgentState, ReplyContext, ReplyOutcome
from agentrt.tool.base import call_plan_of
from agentrt.types import FinishedReason, PermissionBehavior

__all__ = [
    "UNSAVED",
    "abandon_unfinished_reply",
    "begin",
    "begun_calls",
    "close_calls_in_doubt",
    "close_open_calls",
    "drain_and_close",
    "end",
    "end_event",
    "end_partial_message",
    "message_when_interrupted",
    "record",
    "skip_unsaved",
    "start",
]

_Told = tuple[str, ToolResultState]

# More events than any process sends between two saves. So many numbers fit nine million times into what JSON's readers
# keep exactly.
UNSAVED = 1_000_000_000

_INTERRUPTED: _Told = "Interrupted: the reply ended before this call was done.", ToolResultState.INTERRUPTED
_NOT_RUN: _Told = (
    "Interrupted: the reply ended before anybody had answered for this call. It was not run.",
    ToolResultState.INTERRUPTED,
)
_ABANDONED: _Told = (
    "Unknown: the reply ended before this call was done. Its thread cannot be stopped, so it may take effect.",
    ToolResultState.UNKNOWN,
)
_UNKNOWN: _Told = (
    "Unknown: the process ended before this call was known to be done. It may have taken effect.",
    ToolResultState.UNKNOWN,
)


def begin(agent: ReplyingAgent, run: Run) -> ReplyContext:
    """Begin the message of a reply, which is in progress once the state holds what is returned."""
    run.progress.phase = Phase.OPEN
    run.progress.message = message = Msg(agent.name, [], "assistant", id=run.id)
    if run.progress.start_event is not None:  # it is out already, since a layer spoke before us
        message.append_event(run.progress.start_event)
    return ReplyContext(run.id, message, agent.react_config.max_iters)


def start(agent: ReplyingAgent, run: Run) -> ReplyStartEvent | ReplyResumedEvent:
    """Return the event that a reply begins with, admitted, or that it goes on with after its process died."""
    if run.progress.start_event is None:
        session_id = agent.state.session_id
        if run.progress.origin is Origin.LEFT and run.progress.message is not None:
            message = run.progress.message
            blocks = [copy_block(block) for block in message.get_content_blocks()]
            run.progress.start_event = ReplyResumedEvent(
                run.id, blocks, session_id, message.name, message.role, message.usage, message.created_at
            )
        else:
            run.progress.start_event = ReplyStartEvent(run.id, session_id, agent.name)
        run.progress.record_event(run.progress.start_event)
    return run.progress.start_event


def skip_unsaved(state: AgentState) -> None:
    """Leave out the numbers that a process which died has given to events after its last save."""
    left = state.reply_context
    if left is not None and not left.parked:
        state.sequence += UNSAVED
        left.ids += UNSAVED


def end_event(agent: ReplyingAgent, run: Run, reason: FinishedReason, error: str | None = None) -> ReplyEndEvent:
    context = agent.state.reply_context
    task = context.structured if context is not None else None
    output = task.output if task is not None and reason == "completed" else None
    return ReplyEndEvent(run.id, agent.state.session_id, reason, error, output)


async def end(agent: ReplyingAgent, run: Run, event: ReplyEndEvent) -> ReplyEndEvent:
    """Put the end on record, save it, and return the event that tells of it."""
    record(agent, run, event)
    if agent.state_store is not None:
        await agent.save()
    run.progress.mark_saved()
    return event


def record(agent: ReplyingAgent, run: Run, event: ReplyEndEvent) -> None:
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
    _keep(agent, context)


def _keep(agent: ReplyingAgent, context: ReplyContext) -> None:
    """Put the message of a reply that is over into the history; an empty one would be refused from then on."""
    if context.summarised:
        context.message.content = context.blocks[context.summarised :]
    state = agent.state
    if context.blocks:
        state.context.append(context.message)
    state.context += context.observed
    state.reply_context = None


def abandon_unfinished_reply(agent: ReplyingAgent) -> None:
    """Put a reply to rest that nobody goes on with: a process before this one left it, or it was told to stop."""
    left = agent.state.reply_context
    if left is None:
        return
    skip_unsaved(agent.state)
    for event in _results(agent, left, new_id, _if_left):
        left.message.append_event(event)
    left.message.append_event(ReplyEndEvent(left.reply_id, agent.state.session_id, "interrupted"))
    agent.state.last_reply = ReplyOutcome(left.reply_id, "interrupted", None, left.decisions)
    _keep(agent, left)


def close_calls_in_doubt(agent: ReplyingAgent, run: Run, context: ReplyContext) -> Iterator[AgentEvent]:
    """Yield results for the calls that may have been running when a process before this one ended."""
    if context.parked:
        return
    begun = begun_calls(context)
    doubtful = [call for call in _open_calls(context) if not _waits(context, call)]
    for call in doubtful:
        yield from _result(context, call, run.new_id, _if_left(agent, context, call, begun), begun)


def end_partial_message(context: ReplyContext, last: AgentEvent | None, why: str) -> Iterator[AgentEvent]:
    """Yield the events that end a model's answer which was stopped after `last`."""
    reply_id = context.reply_id
    if isinstance(last, (TextBlockStartEvent, TextBlockDeltaEvent)):
        yield TextBlockEndEvent(reply_id, last.block_id)
    elif isinstance(last, (ThinkingBlockStartEvent, ThinkingBlockDeltaEvent)):
        yield ThinkingBlockEndEvent(reply_id, last.block_id)
    elif isinstance(last, (ToolCallStartEvent, ToolCallDeltaEvent)):
        for call in _open_calls(context):
            yield ToolCallEndEvent(reply_id, call.id)
    if not isinstance(last, ModelCallEndEvent):
        yield ModelCallEndEvent(reply_id, finished_reason=why)


def drain_and_close(agent: ReplyingAgent, run: Run) -> Iterator[AgentEvent]:
    """Yield what was emitted and not seen yet, and the events that give each open call its result."""
    for event in run.mailbox.take():
        yield run.progress.record_event(event)
    yield from close_open_calls(agent, run)


def close_open_calls(agent: ReplyingAgent, run: Run) -> Iterator[AgentEvent]:
    """Yield the events that give each open call its result."""
    context = agent.state.reply_context
    if context is not None:
        for event in _results(agent, context, run.new_id, _if_stopped):
            yield run.progress.record_event(event)


def _results(
    agent: ReplyingAgent, context: ReplyContext, new_id: Callable[[], str], told: Callable[..., _Told]
) -> Iterator[AgentEvent]:
    calls = sorted(_open_calls(context), key=partial(_waits, context))  # those that ran, then those that waited
    begun = begun_calls(context)
    for call in calls:
        yield from _result(context, call, new_id, told(agent, context, call, begun), begun)


def _result(
    context: ReplyContext, call: ToolCallBlock, new_id: Callable[[], str], told: _Told, begun: set[str]
) -> Iterator[AgentEvent]:
    text, state = told
    if call.id not in begun:
        yield ToolResultStartEvent(context.reply_id, call.id, call.name)
    yield ToolResultTextDeltaEvent(context.reply_id, call.id, text, new_id())
    yield ToolResultEndEvent(context.reply_id, call.id, state)


def _if_stopped(agent: ReplyingAgent, context: ReplyContext, call: ToolCallBlock, begun: set[str]) -> _Told:
    """What is said of a call that this process has stopped."""
    if _waits(context, call):
        return _NOT_RUN
    runs = call.id in begun and _behavior(context, call) is PermissionBehavior.ALLOW
    return _ABANDONED if runs and _runs_in_a_thread(agent, call) else _INTERRUPTED


def _if_left(agent: ReplyingAgent, context: ReplyContext, call: ToolCallBlock, begun: set[str]) -> _Told:
    """What is said of a call of a reply that this process has found."""
    if context.parked or _waits(context, call):
        return _NOT_RUN
    return _INTERRUPTED if _behavior(context, call) is PermissionBehavior.DENY else _UNKNOWN


def _open_calls(context: ReplyContext) -> list[ToolCallBlock]:
    calls = [block for block in context.blocks if isinstance(block, ToolCallBlock)]
    return [call for call in calls if call.state is not ToolCallState.FINISHED]


def _waits(context: ReplyContext, call: ToolCallBlock) -> bool:
    decision = context.decisions.get(call.id)
    return decision is not None and decision.waits_for is not None


def _behavior(context: ReplyContext, call: ToolCallBlock) -> PermissionBehavior | None:
    decision = context.decisions.get(call.id)
    return None if decision is None else decision.behavior


def begun_calls(context: ReplyContext) -> set[str]:
    """Return the ids of the calls that have a result, or the beginning of one."""
    return {block.id for block in context.blocks if isinstance(block, ToolResultBlock)}


def _runs_in_a_thread(agent: ReplyingAgent, call: ToolCallBlock) -> bool:
    tool = known_tools(agent).get(call.name)
    return tool is not None and call_plan_of(tool).in_thread


async def message_when_interrupted(agent: ReplyingAgent, inputs: ReplyInput, reason: str | None) -> Msg:
    """Return the message of an interrupted reply; raises `ChainContractError` where a subclass gives none."""
    answer: Any = agent.handle_interrupt(inputs, reason=reason)
    name = f"{type(agent).__name__}.handle_interrupt()"
    if not isawaitable(answer):
        raise ChainContractError(f"{name} must be a coroutine function: write `async def handle_interrupt`")
    message = await answer
    if not isinstance(message, Msg):
        raise ChainContractError(f"{name} must return a Msg, not {message!r:.200}")
    return replace(message, finished_reason="interrupted")
