"""The owner of a reply, outside every layer.

It takes the conversation, supplies a start and an end where a layer left them out, and sees to it that whatever happens
the state is whole when control returns.
"""

import logging
from collections.abc import AsyncGenerator
from typing import Any

import anyio

from agentrt.agent.ending import (
    ReplyingConversation,
    close_unfinished,
    end,
    end_event,
    leftovers,
    record,
    settle,
    start,
)
from agentrt.agent.run import Run
from agentrt.agent.stream import Ticket
from agentrt.errors import ChainContractError, ChainError, UsageError
from agentrt.event import AgentEvent, ReplyEndEvent, ReplyStartEvent
from agentrt.hooks import ReplyInput
from agentrt.message import Msg

__all__ = ["drive"]

_logger = logging.getLogger("agentrt")
_SAVE_SECONDS = 10.0


async def drive(  # noqa: C901  # in one piece, since another generator would cost every event another frame
    agent: ReplyingConversation, ticket: Ticket, inputs: ReplyInput, yield_final_msg: bool
) -> AsyncGenerator[AgentEvent | Msg, None]:
    """Run one reply through on_reply and yield its events, then its final message when asked for."""
    if not agent._turns.take_free(ticket, agent.when_busy):
        await agent._turns.take(ticket, agent.when_busy)
    run = Run(ticket.reply_id, agent.state.sequence)
    agent._begin(run)
    stream = agent.chains.on_reply(agent, inputs=inputs, structured_schema=None)
    final: Msg | None = None
    failure: Exception | None = None
    started = ended = False
    try:
        close_unfinished(agent)
        try:
            async for item in stream:
                if not started:
                    started = True
                    if item.__class__ is not ReplyStartEvent:
                        yield run.let_out(start(agent, run))
                if isinstance(item, Msg):
                    final = item
                    continue
                if item.__class__ is ReplyEndEvent and item.reply_id == run.id:
                    if ended:
                        continue
                    ended = True
                    if not run.ended:  # a layer made it up
                        for event in run.completed(leftovers(agent, run)):
                            yield run.let_out(event)
                        await end(agent, run, item)
                yield run.let_out(item)
        except Exception as raised:  # noqa: BLE001  # raised again below, once the listener has seen the end
            failure = raised
        if not started:
            yield run.let_out(start(agent, run))
        if not ended:
            for event in run.completed(leftovers(agent, run)):
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
    # This text is saved and shown, and what a provider, a tool or a layer put into an error may hold a secret: only the
    # name of its type goes on, but for errors that are our own words about a wrong use.
    name = type(failure).__name__
    return f"{name}: {failure}" if isinstance(failure, (UsageError, ChainError)) else name


async def _missing_end(agent: ReplyingConversation, run: Run, failure: Exception | None) -> ReplyEndEvent:
    """Return the end that no layer let through: the one on record, or a new one."""
    outcome = agent.state.last_reply
    if run.ended and outcome is not None:
        return end_event(agent, run, outcome.finished_reason, outcome.error)
    if failure is None:
        return await end(agent, run, end_event(agent, run, "completed"))
    event = end_event(agent, run, "error", _told(failure))
    try:
        return await end(agent, run, event)
    except Exception:  # the failure itself is what the caller is to know of
        _logger.exception("the state of a failed reply could not be saved")
        return event


async def _leave(agent: ReplyingConversation, run: Run, ticket: Ticket, stream: AsyncGenerator[Any, None]) -> None:
    """Close everything and put the state in order, whatever the reason for leaving."""
    try:
        await stream.aclose()
    finally:
        try:
            if not run.ended or not run.end_is_saved or run.last_number > agent.state.sequence:
                await _make_good(agent, run)
        finally:
            agent._begin(None)
            agent._turns.give_back(ticket)


async def _make_good(agent: ReplyingConversation, run: Run) -> None:
    """Record that the reply was cancelled or left, if it did not end, and save what is not saved yet."""
    if not run.ended:
        for _ in settle(agent, run):  # nobody is listening, so no event is sent
            pass
        record(agent, run, end_event(agent, run, "interrupted"))
    agent.state.sequence = run.last_number
    with anyio.move_on_after(_SAVE_SECONDS, shield=True):
        try:
            await agent.save()
        except Exception:  # what made us leave matters more, and is on its way
            _logger.exception("the state of a reply that did not end could not be saved")
