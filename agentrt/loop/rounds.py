"""The rounds of a reply: what happens before, between and after the steps, whose events `reply` passes on."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator, Sequence
from typing import NoReturn

from anyio.lowlevel import checkpoint_if_cancelled

from agentrt.concurrency.interrupt import Interrupted
from agentrt.conversation.conversation import ReplyingAgent
from agentrt.conversation.final_message import final_message
from agentrt.conversation.open_calls import drain_and_close
from agentrt.conversation.progress import PLAIN_INSIDE
from agentrt.conversation.question import park, question_message
from agentrt.conversation.reply_run import ReplyRun
from agentrt.conversation.step import Act, Finish, Reason, Step, Wait, next_step, step_between_rounds, step_of_calls
from agentrt.errors import ChainContractError, ContextOverflow, Malformed
from agentrt.event import (
    AgentEvent,
    ExceedMaxItersEvent,
    HintBlockEvent,
    ModelCallEndEvent,
    ReplyEndEvent,
    ToolResultEndEvent,
)
from agentrt.hooks import ReplyInput
from agentrt.loop.answer import announce_round, core_answer
from agentrt.loop.compression import compress_then_reason, near_context_limit, update_from_usage
from agentrt.loop.outcome import end_event, end_partial_message, message_when_interrupted, record_end
from agentrt.loop.reasoning import forget_attempt, reason, reason_unseen
from agentrt.loop.structured_output import count_answer_in_words
from agentrt.loop.tool_calls.acting import calls_of_round, run_call_unseen, run_calls, save_result
from agentrt.message import ContentBlock, Msg, ThinkingBlock, ToolCallBlock, ToolResultBlock
from agentrt.state import ReplyContext
from agentrt.types import FinishedReason

__all__ = ["Rounds"]

_MAX_EMPTY_ROUNDS = 1
_Items = AsyncGenerator[AgentEvent | Msg, None]
_ClosingPart = Callable[[], Awaitable[Iterable[AgentEvent | Msg]]]


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
    _stream: _Items | None = None
    _guarded: _Items | None = None

    def __init__(self, agent: ReplyingAgent, run: ReplyRun, inputs: ReplyInput, context: ReplyContext) -> None:
        self._agent = agent
        self._run = run
        self._inputs = inputs
        self._context = context
        self._step: Step = next_step(context)
        if run.progress.recorder is None:
            run.progress.begin()  # no layer is in between that may keep the first event, or put another before it

    def begin_step(self) -> Sequence[AgentEvent]:
        """Begin the step that is due, or set `is_over`; returns the events that come before it."""
        run, context, step = self._run, self._context, self._step
        events: Sequence[AgentEvent] = ()
        if self._has_begun:
            events = self._finish_step()
            step = self._step
        if (run.ended or run.interruption.reason is not None) and not self.must_save:
            self._refuse_step()
        if isinstance(step, Finish):
            self._reason = step.reason
            if run.progress.continuations and step.reason == "completed" and context.cur_iter <= context.max_iters:
                events = [*events, self._take_continuation()]
                self._step = step = next_step(context)
        if isinstance(step, (Reason, Act)):
            self._stream = self._start(step)
            self._has_begun = True
        else:
            self.is_over = True
        return events

    def read_step(self) -> _Items:
        """Return the items of the step that was begun; from here on it can be interrupted."""
        interruption, stream = self._run.interruption, self._stream
        if self._run.ended or interruption.reason is not None:  # since the save of what the model wrote, say
            self._refuse_step()
        assert stream is not None
        self._guarded = guarded = interruption.guard_steps(stream)
        return guarded

    def take_step(self) -> Awaitable[None]:
        """Return what takes in the step that was begun to its end, where nobody sees its items."""
        run, step = self._run, self._step
        if self._stream is not None:
            return self._take_items()
        if run.ended or run.interruption.reason is not None:
            self._refuse_step()
        run.interruption.guard_work()
        if isinstance(step, Reason):
            return reason_unseen(self._agent, run, step.tool_choice)
        assert isinstance(step, Act)
        return self._act_unseen(step)

    async def _act_unseen(self, step: Act) -> None:
        agent, context = self._agent, self._context
        if not await run_call_unseen(agent, self._run, context, step.calls, self._take_unseen):
            self._stream = run_calls(agent, context, step)
            await self._take_items()

    async def _take_items(self) -> None:
        async for item in self.read_step():
            await self._take_unseen(item)

    async def _take_unseen(self, item: AgentEvent | Msg) -> None:
        run = self._run
        if run.mailbox.items and not run.mailbox.is_read:  # if it is, this item came out of it
            run.progress.count_emitted(run.mailbox)
        if item.__class__ in PLAIN_INSIDE:
            run.progress.take_unseen(item)
        else:
            for _ in await self.take_item(item):
                run.progress.sequence += 1
        if run.interruption.reason is not None:
            raise Interrupted

    async def take_item(self, item: AgentEvent | Msg) -> Iterable[AgentEvent]:
        """Record an item that is more than plain content; returns the events that the reader sees instead of it."""
        progress = self._run.progress
        if isinstance(item, Msg):
            return map(progress.record_event, announce_round(self._run, self._context, item))
        if isinstance(item, ReplyEndEvent) and item.reply_id == self._run.id:
            raise ChainContractError("REPLY_END came from inside the reply: only on_reply may end it")
        progress.last_event = progress.record_event(item)
        if isinstance(item, ToolResultEndEvent) and item.reply_id == self._run.id:
            await save_result(self._agent, self._run, self._context, item.tool_call_id)
        return (item,)

    async def stop(self, error: BaseException) -> Iterable[AgentEvent]:
        """Close the step that an error has ended, and set `is_over` or `has_failed` if the reply is not to continue.

        Returns the events that close what is open, where the error is to leave after them.
        """
        interruption, step = self._run.interruption, self._step
        interruption.suspend(error)
        await self._close_step()
        is_too_long = isinstance(error, ContextOverflow) and isinstance(step, Reason)
        if is_too_long and self._agent.live_conversation.context_usage.record_overflow():
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

    async def _close_step(self) -> None:
        self._run.interruption.task = None
        stream, self._stream = self._stream, None
        guarded, self._guarded = self._guarded, None
        if guarded is not None and guarded is not stream:
            await guarded.aclose()
        if stream is not None:
            await stream.aclose()

    def _finish_step(self) -> Sequence[AgentEvent]:
        """Decide on the next step; returns the events that withdraw what the step has said, if it did not count.

        The stream of the step needs no closing here: it was read to its end, or `stop` has closed it.
        """
        agent, context, progress = self._agent, self._context, self._run.progress
        self._run.interruption.task = self._stream = self._guarded = None
        if agent.live_conversation.context_usage.must_shorten:  # the same step once more, with less to send
            return self._withdraw_attempt()
        event = progress.last_event if isinstance(self._step, Reason) else None
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
        self.must_save = agent.state_store is not None and isinstance(step, Act)
        if self.must_save:
            self._run.interruption.suspend()  # likewise, until the next step begins
        return ()

    def _withdraw_attempt(self) -> list[AgentEvent]:
        progress = self._run.progress
        events = [progress.record_event(event) for event in forget_attempt(self._run)]
        progress.last_event = events[-1] if events else progress.last_event
        return events

    def _count_round(self, blocks: list[ContentBlock]) -> Step:
        """Count a round with these blocks, whose calls all have results, and return what comes after it.

        Raises `Malformed` for a model that says nothing.
        """
        agent, context = self._agent, self._context
        # Else a question would cost the model a round, and the last one its tools.
        if not (context.hidden_calls is not None and _only_asked(context, blocks)):
            context.cur_iter += 1
        added = len(blocks)
        says_nothing = not (blocks and context.paused) and all(isinstance(block, ThinkingBlock) for block in blocks)
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

    def _take_continuation(self) -> AgentEvent:
        run, context, progress = self._run, self._context, self._run.progress
        hint = HintBlockEvent(run.id, run.new_id(), progress.continuations[0], "continue_with")
        progress.continuations = progress.continuations[1:]
        progress.record_event(hint)
        context.round_start = len(context.blocks)
        context.response = None
        if context.structured is not None:
            context.structured.begin_again()  # another round is wanted, so the output so far does not count
        return hint

    def _start(self, step: Reason | Act) -> _Items | None:
        """Return the stream of the step: one round of asking the model, or running its calls.

        There is none where nobody sees its events.
        """
        agent, context = self._agent, self._context
        if isinstance(step, Act):
            return None if self._run.is_unseen else run_calls(agent, context, step)
        context.round_start = len(context.blocks)
        context.paused = False
        if not agent.live_conversation.context_usage.has_headroom(
            agent.state, context, agent.model
        ) and near_context_limit(agent):
            return compress_then_reason(agent, step.tool_choice)
        on_reasoning = agent.chains.on_reasoning
        if on_reasoning is reason and self._run.is_unseen:
            return None
        stream: _Items = on_reasoning(agent, tool_choice=step.tool_choice)
        return stream

    async def _close_open_parts(self) -> Iterator[AgentEvent]:
        return self._remaining_events()

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
