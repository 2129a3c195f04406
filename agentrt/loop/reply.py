"""The core of a reply, inside every layer: rounds of asking the model and running its tools, until it answers."""

import logging
from collections.abc import AsyncGenerator, Iterator
from copy import deepcopy
from typing import Any

from anyio.lowlevel import checkpoint_if_cancelled
from pydantic_core import to_json

from agentrt.concurrency.interrupt import Interrupted
from agentrt.conversation.conversation import ReplyingAgent
from agentrt.conversation.inputs import ANSWERS, as_messages, check_content
from agentrt.conversation.progress import PLAIN_INSIDE, PLAIN_OUTSIDE, Origin, Phase
from agentrt.conversation.run import Run
from agentrt.conversation.step import Act, Finish, Reason, Step, Wait, next_step, step_between_rounds, step_of_calls
from agentrt.errors import ChainContractError, ChainError, ContextOverflow, InvalidInputError, Malformed
from agentrt.event import (
    AgentEvent,
    ExceedMaxItersEvent,
    HintBlockEvent,
    ModelCallEndEvent,
    ModelCallRetryEvent,
    ReplyEndEvent,
    RequireExternalExecutionEvent,
    RequireUserConfirmEvent,
    ToolResultEndEvent,
    ToolResultStartEvent,
    UserInterruptEvent,
)
from agentrt.hooks import ReplyInput
from agentrt.loop.acting import calls_of_round, run_calls
from agentrt.loop.answer import announce_round, answer_of_core
from agentrt.loop.compression import compress_then_reason, near_context_limit, update_from_usage
from agentrt.loop.outcome import (
    begin,
    close_calls_in_doubt,
    drain_and_close,
    end,
    end_event,
    end_partial_message,
    said_when_interrupted,
    start,
)
from agentrt.loop.reasoning import forget_attempt
from agentrt.loop.resume import apply_answer, named, reply_to_resume
from agentrt.loop.structured_output import require_structured_output
from agentrt.message import (
    APPLY,
    ContentBlock,
    DataBlock,
    Msg,
    TextBlock,
    ToolCallBlock,
    ToolCallState,
    copy_block,
    headed_like,
)
from agentrt.state import ReplyContext
from agentrt.types import FinishedReason

__all__ = ["asking_of", "final_of", "reply"]

_logger = logging.getLogger("agentrt")

_ASKING, _SUBMITTED = ToolCallState.ASKING, ToolCallState.SUBMITTED
_MOST_EMPTY_ROUNDS = 1
_LAST_WORDS: dict[FinishedReason, str] = {
    "exceed_max_iters": "I used up the rounds that I have for one reply and could not finish.",
    "exceed_max_tool_calls": "I used up the tool calls that I have for one reply and could not finish.",
    "exceed_max_seconds": "I used up the time that I have for one reply and could not finish.",
    "exceed_max_output": "I wrote more than I may in one reply and was stopped.",
}


async def reply(  # noqa: C901  # in one piece, since another generator would cost every event another frame
    agent: ReplyingAgent, inputs: ReplyInput, structured_schema: Any
) -> AsyncGenerator[AgentEvent | Msg, None]:
    """The core of on_reply: rounds of asking the model and running its tools, until there is an answer.

    The message is built from what leaves on_reasoning, and each result is saved before the event that tells of it.
    """
    run = agent.run
    mailbox, interruption, usage = run.mailbox, run.interruption, agent.conversation.context_usage
    # What is looked at for each event.
    reply_id, posted, current_task = run.id, mailbox.items, interruption.current_task
    context, opening = await _open(agent, run, inputs, structured_schema)
    for event in opening:
        yield event
    message = context.message
    reason: FinishedReason = "completed"
    if interruption.has_pending_cancellation():  # a layer of on_reply has swallowed it before this
        await interruption.raise_pending_cancellation()
    # Where one task reads to the end and no layer is in between, nobody waits while the reader has the word.
    single_task = run.claim.drained and not run.claim.printed and agent.chains.on_reply is reply
    interruption.begin(agent.react_config.max_seconds - context.worked, single_task=single_task)
    try:
        step = next_step(context)
        while True:
            if run.ended:
                raise ChainContractError("a layer of on_reply ended the reply itself, but read on: stop there")
            if interruption.reason is not None:
                raise Interrupted
            if isinstance(step, Wait):
                break
            if isinstance(step, Finish):
                if context.cur_iter > context.max_iters or not _has_continuation(run, step):
                    reason = step.reason
                    break
                yield _take_hint(run, context)
                step = next_step(context)
            inner = _perform(agent, context, step)
            stream = interruption.guard_steps(inner)
            try:
                async for item in stream:
                    if not single_task:
                        interruption.task = None
                    if posted and not mailbox.is_read:  # if it is, this item came out of it
                        for event in mailbox.take():
                            yield run.progress.record_event(event)
                    if item.__class__ in PLAIN_INSIDE:  # what `admit` comes to, without the call
                        run.progress.events_recorded += 1
                        apply = APPLY.get(item.__class__)
                        if apply is not None and item.reply_id == reply_id:
                            apply(message, item)
                        run.progress.last_event = item
                        if not single_task:
                            yield item
                        elif item.__class__ in PLAIN_OUTSIDE and not item.seq:  # nobody would see it leave
                            item.seq = run.progress.sequence = run.progress.sequence + 1
                        else:
                            run.progress.assign_seq(item)
                    elif isinstance(item, Msg):
                        for event in announce_round(run, context, item):
                            yield run.progress.record_event(event)
                    else:
                        if isinstance(item, ReplyEndEvent) and item.reply_id == run.id:
                            raise ChainContractError("REPLY_END came from inside the reply: only on_reply may end it")
                        run.progress.last_event = run.progress.record_event(item)
                        if isinstance(item, ToolResultEndEvent):
                            interruption.task = None  # what is being saved is not to be interrupted
                            if agent.state_store is not None:
                                await agent.save()
                            if interruption.has_pending_cancellation():
                                await interruption.raise_pending_cancellation()
                            if single_task:
                                interruption.task = current_task()
                        yield item
                    if interruption.reason is not None:
                        raise Interrupted
                    if not single_task:
                        interruption.task = current_task()
            except ContextOverflow:
                if not (isinstance(step, Reason) and usage.record_overflow()):
                    raise
            finally:
                interruption.task = None
                if stream is not inner:
                    await stream.aclose()
                await inner.aclose()
            if usage.must_shorten:  # the same step once more, with less to send
                for event in _take_back(run):
                    yield event
                continue
            if run.progress.last_event.__class__ is ModelCallEndEvent:
                update_from_usage(agent, run.progress.last_event)
                context.paused = run.progress.last_event.finished_reason == "pause"
                if run.progress.last_event.finished_reason == "length":
                    run.progress.cut_call = _cut_call(context)
            if interruption.has_pending_cancellation():
                await interruption.raise_pending_cancellation()
            if run.progress.attempt is not None:
                context.written += run.progress.attempt.written
                run.progress.attempt = None
            step = step_of_calls(context) or _after_round(agent, context)
            if agent.state_store is not None and isinstance(step, Act):
                await agent.save()
    except Exception:
        interruption.end()
        for event in drain_and_close(agent, run):
            yield event
        raise
    except BaseException as error:
        if not interruption.is_interruption(error):
            raise
        reason = interruption.reason or "interrupted"
        await checkpoint_if_cancelled()  # the caller's scope may have been cancelled in the same moment
        if interruption.has_pending_cancellation():
            await interruption.raise_pending_cancellation()
    interruption.end()
    if reason != "completed":
        for event in _cut_short(agent, run, reason):
            yield event
    if mailbox.items:
        for event in mailbox.take():
            yield run.progress.record_event(event)
    if reason == "completed" and isinstance(step, Wait):
        for event in await _park(agent, run, context, step):
            yield event
        if interruption.reason is None:
            yield asking_of(context, step.calls)
            return
        context.parked = False
        run.progress.phase = Phase.OPEN  # asked to stop while the question was on its way
        reason = interruption.reason
        for event in _cut_short(agent, run, reason):
            yield event
    final = final_of(context, reason)
    if run.progress.recorder is not None:
        run.progress.core_answer = answer_of_core(context, final)
    yield await end(agent, run, end_event(agent, run, reason))
    if reason == "interrupted":
        final = await said_when_interrupted(agent, inputs, interruption.message)
    yield final


def _cut_short(agent: ReplyingAgent, run: Run, reason: FinishedReason) -> Iterator[AgentEvent]:
    """Yield what ends everything that is still open when a reply is stopped."""
    if reason == "exceed_max_iters":
        yield run.progress.record_event(ExceedMaxItersEvent(run.id, agent.name))
        return
    context = agent.state.reply_context
    if context is not None and run.progress.attempt is not None:
        for event in end_partial_message(context, run.progress.last_event, reason):
            yield run.progress.record_event(event)
    yield from drain_and_close(agent, run)


def _cut_call(context: ReplyContext) -> str | None:
    """Return the id of the call that the model was writing when it came to its limit, if that is where it stopped."""
    last = context.blocks[-1] if context.blocks else None
    return last.id if isinstance(last, ToolCallBlock) and not last.input.strip() else None


async def _open(
    agent: ReplyingAgent, run: Run, inputs: ReplyInput, structured_schema: Any
) -> tuple[ReplyContext, list[AgentEvent]]:
    """Take in the input and begin the reply, go on with it, or begin it again when a layer of on_reply does so.

    Returns the events to begin with, admitted: what they tell is saved with the input.
    """
    if run.ended:
        raise ChainError(
            "on_reply called next_handler() again after the reply had ended: to have another round, call "
            "agent.run.continue_with(hint) before that"
        )
    context = agent.state.reply_context
    if context is None:
        context, opening = _begin(agent, run, inputs, structured_schema)
        if agent.state_store is not None:
            await _save_input(agent, run, len(as_messages(inputs)))
        return context, opening
    if run.progress.phase is not Phase.NEW and run.progress.origin is not Origin.INPUT:
        return context, []  # what a person answered stands, and so does what was done about it
    if run.progress.phase is not Phase.NEW:
        return context, [run.progress.record_event(_begin_again(run, context))]
    if structured_schema is not None:
        _logger.warning("structured_schema is ignored: the reply %r goes on, with the form it began with", run.id)
    return context, await _go_on(agent, run, context, inputs)


def _begin(
    agent: ReplyingAgent, run: Run, inputs: ReplyInput, structured_schema: Any
) -> tuple[ReplyContext, list[AgentEvent]]:
    state = agent.state
    if isinstance(inputs, Msg) and agent.chains.on_reply is reply:  # checked as it came in, and not replaced since
        messages = [inputs]
    else:
        messages = as_messages(inputs)
        check_content(messages)
    if not messages and not state.context and not state.summary:
        raise InvalidInputError(
            f"agent {agent.name!r} was asked to reply to nothing: the conversation is empty and no input was given; "
            f"send a message, or have it observe one first"
        )
    context = begin(agent, run)
    require_structured_output(agent, context, structured_schema)
    state.context += [message.copy() for message in messages]
    state.reply_context = context
    return context, [start(agent, run)] if run.progress.start_event is None else []


async def _save_input(agent: ReplyingAgent, run: Run, messages: int) -> None:
    state = agent.state
    try:
        await agent.save()
    except Exception:  # raised again: the input is not taken, so that it can be given again
        del state.context[len(state.context) - messages :]
        state.reply_context = run.progress.message = None
        raise


async def _go_on(agent: ReplyingAgent, run: Run, context: ReplyContext, inputs: ReplyInput) -> list[AgentEvent]:
    reply_to_resume(agent, inputs)  # a layer may have put something else in the place of the answer
    permissions = agent.state.permission_context
    before = deepcopy((context, permissions.rules)) if agent.state_store is not None else None
    opening: list[AgentEvent] = (
        [start(agent, run)] if run.progress.origin is Origin.LEFT and run.progress.start_event is None else []
    )
    opening += [run.progress.record_event(event) for event in close_calls_in_doubt(agent, run, context)]
    if isinstance(inputs, ANSWERS):
        opening += [run.progress.record_event(event) for event in apply_answer(agent, context, inputs)]
    run.progress.phase = Phase.OPEN
    context.parked = False
    if isinstance(inputs, UserInterruptEvent):
        run.interruption.request("interrupted")
    if before is not None:
        try:
            await agent.save()
        except Exception:  # raised again: the answer is not taken, so that it can be given again
            agent.state.reply_context, permissions.rules = before
            raise
    return opening


def _begin_again(run: Run, context: ReplyContext) -> ModelCallRetryEvent:
    dropped = [block.id for block in context.blocks]
    for event in list(run.mailbox.take()):  # what tools had said that ran side by side, and nobody has seen
        if event.reply_id != run.id or event.__class__ not in APPLY:
            run.mailbox.post(event)
    run.progress.call_ids.clear()
    run.progress.attempt = None
    context.cur_iter = context.round_start = context.empty_rounds = context.summarised = 0
    context.response = None
    context.decisions.clear()
    if context.structured is not None:
        context.structured.output = None
    return ModelCallRetryEvent("the reply was started again", block_ids=dropped, reply_id=run.id)


def _perform(agent: ReplyingAgent, context: ReplyContext, step: Step) -> AsyncGenerator[AgentEvent | Msg, None]:
    """Return the stream of the step: one round of asking the model, or running its calls."""
    if isinstance(step, Act):
        return run_calls(agent, context, step)
    assert isinstance(step, Reason)  # a hint makes another round, so the step after it is no end either
    context.round_start = len(context.blocks)
    context.paused = False
    usage = agent.conversation.context_usage
    if not usage.has_headroom(agent.state, context, agent.model) and near_context_limit(agent):
        return compress_then_reason(agent, step.tool_choice)
    stream: AsyncGenerator[AgentEvent | Msg, None] = agent.chains.on_reasoning(agent, tool_choice=step.tool_choice)
    return stream


def _take_back(run: Run) -> Iterator[AgentEvent]:
    """Yield what announces that what the model has said in this round does not count."""
    for event in forget_attempt(run):
        run.progress.last_event = run.progress.record_event(event)
        yield event


def _after_round(agent: ReplyingAgent, context: ReplyContext) -> Step:
    """Count a round whose calls, if it has any, all have results, and return what comes after it.

    Raises `Malformed` for a model that says nothing.
    """
    context.cur_iter += 1
    added = len(context.blocks) - context.round_start
    context.empty_rounds = 0 if added > 0 else context.empty_rounds + 1
    if context.empty_rounds > _MOST_EMPTY_ROUNDS:
        raise Malformed(f"model {agent.model.model!r} answered with nothing, {context.empty_rounds} times in a row")
    if added > 1:  # a call has its result by now
        context.tool_calls += len(calls_of_round(context))
    step = step_between_rounds(context)
    if isinstance(step, Reason):
        limits = agent.react_config
        if context.tool_calls > limits.max_tool_calls:
            return Finish("exceed_max_tool_calls")
        if context.written > limits.max_output:
            return Finish("exceed_max_output")
    return step


def _has_continuation(run: Run, step: Finish) -> bool:
    return bool(run.progress.continuations) and step.reason == "completed"


def _take_hint(run: Run, context: ReplyContext) -> AgentEvent:
    event = run.progress.record_event(
        HintBlockEvent(run.id, run.new_id(), run.progress.continuations.pop(0), "continue_with")
    )
    context.round_start = len(context.blocks)
    context.response = None
    if context.structured is not None:
        context.structured.output = None  # the one that was given is not what was wanted
    return event


async def _park(agent: ReplyingAgent, run: Run, context: ReplyContext, step: Wait) -> list[AgentEvent]:
    """Leave the reply as it is, saved, for somebody's answer; returns the events that ask for what is not asked yet."""
    events = [run.progress.record_event(event) for event in _requests(context, step)]
    context.parked = True
    run.progress.park()
    run.progress.expect(len(events))
    context.ids = run.progress.ids
    if events or run.progress.last_event is not None:  # an answer that came before leaves everything as it was
        context.worked += run.interruption.elapsed()
    agent.state.sequence = run.progress.highest_seq
    await agent.save()
    run.progress.mark_saved()
    return events


def _requests(context: ReplyContext, step: Wait) -> list[AgentEvent]:
    reply_id, decisions = context.reply_id, context.decisions
    asking = [call for call in step.calls if decisions[call.id].waits_for == "user" and call.state is not _ASKING]
    given = [call for call in step.calls if decisions[call.id].waits_for == "external" and call.state is not _SUBMITTED]
    events: list[AgentEvent] = [ToolResultStartEvent(reply_id, call.id, call.name) for call in given]
    if given:
        events.append(RequireExternalExecutionEvent(reply_id, [_asked(call, _SUBMITTED) for call in given]))
    if asking:
        why = {call.id: decisions[call.id].question() for call in asking}
        events.append(RequireUserConfirmEvent(reply_id, [_asked(call, _ASKING) for call in asking], why))
    return events


def _asked(call: ToolCallBlock, state: ToolCallState) -> ToolCallBlock:
    return ToolCallBlock(call.id, call.name, call.input, state)


def asking_of(context: ReplyContext, calls: list[ToolCallBlock]) -> Msg:
    """Return the message of a parked reply: it carries the calls that wait."""
    text = TextBlock(f"Waiting for an answer about {named(calls)}.")
    message = context.message
    return Msg(message.name, [text, *map(copy_block, calls)], "assistant", id=message.id, created_at=message.created_at)


def final_of(context: ReplyContext, reason: FinishedReason) -> Msg:
    """Return the message that answers the input: what the last round said."""
    message = context.message
    answer = [copy_block(block) for block in context.blocks[context.round_start :]]
    if reason in _LAST_WORDS and not _is_answer(answer):
        answer = [TextBlock(_LAST_WORDS[reason])]
    output = context.structured.output if context.structured is not None else None
    if output is not None:
        answer = [block for block in answer if isinstance(block, TextBlock)] or [TextBlock(to_json(output).decode())]
    final = headed_like(message, answer)
    final.role = "assistant"
    final.usage, final.structured_output, final.finished_reason = message.usage, output, reason
    if context.response is not None:
        final.metadata = dict(context.response.metadata)
    return final


def _is_answer(blocks: list[ContentBlock]) -> bool:
    called = any(isinstance(block, ToolCallBlock) for block in blocks)
    return not called and any(isinstance(block, (TextBlock, DataBlock)) for block in blocks)
