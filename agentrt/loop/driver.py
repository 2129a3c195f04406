"""The owner of a reply, outside every layer.

It takes the conversation, supplies a start and an end where a layer left them out, and sees to it that whatever happens
the state is whole when control returns.
"""

import logging
from collections.abc import AsyncGenerator
from contextlib import suppress
from copy import deepcopy
from functools import partial
from typing import Any

from agentrt.concurrency.background_task import enclosing_replies
from agentrt.concurrency.event_loop import run_shielded
from agentrt.conversation.conversation import ReplyingAgent
from agentrt.conversation.inputs import ANSWERS
from agentrt.conversation.progress import PLAIN_BETWEEN_LAYERS, PLAIN_OUTSIDE, Origin, Phase
from agentrt.conversation.run import Run
from agentrt.conversation.turns import Claim, CurrentReply, lock_of
from agentrt.decoding.recorder import DELTAS, Recorder
from agentrt.errors import ChainContractError, ChainError, SessionUnserializable, UsageError
from agentrt.event import AgentEvent, ReplyEndEvent, ReplyResumedEvent, ReplyStartEvent, UserInterruptEvent
from agentrt.hooks import ReplyInput
from agentrt.loop.answer import (
    announce_answer,
    announce_notice,
    checked_answer,
    keep_as_told,
    message_to_return,
    withdraw_unkept,
)
from agentrt.loop.outcome import (
    UNSAVED,
    abandon_unfinished_reply,
    close_open_calls,
    drain_and_close,
    end,
    end_event,
    record,
    skip_unsaved,
    start,
)
from agentrt.loop.repeat import is_in_progress, repeat_reply
from agentrt.loop.reply import reply
from agentrt.loop.resume import already_answered, reply_to_resume
from agentrt.loop.structured_output import toolkit_for_reply
from agentrt.message import AssistantMsg, Msg
from agentrt.state import ReplyContext
from agentrt.state.state import drop_unsavable

__all__ = ["run_reply"]

_logger = logging.getLogger("agentrt")
_OPENINGS = {ReplyStartEvent, ReplyResumedEvent}
_SAVE_SECONDS = 15.0


async def run_reply(  # noqa: C901  # in one piece, since another generator would cost every event another frame
    agent: ReplyingAgent, ticket: Claim, inputs: ReplyInput, structured_schema: Any, yield_final_msg: bool
) -> AsyncGenerator[AgentEvent | Msg, None]:
    """Run one reply through on_reply and yield its events, then its final message when asked for.

    A reply that waits goes on with the right answer; anything else is refused before any layer sees it.
    """
    state = agent.state
    turns = lock_of(state)
    current = turns.run
    if isinstance(inputs, UserInterruptEvent) and current is not None and _is_about(agent, current, inputs):
        current.interruption.request("interrupted")
        if yield_final_msg:
            yield AssistantMsg(agent.name, [], finished_reason="interrupted")
        return
    if enclosing_replies.get():
        _check_depth(agent)
    if not turns.take_free(ticket, agent.when_busy):
        await turns.take(ticket, agent.when_busy)
    try:
        left = nothing_to_do = None
        if state.reply_context is not None or ticket.is_named or isinstance(inputs, ANSWERS):
            inputs, left, nothing_to_do = _take_up(agent, ticket, inputs)
        agent.current_chains()
        if nothing_to_do is None:
            run = _begin(agent, ticket, left)
    except BaseException:
        ticket.give_back()
        raise
    if nothing_to_do is not None:
        ticket.give_back()
        if yield_final_msg:
            yield nothing_to_do
        return
    run.interruption.bind_reader()
    on_reply = agent.chains.on_reply
    stream = on_reply(agent, inputs=inputs, structured_schema=structured_schema)
    final: Msg | None = None
    last: ReplyEndEvent | None = None  # held back until on_reply has ended, since its last message may say more
    failure: Exception | None = None
    plain, record_delta = PLAIN_OUTSIDE, None
    if on_reply is not reply:
        run.progress.recorder = Recorder(run.id, agent.name)
        plain, record_delta = PLAIN_BETWEEN_LAYERS, run.progress.recorder.record
    is_told = run.progress.origin is not Origin.PARKED  # that it begins, or goes on
    started = ended = False
    try:
        try:
            async for item in stream:
                if item.__class__ in plain and run.progress.is_flowing and not item.seq:
                    item.seq = run.progress.sequence = (
                        run.progress.sequence + 1
                    )  # what `assign_seq` comes to, without the call
                    yield item
                    continue
                if record_delta is not None and item.__class__ in DELTAS and run.progress.is_flowing and not item.seq:
                    record_delta(item)
                    item.seq = run.progress.sequence = run.progress.sequence + 1
                    yield item
                    continue
                if not started:
                    started = run.progress.is_flowing = True
                    if run.progress.phase is Phase.NEW:
                        await _reserve_numbers(agent, run)
                    if is_told and item.__class__ not in _OPENINGS:
                        yield run.progress.assign_seq(start(agent, run))
                    elif item.__class__ is ReplyStartEvent and item.reply_id == run.id:
                        run.progress.start_event = item  # a layer may have made it up
                if isinstance(item, Msg):
                    final = item
                    continue
                if item.__class__ is ReplyEndEvent and item.reply_id == run.id:
                    last = last or item
                    if not run.ended:  # a layer made it up
                        for event in run.progress.fill_missing_starts(drain_and_close(agent, run)):
                            yield run.progress.assign_seq(event)
                        run.ended = True
                    if record_delta is None:
                        ended = True
                        yield run.progress.assign_seq(item)
                    continue
                if (
                    run.progress.is_saved and run.progress.sequence >= agent.state.sequence
                ):  # a layer adds it to what was saved
                    await _reserve_numbers(agent, run)
                yield run.progress.assign_seq(item)
            if (
                run.interruption.has_pending_cancellation()
            ):  # a layer of on_reply has swallowed the caller's cancellation
                await run.interruption.raise_pending_cancellation()
            if final is not None and run.progress.recorder is not None:
                final = checked_answer(final)
        except Exception as raised:  # noqa: BLE001  # raised again below, once the listener has seen the end
            failure = raised
        if failure is not None and _is_still_waiting(agent, run):
            raise failure  # an answer that was refused, or a layer that failed before it was taken: nothing has changed
        if not ended and not _is_still_waiting(agent, run):
            if is_told and not started:
                with suppress(Exception):  # what failed before is what the caller is to know of
                    await _reserve_numbers(agent, run)
                yield run.progress.assign_seq(start(agent, run))
            for event in run.progress.fill_missing_starts(drain_and_close(agent, run)):
                yield run.progress.assign_seq(event)
            changes: list[AgentEvent] = []
            if run.progress.recorder is not None:
                if failure is not None or final is None:
                    changes = withdraw_unkept(run)
                else:
                    changes = announce_answer(agent, run, inputs, final)
            if failure is None and run.progress.end_event is not None and not run.progress.is_saved:
                failure = await _save_end(agent, run)  # before what it replaces is withdrawn, since a process may die
            elif changes and run.progress.end_event is not None:  # on record, with fewer numbers than are sent now
                await _reserve_numbers(agent, run)
            for event in changes:
                yield run.progress.assign_seq(event)
            yield run.progress.assign_seq(await _missing_end(agent, run, last, final, failure))
        elif (
            not (ended or failure)
            and run.progress.phase is Phase.NEW
            and final is not None
            and run.progress.recorder is not None
        ):
            for event in await announce_notice(agent, run, inputs, final):
                yield run.progress.assign_seq(event)
        elif run.progress.is_parked and run.progress.recorder is not None:
            withdrawn = withdraw_unkept(run)
            if withdrawn:
                await _reserve_numbers(agent, run)
            for event in withdrawn:
                yield run.progress.assign_seq(event)
        if failure is not None:
            raise failure
        if final is None:
            raise ChainContractError("on_reply ended without the final Msg")
        if yield_final_msg:
            yield final if run.progress.recorder is None else message_to_return(run, final)
    finally:
        await _leave(agent, run, ticket, stream)


def _is_about(agent: ReplyingAgent, run: CurrentReply, event: UserInterruptEvent) -> bool:
    return event.reply_id == run.id and event.session_id in (None, agent.state.session_id)


def _check_depth(agent: ReplyingAgent) -> None:
    depth, most = len(enclosing_replies.get()), agent.react_config.max_depth
    if depth >= most:
        raise UsageError(
            f"agent {agent.name!r} was asked inside of {depth} other replies, each from a tool of the one before, and "
            f"{most} is the most: does an agent call itself? If it is meant, set ReActConfig(max_depth=...)"
        )


def _begin(agent: ReplyingAgent, ticket: Claim, left: ReplyContext | None) -> Run:
    state = agent.state
    if left is None:
        abandon_unfinished_reply(agent)
        toolkit = agent.toolkit
    else:
        skip_unsaved(state)
        ticket.reply_id = left.reply_id
        toolkit = toolkit_for_reply(agent, left)
    run = Run(ticket, max(state.sequence, ticket.after) if ticket.after else state.sequence, toolkit)
    if left is not None:
        run.progress.restore(left)
        run.toolkit = agent.conversation.round_toolkit or toolkit
    agent.conversation.begin(run)
    return run


def _take_up(
    agent: ReplyingAgent, ticket: Claim, inputs: ReplyInput
) -> tuple[ReplyInput, ReplyContext | None, Msg | None]:
    """Return the input, the reply in progress that it goes on with, and the message where nothing is left to do."""
    if ticket.is_named:
        goes_on = is_in_progress(agent, ticket.reply_id, inputs)
        if not isinstance(inputs, ANSWERS):  # an answer names its reply by itself
            message = repeat_reply(agent, ticket.reply_id)
            if message is not None:
                return None, None, message
            inputs = None if goes_on else inputs
    message = _nothing_to_do(agent, inputs)
    return inputs, None if message is not None else reply_to_resume(agent, inputs), message


async def _reserve_numbers(agent: ReplyingAgent, run: Run) -> None:
    """Save that numbers are in use, for events of a layer that come before the first save or after the last one."""
    if agent.state_store is not None:
        run.progress.sequence += UNSAVED
        try:
            await agent.save()
        finally:
            run.progress.sequence -= UNSAVED


def _nothing_to_do(agent: ReplyingAgent, inputs: ReplyInput) -> Msg | None:
    """Return the message that answers an input which changes nothing any more."""
    if isinstance(inputs, ANSWERS) and already_answered(agent, inputs):
        return repeat_reply(agent, inputs.reply_id)
    if isinstance(inputs, UserInterruptEvent) and agent.state.reply_context is None:
        return AssistantMsg(agent.name, [], finished_reason="interrupted")
    return None


def _is_still_waiting(agent: ReplyingAgent, run: Run) -> bool:
    """Say whether the reply waits for an answer: it was parked just now, or before, and is still."""
    context = agent.state.reply_context
    return context is not None and context.parked and context.reply_id == run.id


def _told(failure: Exception) -> str:
    # This text is saved and shown, and what a provider, a tool or a layer put into an error may hold a secret: only the
    # name of its type goes on, but for errors that are our own words about a wrong use.
    name = type(failure).__name__
    return f"{name}: {failure}" if isinstance(failure, (UsageError, ChainError)) else name


async def _save_end(agent: ReplyingAgent, run: Run) -> Exception | None:
    """Save the end on record; returns the failure if that cannot be saved."""
    try:
        await agent.save()
    except Exception as error:  # noqa: BLE001  # raised once the listener has seen the end
        return error
    run.progress.mark_saved()
    return None


async def _missing_end(
    agent: ReplyingAgent, run: Run, last: ReplyEndEvent | None, final: Msg | None, failure: Exception | None
) -> ReplyEndEvent:
    """Return the end that was not let out yet: the one on record, the one that a layer made, or a new one."""
    outcome = agent.state.last_reply
    if run.progress.end_event is not None and outcome is not None:
        if failure is not None and not run.progress.is_saved:  # it could not be saved, and nobody was told of it
            outcome.finished_reason, outcome.error = "error", _told(failure)
            event = end_event(agent, run, "error", outcome.error)
            if run.progress.message is not None:
                run.progress.message.append_event(event)
            return event
        event = last or run.progress.end_event
        event.structured_output = run.progress.end_event.structured_output
        return event
    if failure is None:
        event = last or end_event(agent, run, "completed")
        if final is not None and final.structured_output is not None:
            event.structured_output = deepcopy(final.structured_output)
        return await end(agent, run, event)
    event = end_event(agent, run, "error", _told(failure))
    try:
        return await end(agent, run, event)
    except Exception as error:  # noqa: BLE001  # the failure itself is what the caller is to know of
        # The name alone: the failure that this one came on top of may quote a provider.
        _logger.error("the state of a failed reply could not be saved: %s", type(error).__name__)
        return event


async def _leave(agent: ReplyingAgent, run: Run, ticket: Claim, stream: AsyncGenerator[Any, None]) -> None:
    """Close everything and put the state in order, whatever the reason for leaving."""
    try:
        await stream.aclose()
    finally:
        try:
            run.interruption.end()
            if (
                run.progress.recorder is not None and run.progress.end_event is None and keep_as_told(run)
            ):  # it waits, or was left
                run.progress.mark_changed()
            if run.progress.phase is not Phase.SAVED or run.progress.highest_seq != agent.state.sequence:
                await _make_good(agent, run)
        finally:
            agent.conversation.end()
            ticket.give_back()


async def _make_good(agent: ReplyingAgent, run: Run) -> None:
    """Record that the reply was cancelled or left, if it did not end, and save what is not saved yet."""
    context = agent.state.reply_context
    if context is not None and run.progress.is_parked and run.interruption.reason is not None:
        context.parked = False  # asked to stop while it was being parked
        run.progress.phase = Phase.OPEN
    is_untouched = _is_still_waiting(agent, run) and not run.progress.is_parked
    if run.progress.highest_seq == agent.state.sequence and (run.progress.is_saved or is_untouched):
        return
    if run.progress.end_event is None and not _is_still_waiting(agent, run):
        for _ in close_open_calls(agent, run):  # nobody is listening, so no event is sent
            pass
        record(agent, run, end_event(agent, run, "interrupted"))
    agent.state.sequence = run.progress.highest_seq
    if not await run_shielded(_SAVE_SECONDS, partial(_save_or_log, agent, run)):
        _logger.error("the state of a reply that did not end could not be saved within %s seconds", _SAVE_SECONDS)


async def _save_or_log(agent: ReplyingAgent, run: Run) -> None:
    try:
        try:
            await agent.save()
        except SessionUnserializable:
            # A layer's events may have put it there; the conversation goes on without it.
            left_out = drop_unsavable(run.progress.message) if run.progress.message is not None else []
            if not left_out:
                raise
            _logger.error("what cannot be saved is left out of reply %s: %s", run.id, ", ".join(left_out))
            await agent.save()
    except Exception as error:  # noqa: BLE001  # what made us leave matters more, and is on its way
        _logger.error("the state of a reply that did not end could not be saved: %s", type(error).__name__)
