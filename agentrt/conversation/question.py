"""How a reply asks for the answer that it waits for."""

from agentrt.conversation.conversation import ReplyingAgent
from agentrt.conversation.open_calls import describe_calls
from agentrt.conversation.run import Run
from agentrt.conversation.step import Wait
from agentrt.event import (
    AgentEvent,
    RequireExternalExecutionEvent,
    RequireUserConfirmEvent,
    ToolResultStartEvent,
)
from agentrt.message import Msg, TextBlock, ToolCallBlock, ToolCallState, copy_block
from agentrt.state import ReplyContext

__all__ = ["park", "question_message"]

_ASKING, _SUBMITTED = ToolCallState.ASKING, ToolCallState.SUBMITTED


async def park(agent: ReplyingAgent, run: Run, context: ReplyContext, step: Wait) -> list[AgentEvent]:
    """Leave the reply as it is, saved, for an answer; returns the events that ask for what is not asked yet.

    The question is saved before it is sent, so that nobody can answer what no saved state asks.
    """
    progress = run.progress
    events = [progress.record_event(event) for event in _question_events(context, step)]
    progress.park(context)
    progress.expect(len(events))
    if events or progress.last_event is not None:  # an answer that came before leaves everything as it was
        context.worked += run.interruption.elapsed()
    context.ids, agent.state.sequence = progress.ids, progress.highest_seq
    await agent.save()
    progress.mark_saved()
    return events


def _question_events(context: ReplyContext, step: Wait) -> list[AgentEvent]:
    asking, submitted = [], []
    for call in step.calls:
        waits_for = context.decisions[call.id].waits_for
        if waits_for == "user" and call.state is not _ASKING:
            asking.append(ToolCallBlock(call.id, call.name, call.input, _ASKING))
        elif waits_for == "external" and call.state is not _SUBMITTED:
            submitted.append(ToolCallBlock(call.id, call.name, call.input, _SUBMITTED))
    events: list[AgentEvent] = [ToolResultStartEvent(context.reply_id, call.id, call.name) for call in submitted]
    if submitted:
        events.append(RequireExternalExecutionEvent(context.reply_id, submitted))
    if asking:
        questions = {call.id: context.decisions[call.id].question() for call in asking}
        events.append(RequireUserConfirmEvent(context.reply_id, asking, questions))
    return events


def question_message(context: ReplyContext, calls: list[ToolCallBlock]) -> Msg:
    """Return the message of a parked reply: it carries the calls that wait."""
    text = TextBlock(f"Waiting for an answer about {describe_calls(calls)}.")
    message = context.message
    return Msg(message.name, [text, *map(copy_block, calls)], "assistant", id=message.id, created_at=message.created_at)
