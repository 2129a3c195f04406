"""A reply in the saved state, for followers that missed its events."""

from typing import Any, Literal, NamedTuple, cast

from agentrt._runtime.loop.repeat import find_reply
from agentrt.agent import Agent
from agentrt.event import AnyEvent, ReplyEndEvent
from agentrt.message import AssistantMsg, Msg
from agentrt.runner.events import resumed_event
from agentrt.runner.execution import open_conversation
from agentrt.state import SessionStore
from agentrt.types import FinishedReason


class Snapshot(NamedTuple):
    """The saved reply, as the events that build its message, and that message as `Agent.reply` returns it."""

    standing: Literal["running", "waiting", "over"]
    events: list[AnyEvent]
    message: Msg

    def events_after(self, number: int) -> list[AnyEvent]:
        return [event for event in self.events if event.seq > number]


async def take_snapshot(
    agent: Agent, store: SessionStore, session_id: str, reply_id: str, last_number: int | None = None
) -> Snapshot | None:
    """Return what is saved of the reply, `None` where the session does not know it.

    `last_number` is that of its last event, if the queue knows it: the session may have had others since.
    """
    conversation = await open_conversation(agent, store, session_id)
    state = conversation.state
    context, last, number = state.reply_context, state.last_reply, state.sequence
    if context is not None and context.reply_id == reply_id:
        # As those who saw the events read it: values, and not the handles that the state has.
        so_far = conversation.released(context.message, "output")
        question = conversation.waiting()
        if question is None:
            return Snapshot("running", [resumed_event(so_far, session_id, number)], so_far)
        # In front of the question, which keeps the number that it was sent with.
        events: list[AnyEvent] = [resumed_event(so_far, session_id, question.seq - 1), question]
        return Snapshot("waiting", events, await conversation.reply(reply_id=reply_id))
    kept = find_reply(state, reply_id, agent.name)
    kept = None if kept is None else cast(Msg, conversation.released(kept, "output"))
    if last is not None and last.reply_id == reply_id:
        state.reply_context = None  # of the next reply; this copy of the state is never saved
        # Which only repeats it, whether it has the form that was asked for or not.
        message: Any = await conversation.reply_stream(reply_id=reply_id, yield_final_msg=True).drain()
        kept = kept or message
    elif kept is None:
        return None
    else:
        message = kept
    number = number if last_number is None else last_number
    reason = "completed" if kept.finished_reason is None else kept.finished_reason
    end = ReplyEndEvent(reply_id, session_id, reason, kept.error, kept.structured_output, seq=number)
    return Snapshot("over", [resumed_event(kept, session_id, number - 1), end], message)


def empty_snapshot(agent: Agent, session_id: str, reply_id: str, reason: FinishedReason, error: str | None) -> Snapshot:
    """Return the snapshot of a reply without content, which the session does not keep."""
    message = AssistantMsg(agent.name, [], id=reply_id, finished_reason=reason, error=error)
    return Snapshot("over", [ReplyEndEvent(reply_id, session_id, reason, error, seq=1)], message)
