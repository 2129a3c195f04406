"""The way of a reply: its owner, outside every layer, and its core, inside them all.

The owner takes the conversation, supplies a start and an end where a layer left them out, and sees to it that whatever
happens the state is whole when control returns: every tool call has its result and exactly one end is on record.
"""

import logging
from collections.abc import AsyncGenerator, Iterator
from typing import Any, Protocol

import anyio

from agentrt.agent.accept import as_messages
from agentrt.agent.acting import run_calls
from agentrt.agent.config import ReActConfig
from agentrt.agent.reasoning import Conversation
from agentrt.agent.run import Run
from agentrt.agent.step import Act, Finish, Reason, Step, next_step
from agentrt.agent.stream import Ticket, Turns, WhenBusy
from agentrt.errors import AgentRTError, ChainContractError, ChainError, Malformed
from agentrt.event import (
    AgentEvent,
    ExceedMaxItersEvent,
    HintBlockEvent,
    ModelCallRetryEvent,
    ReplyEndEvent,
    ReplyStartEvent,
    ToolResultEndEvent,
    ToolResultStartEvent,
    ToolResultTextDeltaEvent,
)
from agentrt.hooks import ReplyInput
from agentrt.message import (
    AssistantMsg,
    ContentBlock,
    DataBlock,
    Msg,
    TextBlock,
    ThinkingBlock,
    ToolCallBlock,
    ToolCallState,
    ToolResultBlock,
    ToolResultState,
    copy_block,
)
from agentrt.state import ReplyContext, ReplyOutcome
from agentrt.types import FinishedReason

__all__ = ["ReplyingConversation", "drive", "reply"]

_logger = logging.getLogger("agentrt")
_SAVE_SECONDS = 10.0
_MOST_EMPTY_ROUNDS = 1
_EXCEEDED = "I used up the rounds that I have for one reply and could not finish."
_INTERRUPTED = "Interrupted: the reply ended before this call was done."
_UNKNOWN = "Unknown: the process ended before this call was known to be done. It may have taken effect."


class ReplyingConversation(Conversation, Protocol):
    """What a reply needs of an agent."""

    react_config: ReActConfig
    turns: Turns
    when_busy: WhenBusy

    def begin(self, run: Run | None) -> None: ...
    async def save(self) -> None: ...


# The owner


async def drive(  # noqa: C901  # in one piece, since another generator would cost every event another frame
    agent: ReplyingConversation, ticket: Ticket, inputs: ReplyInput, yield_final_msg: bool
) -> AsyncGenerator[AgentEvent | Msg, None]:
    """Run one reply through on_reply and yield its events, then its final message when asked for."""
    if not agent.turns.take_free(ticket, agent.when_busy):
        await agent.turns.take(ticket, agent.when_busy)
    run = Run(ticket.reply_id, agent.state.sequence)
    agent.begin(run)
    _close_unfinished(agent)
    stream = agent.chains.on_reply(agent, inputs=inputs, structured_schema=None)
    final: Msg | None = None
    failure: Exception | None = None
    started = ended = False
    try:
        try:
            async for item in stream:
                if not started:
                    started = True
                    if item.__class__ is not ReplyStartEvent:
                        yield run.let_out(_start(agent, run))
                if isinstance(item, Msg):
                    final = item
                    continue
                if item.__class__ is ReplyEndEvent and item.reply_id == run.id:
                    if ended:
                        continue
                    ended = True
                    if not run.ended:  # a layer made it up
                        for event in _leftovers(agent, run):
                            yield run.let_out(event)
                        await _end(agent, run, item)
                yield run.let_out(item)
        except Exception as raised:  # noqa: BLE001  # raised again below, once the listener has seen the end
            failure = raised
        if not started:
            yield run.let_out(_start(agent, run))
        if not ended:
            for event in _leftovers(agent, run):
                yield run.let_out(event)
            yield run.let_out(await _missing_end(agent, run, failure))
        if failure is not None:
            raise failure
        if final is None:
            raise ChainContractError("on_reply ended without the final Msg")
        if yield_final_msg:
            yield final
    finally:
        await _leave(agent, run, ticket, stream)


def _told(failure: Exception) -> str:
    # Only our own words: what others put into their errors may hold a secret, and this text is saved and shown.
    name = type(failure).__name__
    return f"{name}: {failure}" if isinstance(failure, AgentRTError) else name


def _start(agent: Conversation, run: Run) -> ReplyStartEvent:
    run.start = run.admit(ReplyStartEvent(run.id, agent.state.session_id, agent.name))
    return run.start


async def _missing_end(agent: ReplyingConversation, run: Run, failure: Exception | None) -> ReplyEndEvent:
    """Return the end that no layer let through: the one on record, or a new one."""
    outcome = agent.state.last_reply
    if run.ended and outcome is not None:
        return _end_event(agent, run, outcome.finished_reason, outcome.error)
    if failure is None:
        return await _end(agent, run, _end_event(agent, run, "completed"))
    event = _end_event(agent, run, "error", _told(failure))
    try:
        return await _end(agent, run, event)
    except Exception:  # the failure itself is what the caller is to know of
        _logger.exception("the state of a failed reply could not be saved")
        return event


def _end_event(agent: Conversation, run: Run, reason: FinishedReason, error: str | None = None) -> ReplyEndEvent:
    return ReplyEndEvent(run.id, agent.state.session_id, reason, error)


async def _end(agent: ReplyingConversation, run: Run, event: ReplyEndEvent) -> ReplyEndEvent:
    """Put the end on record, save it, and return the event that tells of it."""
    _record(agent, run, event)
    await agent.save()
    run.end_is_saved = True
    return event


def _record(agent: ReplyingConversation, run: Run, event: ReplyEndEvent) -> None:
    run.admit(event)
    run.ended = True
    state = agent.state
    state.sequence = run.last_number
    state.last_reply = ReplyOutcome(run.id, event.finished_reason, event.error)
    if state.reply_context is not None:
        _keep(agent, state.reply_context)


def _keep(agent: ReplyingConversation, context: ReplyContext) -> None:
    """Put the message of a reply that is over into the history, without what providers would refuse from then on."""
    message = context.message
    if message.finished_reason in ("interrupted", "error"):
        message.content = [block for block in context.blocks if not _is_empty(block)]
    if message.content:
        agent.state.context.append(message)
    agent.state.reply_context = None


def _is_empty(block: ContentBlock) -> bool:
    if isinstance(block, ThinkingBlock):
        return not block.thinking and block.signature is None
    return isinstance(block, TextBlock) and not block.text


async def _leave(agent: ReplyingConversation, run: Run, ticket: Ticket, stream: AsyncGenerator[Any, None]) -> None:
    """Close everything and put the state in order, whatever the reason for leaving."""
    try:
        await stream.aclose()
    finally:
        try:
            if not run.ended or not run.end_is_saved or run.last_number > agent.state.sequence:
                await _make_good(agent, run)
        finally:
            agent.begin(None)
            agent.turns.give_back(ticket)


async def _make_good(agent: ReplyingConversation, run: Run) -> None:
    """Record that the reply was cancelled or left, if it did not end, and save what is not saved yet."""
    if not run.ended:
        for _ in _settle(agent, run):  # nobody is listening, so no event is sent
            pass
        _record(agent, run, _end_event(agent, run, "interrupted"))
    agent.state.sequence = run.last_number
    with anyio.move_on_after(_SAVE_SECONDS, shield=True):
        try:
            await agent.save()
        except Exception:  # what made us leave matters more, and is on its way
            _logger.exception("the state of a reply that did not end could not be saved")


# The core


async def reply(  # noqa: C901  # in one piece, since another generator would cost every event another frame
    agent: ReplyingConversation, inputs: ReplyInput, structured_schema: Any
) -> AsyncGenerator[AgentEvent | Msg, None]:
    """The core of on_reply: rounds of asking the model and running its tools, until there is an answer.

    The message is built from what leaves on_reasoning, and each result is saved before the event that tells of it.
    """
    run = agent.run
    mailbox = run.mailbox
    context, opening = await _open(agent, run, inputs)
    if opening is not None:
        yield opening
    step = next_step(context)
    try:
        while True:
            if run.ended:
                raise ChainContractError("a layer of on_reply ended the reply itself, but read on: stop there")
            if isinstance(step, Finish):
                if context.cur_iter > context.max_iters or not run.hinted(step):
                    break
                yield _take_hint(run, context)
                step = next_step(context)
            stream = _perform(agent, context, step)
            try:
                async for item in stream:
                    if mailbox.items and not mailbox.is_read:  # if it is, this item came out of it
                        for event in mailbox.take():
                            yield run.admit(event)
                    if isinstance(item, Msg):
                        for event in run.spoken(item):
                            yield run.admit(event)
                        continue
                    run.admit(item)
                    if item.__class__ is ToolResultEndEvent:
                        await agent.save()
                    yield item
            finally:
                await stream.aclose()
            step = next_step(context)
            if isinstance(step, Act):
                await agent.save()
            else:
                _count_round(agent, context)
                step = next_step(context)
    except Exception:
        for event in _leftovers(agent, run):
            yield event
        raise
    final = _final(context, step.reason)
    if step.reason == "exceed_max_iters":
        yield run.admit(ExceedMaxItersEvent(run.id, agent.name))
    if mailbox.items:
        for event in mailbox.take():
            yield run.admit(event)
    yield await _end(agent, run, _end_event(agent, run, step.reason))
    yield final


async def _open(
    agent: ReplyingConversation, run: Run, inputs: ReplyInput
) -> tuple[ReplyContext, ReplyStartEvent | ModelCallRetryEvent | None]:
    """Take in the input and begin the reply, or begin it again when a layer of on_reply does so."""
    if run.ended:
        raise ChainError(
            "on_reply called next_handler() again after the reply had ended: to have another round, call "
            "agent.run.continue_with(hint) before that"
        )
    state = agent.state
    if state.reply_context is not None:
        return state.reply_context, _begin_again(run, state.reply_context)
    state.context.extend(message.copy() for message in as_messages(inputs))
    message = AssistantMsg(agent.name, [], id=run.id)
    state.reply_context = ReplyContext(run.id, message, agent.react_config.max_iters)
    run.message = message
    if run.start is None:
        opening: ReplyStartEvent | None = _start(agent, run)
    else:  # it is out already, since a layer spoke before us
        opening = None
        message.append_event(run.start)
    await agent.save()
    return state.reply_context, opening


def _begin_again(run: Run, context: ReplyContext) -> ModelCallRetryEvent:
    dropped = [block.id for block in context.blocks]
    run.call_ids.clear()
    run.attempt = None
    context.cur_iter = context.round_start = context.empty_rounds = 0
    context.response = None
    return run.admit(ModelCallRetryEvent("the reply was started again", block_ids=dropped, reply_id=run.id))


def _close_unfinished(agent: ReplyingConversation) -> None:
    """Put a reply to rest that a process before this one did not finish."""
    left = agent.state.reply_context
    if left is None:
        return
    for event in _results_for_open_calls(left, agent.run, ToolResultState.UNKNOWN, _UNKNOWN):
        left.message.append_event(event)
    left.message.finished_reason = "interrupted"
    _keep(agent, left)


def _perform(agent: ReplyingConversation, context: ReplyContext, step: Step) -> AsyncGenerator[AgentEvent | Msg, None]:
    """Return the stream of the step: one round of asking the model, or running its calls."""
    if isinstance(step, Act):
        return run_calls(agent, context, step)
    assert isinstance(step, Reason)  # a hint makes another round, so the step after it is no end either
    agent.run.attempt = None
    context.round_start = len(context.blocks)
    stream: AsyncGenerator[AgentEvent | Msg, None] = agent.chains.on_reasoning(agent, tool_choice=step.tool_choice)
    return stream


def _count_round(agent: ReplyingConversation, context: ReplyContext) -> None:
    """Count a round whose calls, if it has any, all have results; raises `Malformed` for a model that says nothing."""
    context.cur_iter += 1
    context.empty_rounds = 0 if len(context.blocks) > context.round_start else context.empty_rounds + 1
    if context.empty_rounds > _MOST_EMPTY_ROUNDS:
        raise Malformed(f"model {agent.model.model!r} answered with nothing, {context.empty_rounds} times in a row")


def _take_hint(run: Run, context: ReplyContext) -> AgentEvent:
    event = run.admit(HintBlockEvent(run.id, run.new_id(), run.take_hint(), "continue_with"))
    context.round_start = len(context.blocks)
    context.response = None
    return event


def _final(context: ReplyContext, reason: FinishedReason) -> Msg:
    """Return the message that answers the input: what the last round said."""
    message = context.message
    answer = [copy_block(block) for block in context.blocks[context.round_start :]]
    if reason == "exceed_max_iters" and not _is_answer(answer):
        answer = [TextBlock(_EXCEEDED)]
    return Msg(
        message.name,
        answer,
        "assistant",
        id=message.id,
        metadata=dict(context.response.metadata) if context.response else {},
        usage=message.usage,
        finished_reason=reason,
        created_at=message.created_at,
    )


def _is_answer(blocks: list[ContentBlock]) -> bool:
    called = any(isinstance(block, ToolCallBlock) for block in blocks)
    return not called and any(isinstance(block, (TextBlock, DataBlock)) for block in blocks)


def _leftovers(agent: Conversation, run: Run) -> Iterator[AgentEvent]:
    """Yield what was emitted and not seen yet, and the events that give each open call its result."""
    for event in run.mailbox.take():
        yield run.admit(event)
    yield from _settle(agent, run)


def _settle(agent: Conversation, run: Run) -> Iterator[AgentEvent]:
    """Yield the events that give each open call its result."""
    context = agent.state.reply_context
    if context is not None:
        for event in _results_for_open_calls(context, run, ToolResultState.INTERRUPTED, _INTERRUPTED):
            yield run.admit(event)


def _results_for_open_calls(context: ReplyContext, run: Run, state: ToolResultState, text: str) -> Iterator[AgentEvent]:
    begun = {block.id for block in context.blocks if isinstance(block, ToolResultBlock)}
    for call in list(context.blocks):
        if not isinstance(call, ToolCallBlock) or call.state is ToolCallState.FINISHED:
            continue
        reply_id = context.reply_id
        if call.id not in begun:
            yield ToolResultStartEvent(reply_id, call.id, call.name)
        yield ToolResultTextDeltaEvent(reply_id, call.id, text, run.new_id())
        yield ToolResultEndEvent(reply_id, call.id, state)
