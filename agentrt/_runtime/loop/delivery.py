"""Delivers a reply to its listener, and puts its record in order when the reply is left.

A layer of on_reply may leave out, add, change and hold back any item, and end early or fail. The listener still sees a
start and at most one end, and the saved reply agrees with what the listener saw.
"""

import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import AsyncExitStack, suppress
from copy import deepcopy
from itertools import chain

from agentrt._runtime.chain.owned_stream import OwnedStream, own_stream
from agentrt._runtime.concurrency.event_loop import run_shielded
from agentrt._runtime.concurrency.lifespan import open_for_reply
from agentrt._runtime.conversation.conversation import ReplyingAgent
from agentrt._runtime.conversation.inputs import incoming_content
from agentrt._runtime.conversation.open_calls import close_open_calls, drain_and_close
from agentrt._runtime.conversation.progress import FLOWING, PLAIN_OUTSIDE, Origin
from agentrt._runtime.conversation.reply_run import ReplyRun
from agentrt._runtime.decoding.recorder import Recorder
from agentrt._runtime.loop.answer import (
    announce_answer,
    announce_notice,
    keep_as_told,
    mend_answer,
    message_to_return,
    touch_history,
    withdraw_unkept,
)
from agentrt._runtime.loop.opening import receive_input
from agentrt._runtime.loop.outcome import (
    UNSAVED,
    end_event,
    end_partial_message,
    end_reply,
    forget_unfinished_round,
    record_end,
    start_event,
)
from agentrt._runtime.loop.outlet import ClosableStream, Outlet
from agentrt._runtime.model_interface.block_comparison import SPOKEN
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
from agentrt.message import Msg
from agentrt.state.state import drop_unsavable

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
    """The listener's side of one reply; `failure` is the error to raise after the listener has seen the end.

    Events are returned without numbers: each gets its number when it leaves, so an event that never leaves uses none.
    """

    # Defaults of the class, since most of these are never set in a short reply.
    must_reserve = False
    failure: Exception | None = None
    _final: Msg | None = None
    _chain: OwnedStream | None = None
    _lifespans: AsyncExitStack | None = None
    _held_end: ReplyEndEvent | None = None  # until on_reply has ended, since its last message may say more

    def __init__(
        self, agent: ReplyingAgent, run: ReplyRun, inputs: ReplyInput, outlet: Outlet, *, has_layers: bool
    ) -> None:
        self._agent = agent
        self._run = run
        self._inputs = inputs
        self._outlet = outlet
        self._progress = run.progress
        if has_layers:
            run.progress.recorder = Recorder(run.id, agent.name)

    async def open_layers(self) -> None:
        """Open the lifespans of the layers until the reply is left."""
        self._lifespans = AsyncExitStack()
        await open_for_reply(self._lifespans, self._agent.chains)

    def pass_on(self, stream: ClosableStream) -> Awaitable[None]:
        """Read the layers of on_reply to their end, and send on their items; `keep_rest` is due after that."""
        self._chain = chain_of_layers = own_stream(stream)
        return self._outlet.hand_on(chain_of_layers, FLOWING, self._pass, self._take_and_send)

    def keep_rest(self) -> None:
        """Keep what was told last: a layer may have held back the end of a block, or sent it before the core did."""
        recorder = self._progress.recorder
        if recorder is not None:
            blocks = [block for block in recorder.blocks if block.__class__ in SPOKEN]
            keep_as_told(self._agent.state, self._progress, blocks)

    async def _take_and_send(self, item: AgentEvent | Msg) -> None:
        events = self.take_item(item)
        if self.must_reserve:
            await self.reserve_numbers()
        await self.send(events)

    async def send(self, events: Iterable[AgentEvent]) -> None:
        """Send on events that close the reply."""
        for event in events:
            await self._outlet.send_numbered((self._pass(event),))

    def _pass(self, event: AgentEvent) -> AgentEvent:
        """Number an event as it leaves, and record it if layers may have changed it."""
        progress = self._progress
        recorder = progress.recorder
        if recorder is not None:
            ended = recorder.record(event)
            if ended:
                keep_as_told(self._agent.state, progress, ended)
        if event.__class__ in PLAIN_OUTSIDE and progress.is_flowing and not event.seq:
            event.seq = progress.sequence = progress.sequence + 1  # `assign_seq`, inlined
            return event
        return progress.assign_seq(event)

    def take_item(self, item: AgentEvent | Msg) -> Iterable[AgentEvent]:
        """Process an item from on_reply; returns the events to send for it.

        Sets `must_reserve` if numbers must be reserved before these are sent.
        """
        progress = self._progress
        if not progress.has_begun:
            return self._begin(item)
        if isinstance(item, Msg):
            self._final = item
            return ()
        if isinstance(item, ReplyEndEvent) and item.reply_id == progress.reply_id:
            self._held_end = self._held_end or item
            return () if self._run.ended else self._close_for_layer()
        # A layer adds the event to what was saved.
        self.must_reserve = progress.is_saved and progress.sequence >= self._agent.state.sequence
        return (item,)

    def _begin(self, item: AgentEvent | Msg) -> Iterable[AgentEvent]:
        """Process the first item, and add the start if it is missing."""
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
            # Both may need numbers beyond the saved ones; usually the numbers of events that layers held back are free.
            is_beyond = progress.sequence + 1 >= self._agent.state.sequence
            must_reserve = must_reserve or (progress.is_saved and is_beyond)
        self.must_reserve = self.must_reserve or must_reserve
        return events

    def _close_for_layer(self) -> Iterator[AgentEvent]:
        """Close open blocks and calls before an end that a layer made up."""
        yield from self._progress.fill_missing_starts(drain_and_close(self._agent, self._run))
        self._run.ended = True

    def closing(self) -> Sequence[_DeliveryPart]:
        """Return the parts of the end; call each one, and send its events, before the next.

        Empty if the core has ended the reply and no layer surrounds it. A reply that waits gets no end; nor does one
        whose answer was refused, or never reached the core: nothing has changed in it.
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
            # The core usually ended the reply, and left nothing open.
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
        """Return the final message; raises `ChainContractError` if the layers did not pass it on."""
        if self._final is None:
            raise ChainContractError("on_reply ended without the final Msg: pass on what next_handler() gives")
        return self._final if self._progress.recorder is None else message_to_return(self._progress, self._final)

    def _is_still_waiting(self) -> bool:
        """Say whether the reply waits for an answer: it is parked, now or since earlier."""
        context = self._agent.state.reply_context
        return context is not None and context.parked and context.reply_id == self._run.id

    async def _close_open_parts(self) -> Iterator[AgentEvent]:
        """Add the start if nothing was sent yet, send events that were emitted, and give open calls a result."""
        events: list[AgentEvent] = []
        if not self._progress.has_begun and self._progress.origin is not Origin.PARKED:
            with suppress(Exception):  # the caller gets the earlier failure
                await self.reserve_numbers()
            events.append(start_event(self._agent, self._run))
        return chain(events, self._progress.fill_missing_starts(drain_and_close(self._agent, self._run)))

    async def _announce_changes(self) -> list[AgentEvent]:
        """Make the sent and the saved reply agree; returns the events that tell the listener."""
        agent, run, progress = self._agent, self._run, self._progress
        events: list[AgentEvent] = []
        if progress.recorder is not None:
            if self.failure is not None or self._final is None:
                events = withdraw_unkept(run)
            else:
                try:
                    await self._receive_unread_input()
                except Exception as error:  # noqa: BLE001  # raised once the listener has seen the end
                    self.failure = error
                    return []
                events = announce_answer(agent, run, self._inputs, self._final)
        if self.failure is None and progress.end_event is not None and not progress.is_saved:
            # Before the listener sees the new answer: if the process dies here, the answer is saved.
            try:
                await agent.save()
            except Exception as error:  # noqa: BLE001  # raised once the listener has seen the end
                self.failure = error
            else:
                progress.mark_saved()
        elif progress.end_event is not None and progress.highest_seq != agent.state.sequence:
            # Saved, but with fewer numbers than are used now, or before layers changed its text.
            await self.reserve_numbers()
        return events

    async def _receive_unread_input(self) -> None:
        """Pass on_content an input that layers kept from the core: it joins the conversation with their answer."""
        agent = self._agent
        is_unread = agent.state.reply_context is None and self._progress.end_event is None
        if is_unread and agent.chains.on_content is not incoming_content:
            self._inputs = await receive_input(agent, self._inputs)

    async def _supply_end(self) -> Sequence[AgentEvent]:
        """Return the end that is still to be sent: the recorded one, a layer's own, or a new one."""
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
            # Only the name: the earlier failure may quote a provider.
            _logger.error("the state of a failed reply could not be saved: %s", type(error).__name__)
        return (event,)

    def _end_on_record(self, recorded: ReplyEndEvent) -> ReplyEndEvent:
        outcome = self._agent.state.last_reply
        if self.failure is not None and not self._progress.is_saved and outcome is not None:
            # It could not be saved, and no listener has seen it.
            outcome.finished_reason, outcome.error = "error", _error_text(self.failure)
            event = end_event(self._agent, self._run, "error", outcome.error)
            if self._progress.message is not None:
                self._progress.message.append_event(event)
                touch_history(self._agent.state, self._progress.message)
            return event
        event = self._held_end or recorded
        message = self._progress.message  # a layer's change to this event affects the event only
        event.structured_output = None if message is None else deepcopy(message.structured_output)
        return event

    async def _announce_notice(self) -> list[AgentEvent]:
        assert self._final is not None
        return await announce_notice(self._agent, self._run, self._inputs, self._final)

    async def _withdraw(self) -> list[AgentEvent]:
        events = withdraw_unkept(self._run)
        if events:
            await self.reserve_numbers()
        return events

    async def reserve_numbers(self) -> None:
        """Reserve numbers with a save, for a layer's events before the first save or after the last one."""
        self.must_reserve = False
        if self._agent.state_store is not None:
            self._progress.sequence += UNSAVED
            try:
                await self._agent.save()
            finally:
                self._progress.sequence -= UNSAVED

    def let_go(self) -> None:
        """Release the conversation, and do nothing else."""
        self._agent.live_conversation.end()
        self._run.claim.give_back()

    async def leave(self) -> None:
        """Close everything, put the state in order and release the conversation, whatever ended it."""
        agent, run, progress = self._agent, self._run, self._progress
        if run.claim.is_over:
            return
        try:
            if self._chain is not None:
                await self._chain.aclose()
        finally:
            try:
                run.interruption.end()
                if not progress.has_saved_end or progress.highest_seq != agent.state.sequence:
                    await self._put_on_record()
            finally:  # in this order, so that the next reply finds no reply in progress
                agent.live_conversation.end()
                run.claim.give_back()
                if self._lifespans is not None:
                    await self._lifespans.aclose()

    async def _put_on_record(self) -> None:
        """Record that the reply was cancelled or left, if it did not end, and save unsaved changes."""
        agent, run, progress = self._agent, self._run, self._progress
        context = agent.state.reply_context
        is_stopped = run.interruption.reason is not None and not run.claim.is_handed_over
        if context is not None and progress.is_parked and is_stopped:
            progress.reopen(context)  # it was asked to stop while it was being parked
        is_untouched = self._is_still_waiting() and not progress.is_parked
        if progress.highest_seq == agent.state.sequence and (progress.is_saved or is_untouched):
            return
        if progress.end_event is None and run.claim.is_handed_over:
            forget_unfinished_round(progress, context)
        elif progress.end_event is None and not self._is_still_waiting():
            closing = list(self._closing_events())
            record_end(agent, run, end := end_event(agent, run, "interrupted"))
            # Nobody listens to this reply any more, but a supervisor may have a listener.
            run.claim.closing_events = [self._pass(event) for event in (*closing, end)]
        agent.state.sequence = progress.highest_seq
        # Under a shield: the caller may be cancelling us, and unsaved changes would be lost. Bounded, so that a hanging
        # store does not delay the cancellation for ever.
        if not await run_shielded(_LAST_SAVE_SECONDS, self._save_or_log):
            _logger.error(
                "the state of a reply that did not end could not be saved within %s seconds", _LAST_SAVE_SECONDS
            )

    def _closing_events(self) -> Iterator[AgentEvent]:
        """Yield the events that close an abandoned reply, and the replies of its sub-agents."""
        agent, run, progress = self._agent, self._run, self._progress
        context, recorder = agent.state.reply_context, progress.recorder
        if context is not None and progress.attempt is not None:
            blocks = context.blocks if recorder is None else recorder.blocks
            sent = {block.id for block in blocks}
            for event in end_partial_message(context, progress.last_event, "interrupted"):
                if getattr(event, "block_id", None) in (None, *sent):
                    yield progress.record_event(event)
        # Only the end events of sub-agents, without text: layers of this reply have not seen the others.
        for event in run.mailbox.take():
            if isinstance(event, SubagentEndEvent):
                # Recorded, since it has the sub-agent's usage.
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
                # The unsavable value may come from a layer's events; the conversation continues without it.
                left_out = drop_unsavable(run.progress.message) if run.progress.message is not None else []
                if not left_out:
                    raise
                touch_history(agent.state, run.progress.message)
                _logger.error("values that cannot be saved are left out of reply %s: %s", run.id, ", ".join(left_out))
                await agent.save()
        except Exception as error:  # noqa: BLE001  # the error that made us leave matters more, and is being raised
            _logger.error("the state of a reply that did not end could not be saved: %s", type(error).__name__)


def _error_text(failure: Exception) -> str:
    # This text is saved and shown, and an error of a provider, a tool or a layer may contain a secret: only the name of
    # its type is kept, except for our own errors about wrong use.
    name = type(failure).__name__
    return f"{name}: {failure}" if isinstance(failure, (UsageError, ChainError)) else name
