"""What the listener of a reply sees, and what is on record when the reply is left.

A layer of on_reply may leave out, add, change and hold back whatever it likes, and end early or fail. What the listener
sees has a start and at most one end all the same, and what is saved says the same as what was seen.
"""

import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from copy import deepcopy
from itertools import chain

from agentrt.concurrency.event_loop import run_shielded
from agentrt.conversation.conversation import ReplyingAgent
from agentrt.conversation.open_calls import close_open_calls, drain_and_close
from agentrt.conversation.progress import Origin
from agentrt.conversation.reply_run import ReplyRun
from agentrt.decoding.recorder import Recorder
from agentrt.errors import ChainContractError, ChainError, SessionUnserializable, UsageError
from agentrt.event import (
    AgentEvent,
    ModelCallEndEvent,
    ReplyEndEvent,
    ReplyResumedEvent,
    ReplyStartEvent,
    SubagentEndEvent,
    TextBlockEndEvent,
    ThinkingBlockEndEvent,
    ToolCallEndEvent,
    ToolResultEndEvent,
    ToolResultStartEvent,
)
from agentrt.hooks import ReplyInput
from agentrt.loop.answer import (
    announce_answer,
    announce_notice,
    keep_as_sent,
    mend_answer,
    message_to_return,
    touch_history,
    withdraw_unkept,
)
from agentrt.loop.outcome import (
    UNSAVED,
    end_event,
    end_partial_message,
    end_reply,
    forget_unfinished_round,
    record_end,
    start_event,
)
from agentrt.message import Msg
from agentrt.state.state import drop_unsavable

__all__ = ["Delivery"]

_logger = logging.getLogger("agentrt")
_OPENINGS = {ReplyStartEvent, ReplyResumedEvent}
_CLOSING_EVENTS = (
    TextBlockEndEvent,
    ThinkingBlockEndEvent,
    ToolCallEndEvent,
    ModelCallEndEvent,
    ToolResultStartEvent,
    ToolResultEndEvent,
    ReplyEndEvent,
)
_LAST_SAVE_SECONDS = 15.0
_DeliveryPart = Callable[[], Awaitable[Iterable[AgentEvent]]]


class Delivery:
    """The listener's side of one reply; `failure` is what is to be raised once the listener has seen the end.

    Events are returned without numbers: each gets its own as it leaves, so that one which never leaves takes none.
    """

    # Defaults of the class, since most of these are never set in a short reply.
    must_reserve = False
    failure: Exception | None = None
    _final: Msg | None = None
    _held_end: ReplyEndEvent | None = None  # until on_reply has ended, since its last message may say more

    def __init__(self, agent: ReplyingAgent, run: ReplyRun, inputs: ReplyInput, has_layers: bool) -> None:
        self._agent = agent
        self._run = run
        self._inputs = inputs
        self._progress = run.progress
        if has_layers:
            run.progress.recorder = Recorder(run.id, agent.name)

    def take_item(self, item: AgentEvent | Msg) -> Iterable[AgentEvent]:
        """Note an item that on_reply yields; returns the events that leave in its place.

        Sets `must_reserve` where numbers are to be reserved before these leave.
        """
        progress = self._progress
        if not progress.has_begun:
            return self._begin(item)
        if isinstance(item, Msg):
            self._final = item
            return ()
        if isinstance(item, ReplyEndEvent) and item.reply_id == progress.reply_id:
            self._held_end = self._held_end or item
            if progress.recorder is not None:
                return () if self._run.ended else self._close_for_layer()
            return (item,)
        # A layer adds the event to what was saved.
        self.must_reserve = progress.is_saved and progress.sequence >= self._agent.state.sequence
        return (item,)

    def _begin(self, item: AgentEvent | Msg) -> Iterable[AgentEvent]:
        """Note the first item, and supply the start if it is something else."""
        progress = self._progress
        must_reserve = progress.is_new  # a layer speaks before the core
        progress.begin()
        if isinstance(item, ReplyStartEvent) and item.reply_id == progress.reply_id:
            progress.start_event = item  # a layer may have made it up
            events: Iterable[AgentEvent] = (item,)
        elif item.__class__ in _OPENINGS or progress.origin is Origin.PARKED:
            events = self.take_item(item)
        else:
            events = chain((start_event(self._agent, self._run),), self.take_item(item))
            # Both may come on top of what was saved; most often the numbers of what layers held back are free.
            is_beyond = progress.sequence + 1 >= self._agent.state.sequence
            must_reserve = must_reserve or (progress.is_saved and is_beyond)
        self.must_reserve = self.must_reserve or must_reserve
        return events

    def _close_for_layer(self) -> Iterator[AgentEvent]:
        """Close what is open before the end that a layer made up."""
        yield from self._progress.fill_missing_starts(drain_and_close(self._agent, self._run))
        self._run.ended = True

    def closing(self) -> Sequence[_DeliveryPart]:
        """Return the parts of the end; each is to be called, and its events sent, before the next one is.

        Nothing is to be sent where the core has ended the reply with no layer around it. A reply that waits gets no
        end; nor does one whose answer was refused, or never reached the core: there, nothing has changed.
        """
        progress = self._progress
        has_ended = progress.recorder is None and progress.has_saved_end
        if has_ended and self.failure is None:
            return ()
        if self.failure is None and self._final is not None and progress.recorder is not None:
            try:
                self._final = mend_answer(self._final, progress.form)
            except Exception as error:  # noqa: BLE001  # raised once the listener has seen the end
                self.failure = error
        if not self._is_still_waiting():
            if has_ended:
                return ()
            # A reply that the core has ended left nothing open: most of those that have layers.
            is_closed = progress.has_begun and progress.end_event is not None and not self._run.mailbox.items
            closing = (self._announce_changes, self._supply_end)
            return closing if is_closed else (self._close_open_parts, *closing)
        if self.failure is None and progress.recorder is not None:
            if progress.is_new and self._final is not None:
                return (self._announce_notice,)
            if progress.is_parked:
                return (self._withdraw,)
        return ()

    def message(self) -> Msg:
        """Return the final message; raises `ChainContractError` where the layers let none through."""
        if self._final is None:
            raise ChainContractError("on_reply ended without the final Msg: pass on what next_handler() gives")
        return self._final if self._progress.recorder is None else message_to_return(self._progress, self._final)

    def _is_still_waiting(self) -> bool:
        """Say whether the reply waits for an answer: it was parked just now, or before, and is still."""
        context = self._agent.state.reply_context
        return context is not None and context.parked and context.reply_id == self._run.id

    async def _close_open_parts(self) -> Iterator[AgentEvent]:
        """Supply the start, if nothing was sent yet, and what was emitted and not sent; give open calls a result."""
        events: list[AgentEvent] = []
        if not self._progress.has_begun and self._progress.origin is not Origin.PARKED:
            with suppress(Exception):  # the caller gets the earlier failure
                await self.reserve_numbers()
            events.append(start_event(self._agent, self._run))
        return chain(events, self._progress.fill_missing_starts(drain_and_close(self._agent, self._run)))

    async def _announce_changes(self) -> list[AgentEvent]:
        """Make what was sent and what is kept the same; returns the events that tell the listener."""
        agent, run, progress = self._agent, self._run, self._progress
        events: list[AgentEvent] = []
        if progress.recorder is not None:
            if self.failure is not None or self._final is None:
                events = withdraw_unkept(agent.state, run)
            else:
                events = announce_answer(agent, run, self._inputs, self._final)
        if self.failure is None and progress.end_event is not None and not progress.is_saved:
            # Before the listener sees what takes the place of the old answer: a process that dies here has saved it.
            try:
                await agent.save()
            except Exception as error:  # noqa: BLE001  # raised once the listener has seen the end
                self.failure = error
            else:
                progress.mark_saved()
        elif events and progress.end_event is not None:  # on record, with fewer numbers than are sent now
            await self.reserve_numbers()
        return events

    async def _supply_end(self) -> Sequence[AgentEvent]:
        """Return the end that has not left yet: the one on record, the one that a layer made, or a new one."""
        agent, run, progress = self._agent, self._run, self._progress
        if progress.end_event is not None:
            return (self._end_on_record(progress.end_event),)
        if self.failure is None:
            event = self._held_end or end_event(agent, run, "completed")
            if self._final is not None and self._final.structured_output is not None:
                event.structured_output = deepcopy(self._final.structured_output)
            return (await end_reply(agent, run, event),)
        event = end_event(agent, run, "error", _error_text(self.failure))
        try:
            await end_reply(agent, run, event)
        except Exception as error:  # noqa: BLE001  # the caller gets the failure itself
            # The name alone: the failure that came before this one may quote a provider.
            _logger.error("the state of a failed reply could not be saved: %s", type(error).__name__)
        return (event,)

    def _end_on_record(self, recorded: ReplyEndEvent) -> ReplyEndEvent:
        outcome = self._agent.state.last_reply
        if self.failure is not None and not self._progress.is_saved and outcome is not None:
            # It could not be saved, and no listener knows of it.
            outcome.finished_reason, outcome.error = "error", _error_text(self.failure)
            event = end_event(self._agent, self._run, "error", outcome.error)
            if self._progress.message is not None:
                self._progress.message.append_event(event)
                touch_history(self._agent.state, self._progress.message)
            return event
        event = self._held_end or recorded
        message = self._progress.message  # what a layer changes in an event is changed in the event alone
        event.structured_output = None if message is None else deepcopy(message.structured_output)
        return event

    async def _announce_notice(self) -> list[AgentEvent]:
        assert self._final is not None
        return await announce_notice(self._agent, self._run, self._inputs, self._final)

    async def _withdraw(self) -> list[AgentEvent]:
        events = withdraw_unkept(self._agent.state, self._run)
        if events:
            await self.reserve_numbers()
        return events

    async def reserve_numbers(self) -> None:
        """Save that numbers are in use, for events of a layer that come before the first save or after the last one."""
        self.must_reserve = False
        if self._agent.state_store is not None:
            self._progress.sequence += UNSAVED
            try:
                await self._agent.save()
            finally:
                self._progress.sequence -= UNSAVED

    async def leave(self, stream: AsyncGenerator[AgentEvent | Msg, None] | None = None) -> None:
        """Close everything, put the state in order and give the conversation back, whatever the reason for leaving."""
        agent, run, progress = self._agent, self._run, self._progress
        try:
            if stream is not None:
                await stream.aclose()
        finally:
            try:
                run.interruption.end()
                is_cut = progress.end_event is None and not run.claim.is_handed_over
                if progress.recorder is not None and is_cut and keep_as_sent(progress):
                    progress.mark_changed()  # it waits, or was left
                if not progress.has_saved_end or progress.highest_seq != agent.state.sequence:
                    await self._put_on_record()
            finally:  # in this order, so that the next reply finds none in progress
                agent.live_conversation.end()
                run.claim.give_back()

    async def _put_on_record(self) -> None:
        """Record that the reply was cancelled or left, if it did not end, and save what is not saved yet."""
        agent, run, progress = self._agent, self._run, self._progress
        context = agent.state.reply_context
        is_stopped = run.interruption.reason is not None and not run.claim.is_handed_over
        if context is not None and progress.is_parked and is_stopped:
            progress.reopen(context)  # asked to stop while it was being parked
        is_untouched = self._is_still_waiting() and not progress.is_parked
        if progress.highest_seq == agent.state.sequence and (progress.is_saved or is_untouched):
            return
        if progress.end_event is None and run.claim.is_handed_over:
            forget_unfinished_round(progress, context)
        elif progress.end_event is None and not self._is_still_waiting():
            closing = list(self._closing_events())
            record_end(agent, run, end := end_event(agent, run, "interrupted"))
            if not run.is_unseen:
                # Nobody is listening any more, but a supervisor may have a listener of its own.
                run.claim.closing_events = [progress.assign_seq(event) for event in (*closing, end)]
        agent.state.sequence = progress.highest_seq
        # Under a shield: the caller may be cancelling us, and what is not saved now is lost. Bounded, so that a store
        # that hangs does not keep the cancellation for ever.
        if not await run_shielded(_LAST_SAVE_SECONDS, self._save_or_log):
            _logger.error(
                "the state of a reply that did not end could not be saved within %s seconds", _LAST_SAVE_SECONDS
            )

    def _closing_events(self) -> Iterator[AgentEvent]:
        """Yield the events that close what is open in an abandoned reply, and in the replies of its sub-agents."""
        agent, run, progress = self._agent, self._run, self._progress
        context, recorder = agent.state.reply_context, progress.recorder
        if context is not None and progress.attempt is not None:
            blocks = context.blocks if recorder is None else recorder.blocks
            sent = {block.id for block in blocks}
            for event in end_partial_message(context, progress.last_event, "interrupted"):
                if getattr(event, "block_id", None) in (None, *sent):
                    yield progress.record_event(event)
        # Of the sub-agents' events only the ends, without text: layers of this reply have not seen the others.
        for event in run.mailbox.take():
            if isinstance(event, SubagentEndEvent):
                # Recorded, since it has the usage of the sub-agent.
                yield progress.record_event(event)
            elif isinstance(event, _CLOSING_EVENTS) and event.reply_id != run.id and not getattr(event, "text", None):
                yield event
        yield from progress.fill_missing_starts(close_open_calls(agent, run))

    async def _save_or_log(self) -> None:
        agent, run = self._agent, self._run
        try:
            try:
                await agent.save()
            except SessionUnserializable:
                # A layer's events may have put it there; the conversation continues without it.
                left_out = drop_unsavable(run.progress.message) if run.progress.message is not None else []
                if not left_out:
                    raise
                touch_history(agent.state, run.progress.message)
                _logger.error("what cannot be saved is left out of reply %s: %s", run.id, ", ".join(left_out))
                await agent.save()
        except Exception as error:  # noqa: BLE001  # what made us leave matters more, and is on its way
            _logger.error("the state of a reply that did not end could not be saved: %s", type(error).__name__)


def _error_text(failure: Exception) -> str:
    # This text is saved and shown, and what a provider, a tool or a layer put into an error may hold a secret: only the
    # name of its type is kept, except of errors that are our own words about a wrong use.
    name = type(failure).__name__
    return f"{name}: {failure}" if isinstance(failure, (UsageError, ChainError)) else name
