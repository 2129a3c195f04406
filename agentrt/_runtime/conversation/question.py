"""How a reply asks for the answer that it waits for."""

from agentrt._runtime.conversation.conversation import ReplyingAgent
from agentrt._runtime.conversation.open_calls import AskedCall, asked_calls, begun_calls, describe_calls
from agentrt._runtime.conversation.progress import QuestionEvent
from agentrt._runtime.conversation.reply_run import ReplyRun
from agentrt.event import AgentEvent, RequireExternalExecutionEvent, RequireUserConfirmEvent, ToolResultStartEvent
from agentrt.message import Msg, TextBlock, ToolCallBlock, ToolCallState
from agentrt.state import ReplyContext


async def park(agent: ReplyingAgent, run: ReplyRun, context: ReplyContext) -> list[AgentEvent]:
    """Leave the reply as it is, saved, for an answer; returns the events that ask for what is not asked yet.

    The question is saved before it is sent, so that nobody can answer what no saved state asks.
    """
    progress = run.progress
    events = [progress.record_event(event) for event in _question_events(context)]
    for number, event in enumerate(events, progress.sequence + 1):
        if isinstance(event, QuestionEvent):
            progress.note_asked(context, event, number)  # saved with the question; layers may still change the number
    progress.park(context)
    progress.expect(len(events))
    if events or progress.last_event is not None:  # an answer that came before leaves everything as it was
        context.worked += run.interruption.elapsed()
    context.ids, agent.state.sequence = progress.ids, progress.highest_seq
    await agent.save()
    progress.mark_saved()
    return events


def open_question(context: ReplyContext | None) -> QuestionEvent | None:
    """Return the event that asks for what a parked reply waits for, as it was sent; of two, that for the user."""
    if context is None or not context.parked:
        return None
    calls = asked_calls(context)
    if not calls:
        return None
    asking = [item for item in calls if item.decision.waits_for == "user"]
    question = _ask_user(context, asking) if asking else _ask_program(context, calls)
    # Several events may have asked about these calls, and the last of them is the one that a listener waits at.
    decisions = [item.decision for item in asking or calls]
    question.created_at = max(decision.asked_at for decision in decisions)
    question.seq = max(decision.asked_seq for decision in decisions)
    return question


def _question_events(context: ReplyContext) -> list[AgentEvent]:
    new = [
        item
        for item in asked_calls(context)
        if (item.decision.asked_seq == 0 if "/" in item.call.id else item.call.state is not _state_when_asked(item))
    ]
    submitted = [item for item in new if item.decision.waits_for == "external"]
    asking = [item for item in new if item.decision.waits_for == "user"]
    # A call inside of another has no result in this reply's message.
    begun = begun_calls(context) if submitted else ()
    events: list[AgentEvent] = [
        ToolResultStartEvent(context.reply_id, call.id, call.name)
        for call, _, _ in submitted
        if "/" not in call.id and call.id not in begun
    ]
    if submitted:
        events.append(_ask_program(context, submitted))
    if asking:
        events.append(_ask_user(context, asking))
    return events


def _ask_program(context: ReplyContext, calls: list[AskedCall]) -> RequireExternalExecutionEvent:
    return RequireExternalExecutionEvent(context.reply_id, _copies(calls), _names_of_agents(calls))


def _ask_user(context: ReplyContext, calls: list[AskedCall]) -> RequireUserConfirmEvent:
    questions = {call.id: decision.question() for call, decision, _ in calls}
    return RequireUserConfirmEvent(context.reply_id, _copies(calls), questions, _names_of_agents(calls))


def _names_of_agents(calls: list[AskedCall]) -> dict[str, list[str]]:
    """Return the agents that these calls come from, of those that are inside of another call."""
    return {call.id: [*names] for call, _, names in calls if names}


def _copies(calls: list[AskedCall]) -> list[ToolCallBlock]:
    # Copies: what a listener does to an event must not change the calls that are saved.
    return [ToolCallBlock(item.call.id, item.call.name, item.call.input, _state_when_asked(item)) for item in calls]


def _state_when_asked(item: AskedCall) -> ToolCallState:
    return ToolCallState.ASKING if item.decision.waits_for == "user" else ToolCallState.SUBMITTED


def question_message(context: ReplyContext) -> Msg:
    """Return the message of a parked reply: it carries the calls that wait."""
    calls = _copies(asked_calls(context))
    text = TextBlock(f"Waiting for an answer about {describe_calls(calls)}.")
    message = context.message
    return Msg(message.name, [text, *calls], "assistant", id=message.id, created_at=message.created_at)
