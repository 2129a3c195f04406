"""The core of a reply, inside every layer: rounds of asking the model and running its tools, until it answers."""

from collections.abc import AsyncGenerator, Callable
from typing import Any

from agentrt.concurrency.interrupt import Interrupted
from agentrt.conversation.conversation import ReplyingAgent
from agentrt.conversation.progress import PLAIN_INSIDE
from agentrt.conversation.reply_run import ReplyRun
from agentrt.event import AgentEvent
from agentrt.hooks import ReplyInput
from agentrt.loop.opening import open_reply
from agentrt.loop.rounds import Rounds
from agentrt.message import APPLY, Msg

__all__ = ["reply", "reply_unseen"]


def _change_nothing(message: Msg, event: AgentEvent) -> None:
    pass


# What `record_event` does with the events that are plain content: one look says that an event is, and what to call.
_APPLY_PLAIN: dict[type, Callable[[Msg, Any], None]] = {
    event_type: APPLY.get(event_type, _change_nothing) for event_type in PLAIN_INSIDE
}


async def reply(  # noqa: C901  # the way of every event, where a call more would cost each of them
    agent: ReplyingAgent, inputs: ReplyInput, structured_schema: Any
) -> AsyncGenerator[AgentEvent | Msg, None]:
    """The core of on_reply: rounds of asking the model and running its tools, until there is an answer.

    The message is built from what leaves on_reasoning, and each result is saved before the event that tells of it.
    """
    run = agent.live_conversation.run
    context, opening = await open_reply(agent, run, inputs, structured_schema)
    # What each event needs. The loop stays in this generator: another one, or a call, would slow every event down.
    message, progress, mailbox, interruption = context.message, run.progress, run.mailbox, run.interruption
    reply_id, current_task = run.id, interruption.current_task
    rounds = Rounds(agent, run, inputs, context)
    for event in opening:
        yield event
    interruption.begin(agent.react_config.max_seconds - context.worked)
    while not rounds.is_over:
        try:
            if interruption.has_pending_cancellation():  # a layer or a tool has swallowed it
                await interruption.raise_pending_cancellation()
            for event in rounds.begin_step():
                yield event
            if rounds.is_over:
                break
            if rounds.must_save:
                await agent.save()  # what the model wrote, before any of its calls may take effect
            async for item in rounds.read_step():
                interruption.task = None  # while the reader has control, nothing of ours can be interrupted
                if mailbox.items and not mailbox.is_read:  # if it is, this item came out of it
                    for event in mailbox.take():
                        yield progress.record_event(event)
                apply = _APPLY_PLAIN.get(item.__class__)
                if apply is not None:
                    progress.events_recorded += 1
                    if item.reply_id == reply_id:  # type: ignore[union-attr]  # it is an event
                        apply(message, item)
                    progress.last_event = item  # type: ignore[assignment]  # likewise
                    yield item
                else:
                    for event in await rounds.take_item(item):
                        yield event
                if interruption.reason is not None:
                    raise Interrupted
                interruption.task = current_task()
        except BaseException as error:
            for event in await rounds.stop(error):
                yield event
            if rounds.has_failed:
                raise
    for part in rounds.closing():
        for item in await part():
            yield item


async def reply_unseen(agent: ReplyingAgent, run: ReplyRun, inputs: ReplyInput, structured_schema: Any) -> Msg:
    """The same where no layer is around the reply and nobody reads its events: returns the final message.

    It goes the same steps. What is left out is carrying each event to the reader, half the price of a short reply. A
    property test compares the two.
    """
    progress, interruption = run.progress, run.interruption
    context, opening = await open_reply(agent, run, inputs, structured_schema)
    rounds = Rounds(agent, run, inputs, context)
    for event in opening:
        progress.assign_seq(event)
    interruption.begin(agent.react_config.max_seconds - context.worked, single_task=True)
    while not rounds.is_over:
        try:
            if interruption.has_pending_cancellation():
                await interruption.raise_pending_cancellation()
            progress.sequence += len(rounds.begin_step())
            if rounds.is_over:
                break
            if rounds.must_save:
                await agent.save()
            await rounds.take_step()
        except BaseException as error:
            for event in await rounds.stop(error):
                progress.assign_seq(event)
            if rounds.has_failed:
                raise
    final: Msg | None = None
    for part in rounds.closing():
        for item in await part():
            if isinstance(item, Msg):
                final = item
            else:
                progress.assign_seq(item)
    assert final is not None  # each way to end gives one, or raises
    return final
