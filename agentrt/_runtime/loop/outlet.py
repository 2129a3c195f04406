"""Outlets: the core of a reply tells its events here; they are recorded, and handed to those who want them.

Telling is an await. Without a reader it does not wait; with one it continues when the reader wants the next event, and
until then nothing in the reply can be interrupted. Events go to the nearest reader: that of the reply's stream, or a
layer in between.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterable, Sequence, Set
from dataclasses import replace
from inspect import iscoroutinefunction
from itertools import count
from types import AsyncGeneratorType, coroutine
from typing import Any, NoReturn, Protocol

from agentrt._runtime.chain.owned_stream import OwnedStream, own_stream
from agentrt._runtime.chain.spec import Notify
from agentrt._runtime.concurrency.event_loop import RESPONSES_PER_CHECKPOINT, checkpoint
from agentrt._runtime.concurrency.interrupt import Interrupted
from agentrt._runtime.concurrency.mailbox import Mailbox
from agentrt._runtime.conversation.conversation import ReplyingAgent
from agentrt._runtime.conversation.inputs import incoming_content, receive_emitted, receive_hint
from agentrt._runtime.conversation.open_calls import forget_inner_calls
from agentrt._runtime.conversation.progress import FLOWING, PLAIN_INSIDE, PLAIN_OUTSIDE
from agentrt._runtime.conversation.reply_run import ReplyRun
from agentrt._runtime.decoding.block_events import NO_NUMBERS, events_of, events_of_output
from agentrt._runtime.decoding.decoder import Decoder
from agentrt._runtime.decoding.recorder import Recorder
from agentrt._runtime.loop.answer import announce_round
from agentrt._runtime.loop.tool_calls.tool_results import TakenResult, events_of_result, only_text
from agentrt.errors import ChainContractError
from agentrt.event import (
    AgentEvent,
    HintBlockEvent,
    ModelCallEndEvent,
    ReplyEndEvent,
    TextBlockDeltaEvent,
    ToolCallStartEvent,
    ToolResultEndEvent,
)
from agentrt.message import (
    APPLY,
    CALL_EVENTS,
    ContentBlock,
    Msg,
    TextBlock,
    ToolCallBlock,
    ToolCallState,
    ToolResultBlock,
)
from agentrt.state import ReplyContext
from agentrt.types import ChatResponse, ToolOutput

_PLAIN_WITHOUT_HINTS = PLAIN_INSIDE - {HintBlockEvent}
# How an event changes the message, whether it is of a call, and whether its number is all that it needs when it leaves.
_RECORDING: dict[type, tuple[Callable[[Any, Any], None] | None, bool, bool]]
_RECORDING = {cls: (APPLY.get(cls), cls in CALL_EVENTS, cls in PLAIN_OUTSIDE) for cls in FLOWING}
_apply_of: Callable[[type], Callable[[Any, Any], None] | None] = APPLY.get  # a name costs less than an attribute


class ClosableStream(Protocol):
    """The output of the chain of a stream hook."""

    def __aiter__(self) -> AsyncIterator[Any]: ...
    async def aclose(self) -> None: ...


class Outlet:
    """The outermost outlet of a reply: it records and numbers events, and sends them on.

    `is_read` says that a task reads the reply's stream; `notify` calls its observers. `wants_events` says that either
    is true; otherwise no event is made. All events of a step are recorded and numbered before the reader gets any.
    """

    __slots__ = (
        "_agent",
        "_has_scopes",
        "_has_steps",
        "_interruption",
        "_mailbox",
        "_notify",
        "_numbers",
        "_plain",
        "_progress",
        "_run",
        "_yields",
        "is_read",
        "wants_events",
    )

    def __init__(
        self, agent: ReplyingAgent, run: ReplyRun, is_read: bool, notify: Notify | None = None, has_steps: bool = True
    ) -> None:
        self._agent = agent
        # If on_content has layers, a hint has to pass them, so it is not plain.
        self._plain = PLAIN_INSIDE if agent.chains.on_content is incoming_content else _PLAIN_WITHOUT_HINTS
        self._run = run
        self._interruption = run.interruption
        self._has_steps = has_steps
        self._has_scopes = has_steps and run.interruption.has_scopes
        self._mailbox = run.mailbox
        self._progress = run.progress
        self._notify = notify
        self.is_read = is_read
        self.wants_events = is_read or notify is not None
        self._numbers = True
        # Whether handing to the reader is a mere `yield`, which is written where many events pass.
        self._yields = is_read and not self._has_scopes

    @coroutine
    def tell(self, events: Sequence[AgentEvent]) -> Generator[Any, Any, None]:
        """Record plain content, and send it on in one step; raises `Interrupted` if the reply was asked to stop."""
        mailbox = self._mailbox
        if mailbox.items and not mailbox.is_read:  # a mailbox that is read is where these events come from
            yield from self._tell_emitted().__await__()
        events = tuple([self._record(event) for event in events])
        if self._notify is not None:
            self._observe(events)
        if self._yields:
            yield events
        elif self.is_read:
            yield from self._suspend_for(events)
        if self._has_steps and self._interruption.reason is not None:
            self._stop()

    @coroutine
    def tell_streamed(
        self, answer: ClosableStream, decoder: Decoder, recorder: Recorder | None = None
    ) -> Generator[Any, Any, None]:
        """Tell the answer that a model streams; ends the reply where that is longer than `max_output` allows."""
        # In locals, and in the frame that hands out, since each delta passes here.
        record = self._record_answer if recorder is None else recorder.record_answer
        mailbox, feed, yields, limit = self._mailbox, decoder.feed, self._yields, decoder.limit
        agent, notify = self._agent, self._notify
        interruption = self._interruption if self._has_steps else None
        read, left = _step_function(answer), RESPONSES_PER_CHECKPOINT
        has_ended = False
        while not has_ended:
            try:
                response = yield from read()
            except StopAsyncIteration:
                has_ended, events = True, decoder.end()
            else:
                events = feed(response)
            if events:
                if mailbox.items and not mailbox.is_read:
                    yield from self._tell_emitted().__await__()
                # A recorder leaves the texts to the decoder, which keeps them anyway.
                if recorder is None or len(events) > 1 or events[0].__class__ is not TextBlockDeltaEvent:
                    record(events)
                if notify is not None:
                    for event in events:  # no ends of replies
                        notify(agent, event)
                if yields:
                    yield tuple(events)
                elif self.is_read:
                    yield from self._suspend_for(events)
                if interruption is not None and interruption.reason is not None:
                    self._stop()
            # After the events, so that what was written up to the limit is seen.
            if decoder.written > limit:
                self._run.stop("exceed_max_output")
            left -= 1
            if not left:
                left = RESPONSES_PER_CHECKPOINT
                yield from checkpoint()

    def _stop(self) -> NoReturn:
        """Leave the core of a reply that was asked to stop."""
        self._interruption.suspend()  # closing the step must not be interrupted
        raise Interrupted

    async def tell_item(self, item: AgentEvent | Msg) -> None:
        """Tell an item that may be more than plain content."""
        if item.__class__ in self._plain:
            await self.tell((item,))
        else:
            await self._tell_special(item)

    async def tell_from(self, stream: ClosableStream) -> None:
        """Tell all items of a chain, and close it."""
        chain = own_stream(stream)
        try:
            await self.hand_on(chain, self._plain, self._record, self._tell_special)
        finally:
            await chain.aclose()

    @coroutine
    def hand_on(
        self,
        chain: OwnedStream,
        plain: Set[type],
        record: Callable[[Any], AgentEvent],
        tell: Callable[[Any], Awaitable[None]],
    ) -> Generator[Any, Any, None]:
        """Read a chain to its end; `plain` items are sent on as `record` returns them, others are passed to `tell`."""
        # In locals, and in the frame that hands out, since each event passes here.
        progress, mailbox, yields, abandoned = self._progress, self._mailbox, self._yields, chain.abandoned
        agent, notify = self._agent, self._notify
        read = chain.open(Outlet.hand_on.__code__).__anext__
        interruption = self._interruption if self._has_steps else None
        item: Any = None
        while True:
            try:
                item = yield from read()  # type: ignore[misc]  # a step of a generator is an iterator
            except StopAsyncIteration:
                break
            except GeneratorExit:  # nothing can be awaited any more
                raise
            except BaseException as error:
                yield from chain.fail(error).__await__()
                raise
            if (
                item.__class__ not in plain
                or not progress.is_flowing
                or abandoned
                or (mailbox.items and not mailbox.is_read)
            ):
                yield from chain.check(item).__await__()
                yield from tell(item).__await__()
                continue
            event = record(item)
            if notify is not None:
                notify(agent, event)
            if yields:
                yield (event,)
            elif self.is_read:
                yield from self._suspend_for((event,))
            if interruption is not None and interruption.reason is not None:
                self._stop()
        yield from chain.end(item).__await__()

    def _record_answer(self, events: Sequence[AgentEvent]) -> None:
        """Record and number what a model says: new events, which are all of this reply."""
        progress = self._progress
        for event in events:
            progress.events_recorded += 1
            cls = event.__class__
            apply = _apply_of(cls)
            if apply is not None:
                apply(progress.message, event)
            if self._numbers:
                event.seq = progress.sequence = progress.sequence + 1
                if cls is ToolCallStartEvent:
                    progress.note_start(event)
        progress.last_event = events[-1]

    def _record(self, event: AgentEvent) -> AgentEvent:
        """Record and number an event with plain content; returns it, or a copy where it has a number already."""
        progress = self._progress
        apply, is_of_call, is_plain = _RECORDING[event.__class__]
        progress.events_recorded += 1
        if apply is not None and event.reply_id == progress.reply_id:
            is_inner = is_of_call and "/" in event.tool_call_id  # type: ignore[attr-defined]  # these have it
            if not is_inner:
                apply(progress.message, event)
        if self._numbers:
            if is_plain and progress.is_flowing and not event.seq:
                event.seq = progress.sequence = progress.sequence + 1  # `assign_seq`, inlined
            else:
                event = progress.assign_seq(event)
        progress.last_event = event
        return event

    @coroutine
    def tell_block(self, block: ContentBlock, end: ModelCallEndEvent | None = None) -> Generator[Any, Any, None]:
        """Record a whole block, and tell the events that build it, with the event that ends the answer."""
        if self._mailbox.items and not self._mailbox.is_read:
            yield from self._tell_emitted().__await__()
        progress = self._progress
        assert progress.message is not None
        blocks = progress.message.content
        assert isinstance(blocks, list)  # the reply's own message is never a str
        blocks.append(block)
        progress.last_event = end
        if end is not None:
            progress.record_event(end)
        if self.wants_events:
            events = self._make(events_of, block)
            progress.events_recorded += len(events)
            if end is not None:
                events.append(end)
            if self._numbers:
                if block.__class__ is not TextBlock:
                    progress.note_start(events[0])
                if end is not None:
                    end.seq = progress.sequence = progress.sequence + 1
            if self._notify is not None:
                self._observe(events)
            if self._yields:
                yield tuple(events)
            elif self.is_read:
                yield from self._suspend_for(events)
        elif end is None:
            progress.events_recorded += 1
            progress.sequence += 1
        else:  # which is recorded already
            progress.events_recorded += 3
            progress.sequence += 4
        if self._interruption.reason is not None:
            self._stop()

    def tell_answer(self, decoder: Decoder, answer: ChatResponse) -> Awaitable[None]:
        """Tell a whole answer of the model, usually a single block."""
        only = decoder.only_block(answer)
        return self.tell(decoder.decode_answer(answer)) if only is None else self.tell_block(*only)

    @coroutine
    def tell_new(self, event_type: Callable[..., AgentEvent], *values: object) -> Generator[Any, Any, None]:
        """Tell an event that does not change the reply's message; it is made only if events are wanted."""
        if self.wants_events:
            yield from self.tell((event_type(self._progress.reply_id, *values),))
        else:
            progress = self._progress
            progress.last_event = None
            progress.events_recorded += 1
            progress.sequence += 1

    async def tell_result(
        self, context: ReplyContext, call: ToolCallBlock, result: TakenResult, streamed: ToolOutput
    ) -> None:
        """Tell the result of a call, usually a single text; it is saved before its end leaves."""
        progress = self._progress
        blocks = progress.message.content  # type: ignore[union-attr]  # it is there while the reply is
        block: Any = blocks[-1]  # the call's block, unless other calls run concurrently
        if block.id != call.id or block.__class__ is not ToolResultBlock:
            block = next(block for block in reversed(context.blocks) if block.id == call.id)
        assert isinstance(block, ToolResultBlock)
        must_save = self._agent.state_store is not None or context.kept or context.inner
        text = None if streamed or block.output else only_text(result)
        if text is None or (must_save and self.wants_events):  # the output is sent before the save
            *more, end = events_of_result(context, self._run, call, result, streamed)
            if more:
                await self.tell(more)
            await self._tell_special(end)
            return
        if self._mailbox.items and not self._mailbox.is_read:
            await self._tell_emitted()
        block.output = [text]
        _, _, block.state, block.metadata = result
        call.state = ToolCallState.FINISHED
        progress.events_recorded += 2
        if must_save:
            await self._save_result(context, call.id)
        elif self._interruption.has_pending_cancellation():  # a tool or a layer swallowed it
            await self._interruption.raise_pending_cancellation()
        if self.wants_events:
            await self._hand_out(self._make(events_of_output, block))  # its start was told already
        else:
            progress.sequence += 2
        if self._interruption.reason is not None:
            self._stop()

    def send(self, events: Iterable[AgentEvent]) -> Awaitable[None]:
        """Number recorded events, and send them on in one step."""
        return self._hand_out(self._number(list(events)))

    def send_numbered(self, events: Sequence[AgentEvent]) -> Awaitable[None]:
        """Send on numbered events in one step."""
        return self._hand_out(events)

    def _make(self, make: Callable[..., list[AgentEvent]], block: ContentBlock) -> list[AgentEvent]:
        """Make the events of a block, with numbers if this outlet numbers."""
        progress = self._progress
        if not self._numbers:
            return make(progress.reply_id, block, NO_NUMBERS)
        events = make(progress.reply_id, block, count(progress.sequence + 1))
        progress.sequence += len(events)
        return events

    def _number(self, events: list[AgentEvent]) -> list[AgentEvent]:
        """Number recorded events, if this outlet numbers."""
        progress = self._progress
        if self._numbers:
            for index, event in enumerate(events):
                if event.__class__ in PLAIN_OUTSIDE and progress.is_flowing and not event.seq:
                    event.seq = progress.sequence = progress.sequence + 1  # `assign_seq`, inlined
                else:
                    events[index] = progress.assign_seq(event)
        return events

    @coroutine
    def _hand_out(self, events: Sequence[AgentEvent]) -> Generator[Any, Any, None]:
        """Notify the observers, hand the events to the reader, if any, and continue when it wants the next one."""
        if self._notify is not None:
            self._observe(events)
        if not events:
            return
        if self._yields:
            yield tuple(events)
        elif self.is_read:
            yield from self._suspend_for(events)

    def _observe(self, events: Sequence[AgentEvent]) -> None:
        assert self._notify is not None
        for event in events:
            self._notify(self._agent, event)
            if event.__class__ is ReplyEndEvent and event.reply_id == self._progress.reply_id:
                self._progress.sent_end = event

    @coroutine
    def _suspend_for(self, events: Sequence[AgentEvent]) -> Generator[Any, Any, None]:
        """Hand events to the reader, outside of the scopes in which the reply can be interrupted."""
        is_in_step = self._interruption.is_in_step
        self._interruption.suspend()
        yield tuple(events)
        if is_in_step:
            self._interruption.resume()

    async def _tell_emitted(self) -> None:
        for event in await receive_emitted(self._agent, self._run):
            await self.send((self._progress.record_event(event),))

    async def _tell_special(self, item: AgentEvent | Msg) -> None:
        """Tell an item that is more than plain content."""
        if self._mailbox.items and not self._mailbox.is_read:
            await self._tell_emitted()
        run, progress, context = self._run, self._progress, self._agent.state.reply_context
        assert context is not None
        if isinstance(item, Msg):
            await self.send(list(map(progress.record_event, announce_round(run, context, item))))
            if self._interruption.reason is not None:
                self._stop()
            return
        if isinstance(item, ReplyEndEvent) and item.reply_id == run.id:
            raise ChainContractError("REPLY_END came from inside the reply: only on_reply may end it")
        if isinstance(item, HintBlockEvent) and item.reply_id == run.id:
            hint, source = await receive_hint(self._agent, item.hint, item.source or "")
            item = replace(item, hint=hint, source=source or None)
        progress.last_event = progress.record_event(item)
        if isinstance(item, ToolResultEndEvent) and item.reply_id == run.id:
            await self._save_result(context, item.tool_call_id)
        await self.send((item,))
        if self._interruption.reason is not None:
            self._stop()

    async def _save_result(self, context: ReplyContext, call_id: str) -> None:
        """Save a result before its end is sent: a listener sees no result that a later process would not find."""
        agent, interruption = self._agent, self._run.interruption
        if context.kept or context.inner:
            # Only after the message has the result: a concurrent save must find one of the two.
            forget_inner_calls(context, call_id)
        if agent.state_store is not None:
            interruption.suspend()  # the save must not be interrupted
            await agent.save()
        if interruption.has_pending_cancellation():
            await interruption.raise_pending_cancellation()
        interruption.resume()


def _step_function(stream: ClosableStream) -> Callable[[], Any]:
    """Return the function that takes a step of the stream, which a generator can read by `yield from`."""
    steps = aiter(stream)

    async def step() -> Any:
        return await anext(steps)

    # A step of a generator is an iterator, as a coroutine is in here; of other awaitables nothing is known.
    if isinstance(steps, AsyncGeneratorType) or iscoroutinefunction(steps.__anext__):
        return steps.__anext__
    return step


class LayeredOutlet(Outlet):
    """The outlet of a reply inside layers of on_reply; events are numbered when they leave the layers."""

    __slots__ = ()

    def __init__(self, agent: ReplyingAgent, run: ReplyRun) -> None:
        super().__init__(agent, run, is_read=True)
        self._numbers = False


class RecordingOutlet(Outlet):
    """The outlet of a round inside layers of on_reasoning; events are applied when they leave the layers.

    They are recorded for the message at the end of the round. Emitted events, and requests to stop, are for the outlet
    outside of the layers.
    """

    __slots__ = ("_recorder",)

    def __init__(self, agent: ReplyingAgent, run: ReplyRun, recorder: Recorder) -> None:
        super().__init__(agent, run, is_read=True, has_steps=False)
        self._mailbox = Mailbox()
        self._recorder = recorder

    def _record(self, event: AgentEvent) -> AgentEvent:
        self._recorder.record(event)
        return event

    async def tell_item(self, item: AgentEvent | Msg) -> None:
        """Tell an event that a layer or a tool emits."""
        assert isinstance(item, AgentEvent)
        await self.tell((item,))

    def tell_answer(self, decoder: Decoder, answer: ChatResponse) -> Awaitable[None]:
        """Tell a whole answer of the model."""
        return self.tell(decoder.decode_answer(answer))
