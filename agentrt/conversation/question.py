"""How a reply asks for the answer that it waits for."""

from agentrt.conversation.conversation import ReplyingAgent
from agentrt.conversation.open_calls import describe_calls, waiting_calls
from agentrt.conversation.progress import Question
from agentrt.conversation.reply_run import ReplyRun
from agentrt.conversation.step import Wait
from agentrt.event import (
    AgentEvent,
    RequireExternalExecutionEvent,
    RequireUserConfirmEvent,
    ToolResultStartEvent,
)
from agentrt.message import Msg, TextBlock, ToolCallBlock, ToolCallState, copy_block
from agentrt.state import ReplyContext

__all__ = ["open_question", "park", "question_message"]

_ASKING, _SUBMITTED = ToolCallState.ASKING, ToolCallState.SUBMITTED


async def park(agent: ReplyingAgent, run: ReplyRun, context: ReplyContext, step: Wait) -> list[AgentEvent]:
    """Leave the reply as it is, saved, for an answer; returns the events that ask for what is not asked yet.

    The question is saved before it is sent, so that nobody can answer what no saved state asks.
    """
    progress = run.progress
    events = [progress.record_event(event) for event in _question_events(context, step)]
    for number, event in enumerate(events, progress.sequence + 1):
        if isinstance(event, Question):
            progress.note_asked(context, event, number)  # saved with the question; layers may still change the number
    progress.park(context)
    progress.expect(len(events))
    if events or progress.last_event is not None:  # an answer that came before leaves everything as it was
        context.worked += run.interruption.elapsed()
    context.ids, agent.state.sequence = progress.ids, progress.highest_seq
    await agent.save()
    progress.mark_saved()
    return events


def open_question(context: ReplyContext | None) -> Question | None:
    """Return the event that asks for what a parked reply waits for, as it was sent; of two, that for the user."""
    if context is None or not context.parked:
        return None
    calls = waiting_calls(context)
    asking = [call for call in calls if context.decisions[call.id].waits_for == "user"]
    if not calls:
        return None
    question = _ask_user(context, asking) if asking else _ask_program(context, calls)
    # Several events may have asked about these calls, and the last of them is the one that a listener waits at.
    decisions = [context.decisions[call.id] for call in asking or calls]
    question.created_at = max(decision.asked_at for decision in decisions)
    question.seq = max(decision.asked_seq for decision in decisions)
    return question


def _question_events(context: ReplyContext, step: Wait) -> list[AgentEvent]:
    waits_for = {call.id: context.decisions[call.id].waits_for for call in step.calls}
    submitted = [call for call in step.calls if waits_for[call.id] == "external" and call.state is not _SUBMITTED]
    asking = [call for call in step.calls if waits_for[call.id] == "user" and call.state is not _ASKING]
    events: list[AgentEvent] = [ToolResultStartEvent(context.reply_id, call.id, call.name) for call in submitted]
    if submitted:
        events.append(_ask_program(context, submitted))
    if asking:
        events.append(_ask_user(context, asking))
    return events


def _ask_program(context: ReplyContext, calls: list[ToolCallBlock]) -> RequireExternalExecutionEvent:
    # Copies: what a listener does to an event must not change the calls that are saved.
    blocks = [ToolCallBlock(call.id, call.name, call.input, _SUBMITTED) for call in calls]
    return RequireExternalExecutionEvent(context.reply_id, blocks)


def _ask_user(context: ReplyContext, calls: list[ToolCallBlock]) -> RequireUserConfirmEvent:
    blocks = [ToolCallBlock(call.id, call.name, call.input, _ASKING) for call in calls]
    questions = {call.id: context.decisions[call.id].question() for call in calls}
    return RequireUserConfirmEvent(context.reply_id, blocks, questions)


def question_message(context: ReplyContext, calls: list[ToolCallBlock]) -> Msg:
    """Return the message of a parked reply: it carries the calls that wait."""
    text = TextBlock(f"Waiting for an answer about {describe_calls(calls)}.")
    message = context.message
    return Msg(message.name, [text, *map(copy_block, calls)], "assistant", id=message.id, created_at=message.created_at)
