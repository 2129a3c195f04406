"""The core of a reply, inside every layer: rounds of asking the model and running its tools, until it answers."""

from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, NoReturn

from anyio.lowlevel import checkpoint_if_cancelled

from agentrt._runtime.concurrency.coroutine_reader import ReaderLeft, own_reading
from agentrt._runtime.concurrency.interrupt import Interrupted
from agentrt._runtime.conversation.conversation import ReplyingAgent
from agentrt._runtime.conversation.final_message import final_message
from agentrt._runtime.conversation.inputs import incoming_content, receive_emitted, receive_hint
from agentrt._runtime.conversation.open_calls import calls_of_round, drain_and_close
from agentrt._runtime.conversation.question import park, question_message
from agentrt._runtime.conversation.reply_run import ReplyRun
from agentrt._runtime.conversation.step import (
    Act,
    Finish,
    Reason,
    Step,
    Wait,
    next_step,
    step_between_rounds,
    step_of_calls,
)
from agentrt._runtime.loop.answer import core_answer
from agentrt._runtime.loop.compression import compress_then_reason, near_context_limit, update_from_usage
from agentrt._runtime.loop.opening import open_reply
from agentrt._runtime.loop.outcome import end_event, end_partial_message, message_when_interrupted, record_end
from agentrt._runtime.loop.reasoning import ask_through_layers, forget_attempt, reason
from agentrt._runtime.loop.structured_output import count_answer_in_words
from agentrt._runtime.loop.tool_calls.batches import run_calls
from agentrt.errors import ChainContractError, ContextOverflow, Malformed
from agentrt.event import AgentEvent, ExceedMaxItersEvent, HintBlockEvent, ModelCallEndEvent
from agentrt.hooks import ReplyInput
from agentrt.message import ContentBlock, Msg, ThinkingBlock, ToolCallBlock, ToolResultBlock
from agentrt.state import ReplyContext
from agentrt.types import FinishedReason

_MAX_EMPTY_ROUNDS = 1
_THOUGHTS = {ThinkingBlock}
_ClosingPart = Callable[[], Awaitable[Iterable[AgentEvent | Msg]]]


async def reply(  # noqa: C901  # the loop of a reply reads as one piece
    agent: ReplyingAgent, inputs: ReplyInput, structured_schema: Any
) -> Msg:
    """The core of on_reply: rounds of asking the model and running its tools, until there is an answer.

    The message is built from what leaves on_reasoning, and each result is saved before the event that tells of it.
    """
    run = agent.live_conversation.run
    outlet, interruption = run.outlet, run.interruption
    events: Sequence[AgentEvent]
    context, events = await open_reply(agent, run, inputs, structured_schema)
    rounds = Rounds(agent, run, inputs, context)
    if outlet.is_read:
        interruption.follow(await own_reading())
    interruption.begin(agent.react_config.max_seconds - context.worked)
    while not rounds.is_over:
        try:
            if events:
                await outlet.send(events)
            if interruption.has_pending_cancellation():  # a layer or a tool has swallowed it
                await interruption.raise_pending_cancellation()
            events = await rounds.begin_step()
            if events:
                await outlet.send(events)
                events = ()
            if rounds.is_over:
                break
            if rounds.must_save:
                await agent.save()  # what the model wrote, before any of its calls may take effect
            await rounds.take_step()
        except GeneratorExit:  # its event loop is gone, and nothing can be awaited any more
            raise
        except BaseException as error:
            for event in await rounds.stop(error):
                await outlet.send((event,))
            if rounds.has_failed:
                raise
    final: Msg | None = None
    for part in rounds.closing():
        for item in await part():
            if isinstance(item, Msg):
                final = item
            else:
                await outlet.send((item,))
    assert final is not None  # each way to end gives one, or raises
    return final


def _only_asked(context: ReplyContext, blocks: list[ContentBlock]) -> bool:
    """Say whether all that happened in a round is that the user has answered the questions of layers.

    Of other rounds in which no model was asked there could be any number.
    """
    calls = [block for block in blocks if isinstance(block, (ToolCallBlock, ToolResultBlock))]
    return len(calls) == len(blocks) > 0 and all(
        call.is_hidden and (decision := context.decisions.get(call.id)) is not None and decision.by == "user"
        for call in calls
    )


class Rounds:
    """The steps of one reply, one after the other.

    `is_over` says that no further step comes, `has_failed` that an error is to leave.
    """

    # Defaults of the class, since most of these are never set in a short reply.
    is_over = has_failed = must_save = _has_begun = False
    _reason: FinishedReason = "completed"

    def __init__(self, agent: ReplyingAgent, run: ReplyRun, inputs: ReplyInput, context: ReplyContext) -> None:
        self._agent = agent
        self._run = run
        self._inputs = inputs
        self._context = context
        self._usage = agent.live_conversation.context_usage
        self._step: Step = next_step(context)
        if run.progress.recorder is None:
            run.progress.begin()  # no layer is in between that may keep the first event, or put another before it

    async def begin_step(self) -> Sequence[AgentEvent]:
        """Begin the step that is due, or set `is_over`; returns the events that come before it."""
        run, context, step = self._run, self._context, self._step
        events: Sequence[AgentEvent] = ()
        if self._has_begun:
            events = self._finish_step()
            step = self._step
        if (run.ended or run.interruption.reason is not None) and not self.must_save:
            self._refuse_step()
        # By class: each step asks, and of what is not an instance `isinstance` looks further.
        if type(step) is Finish:
            self._reason = step.reason
            if run.progress.continuations and step.reason == "completed" and context.cur_iter <= context.max_iters:
                events = [*events, await self._take_continuation()]
                self._step = step = next_step(context)
        if type(step) is Reason:
            context.round_start = len(context.blocks)
            context.paused = False
        elif type(step) is not Act:
            self.is_over = True
            return events
        self._has_begun = True
        return events

    def take_step(self) -> Awaitable[object]:
        """Return an awaitable that completes the current step; from here on it can be interrupted."""
        agent, context, step, interruption = self._agent, self._context, self._step, self._run.interruption
        interruption.resume()
        if self._run.ended or interruption.reason is not None:  # since the save of what the model wrote, say
            self._refuse_step()
        if type(step) is Act:
            return run_calls(agent, context, step)
        assert isinstance(step, Reason)
        if not self._usage.has_headroom(agent.state, context, agent.model) and near_context_limit(agent):
            return compress_then_reason(agent, step.tool_choice)
        if agent.chains.on_reasoning is reason:
            return reason(agent, step.tool_choice)
        return ask_through_layers(agent, step.tool_choice)

    async def stop(self, error: BaseException) -> Iterable[AgentEvent]:
        """Close the step that an error has ended, and set `is_over` or `has_failed` if the reply is not to continue.

        Returns the events that close what is open, where the error is to leave after them.
        """
        interruption, step = self._run.interruption, self._step
        interruption.suspend(error)
        if isinstance(error, ReaderLeft):
            self._run.untold = error.untaken
        is_too_long = isinstance(error, ContextOverflow) and isinstance(step, Reason)
        if is_too_long and self._usage.record_overflow():
            return ()  # the same step once more, with less to send
        if isinstance(error, Exception):
            interruption.end()
            self.has_failed = True
            return drain_and_close(self._agent, self._run)
        if not await interruption.is_interruption(error):
            self.has_failed = True
            return ()
        self.is_over = True
        self._reason = interruption.reason or "interrupted"
        await checkpoint_if_cancelled()  # the caller's scope may have been cancelled in the same moment
        if interruption.has_pending_cancellation():
            await interruption.raise_pending_cancellation()
        if self._run.claim.is_handed_over:  # it leaves without an end
            raise Interrupted
        return ()

    def closing(self) -> Sequence[_ClosingPart]:
        """Return the parts of the end of a reply; each is to be called and sent before the next one is.

        What closes open calls is sent before the end is saved, the end after that: it tells what is on record.
        """
        self._run.interruption.end()
        if self._reason != "completed":
            return (self._close_open_parts, self._end, self._message_when_interrupted)
        if isinstance(self._step, Wait):
            return (self._close_open_parts, self._ask, self._end_if_stopped, self._message_when_interrupted)
        return (self._close_open_parts, self._end) if self._run.mailbox.items else (self._end,)

    def _refuse_step(self) -> NoReturn:
        if self._run.ended:
            raise ChainContractError(
                "a layer of on_reply ended the reply itself, but kept reading next_handler(): stop reading there"
            )
        raise Interrupted

    def _finish_step(self) -> Sequence[AgentEvent]:
        """Decide on the next step; returns the events that withdraw what the step has said, if it did not count."""
        agent, context, progress = self._agent, self._context, self._run.progress
        if self._usage.must_shorten:  # the same step once more, with less to send
            events = [progress.record_event(event) for event in forget_attempt(self._run)]
            progress.last_event = events[-1] if events else progress.last_event
            return events
        event = progress.last_event if type(self._step) is Reason else None
        if isinstance(event, ModelCallEndEvent) and event.reply_id == self._run.id:
            update_from_usage(agent, event)
            context.paused = event.finished_reason == "pause"
            if event.finished_reason == "length" and context.blocks:
                # A call that has no input yet was cut there, and would else run with nothing but defaults.
                last = context.blocks[-1]
                progress.cut_call = last.id if isinstance(last, ToolCallBlock) and not last.input.strip() else None
        if progress.attempt is not None:
            context.written += progress.attempt.written
            progress.attempt = None
        blocks = context.blocks[context.round_start :]
        self._step = step = step_of_calls(context, blocks) or self._count_round(blocks)
        self.must_save = type(step) is Act and agent.state_store is not None
        if self.must_save:
            self._run.interruption.suspend()  # likewise, until the next step begins
        return ()

    def _count_round(self, blocks: list[ContentBlock]) -> Step:
        """Count a round with these blocks, whose calls all have results, and return what comes after it.

        Raises `Malformed` for a model that says nothing.
        """
        agent, context = self._agent, self._context
        # Else a question would cost the model a round, and the last one its tools.
        if not (context.hidden_calls is not None and _only_asked(context, blocks)):
            context.cur_iter += 1
        added = len(blocks)
        says_nothing = not (blocks and context.paused) and {*map(type, blocks)} <= _THOUGHTS
        context.empty_rounds = context.empty_rounds + 1 if says_nothing else 0
        if context.empty_rounds > _MAX_EMPTY_ROUNDS:
            raise Malformed(f"model {agent.model.model!r} gave {context.empty_rounds} empty answers in a row")
        if context.structured is not None and added > 0 and not context.paused:
            count_answer_in_words(context)
        if added > 1:  # a call has its result by now
            context.tool_calls += len(calls_of_round(context, blocks))
        step = step_between_rounds(context, blocks)
        if isinstance(step, Reason):
            limits = agent.react_config
            if context.tool_calls > limits.max_tool_calls:
                return Finish("exceed_max_tool_calls")
            if context.written > limits.max_output:
                return Finish("exceed_max_output")
        return step

    async def _take_continuation(self) -> AgentEvent:
        run, context, progress = self._run, self._context, self._run.progress
        text, *rest = progress.continuations
        progress.continuations = tuple(rest)
        if self._agent.chains.on_content is not incoming_content:
            text, _ = await receive_hint(self._agent, text, "continue_with")
        hint = HintBlockEvent(run.id, run.new_id(), text, "continue_with")
        progress.record_event(hint)
        context.round_start = len(context.blocks)
        context.response = None
        if context.structured is not None:
            context.structured.begin_again()  # another round is wanted, so the output so far does not count
        return hint

    async def _close_open_parts(self) -> Iterator[AgentEvent]:
        # Of a reply that is stopped, what was emitted comes before the results of its open calls.
        is_stopped = self._reason not in ("completed", "exceed_max_iters")
        emitted = [] if is_stopped else await receive_emitted(self._agent, self._run)
        return chain(self._remaining_events(), map(self._run.progress.record_event, emitted))

    def _remaining_events(self) -> Iterator[AgentEvent]:
        if self._reason != "completed":
            yield from self._cut_short()
        for event in self._run.mailbox.take():
            yield self._run.progress.record_event(event)

    def _cut_short(self) -> Iterator[AgentEvent]:
        """Yield what ends everything that is still open when a reply is stopped."""
        agent, progress = self._agent, self._run.progress
        if self._reason == "exceed_max_iters":
            yield progress.record_event(ExceedMaxItersEvent(self._run.id, agent.name))
            return
        if agent.state.reply_context is not None and progress.attempt is not None:
            for event in end_partial_message(agent.state.reply_context, progress.last_event, self._reason):
                yield progress.record_event(event)
        yield from drain_and_close(agent, self._run)

    async def _ask(self) -> Iterator[AgentEvent | Msg]:
        return self._question(await park(self._agent, self._run, self._context))

    def _question(self, events: list[AgentEvent]) -> Iterator[AgentEvent | Msg]:
        yield from events
        if self._run.interruption.reason is None or self._run.claim.is_handed_over:
            yield question_message(self._context)
            return
        self._run.progress.reopen(self._context)  # asked to stop while the question was being sent
        self._reason = self._run.interruption.reason
        yield from self._cut_short()

    async def _end(self) -> Iterable[AgentEvent | Msg]:
        agent, run, context, reason = self._agent, self._run, self._context, self._reason
        stopped_with = run.interruption.message
        final = final_message(
            context, reason, stopped_with
        )  # before the end is recorded, which moves the message into the history
        if run.progress.recorder is not None:
            run.progress.core_answer = core_answer(context, final)
        event = end_event(agent, run, reason)
        record_end(agent, run, event)
        if agent.state_store is not None:
            await agent.save()
        run.progress.mark_saved()
        return (event,) if reason == "interrupted" else (event, final)

    async def _end_if_stopped(self) -> Iterable[AgentEvent | Msg]:
        return () if self._run.progress.is_parked else await self._end()  # while the question stands, nothing ends

    async def _message_when_interrupted(self) -> Iterable[Msg]:
        if self._reason != "interrupted":
            return ()
        return (await message_when_interrupted(self._agent, self._inputs, self._run.interruption.message),)
