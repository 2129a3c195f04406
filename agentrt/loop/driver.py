"""The owner of a reply, outside every layer: it takes the conversation, runs on_reply, and gives it back."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from agentrt.chain.owned_stream import OwnedStream
from agentrt.concurrency.background_task import enclosing_replies
from agentrt.concurrency.interrupt import Interrupted
from agentrt.conversation.conversation import ReplyingAgent, bound_toolkit
from agentrt.conversation.inputs import ANSWERS
from agentrt.conversation.open_calls import mark_resumed_calls
from agentrt.conversation.progress import PLAIN_BETWEEN_LAYERS, PLAIN_OUTSIDE
from agentrt.conversation.reply_run import ReplyRun
from agentrt.conversation.turns import Claim, lock_of
from agentrt.decoding.answer_form import AnswerForm
from agentrt.decoding.recorder import DELTAS
from agentrt.errors import UsageError
from agentrt.event import AgentEvent, ReplyEndEvent, UserInterruptEvent
from agentrt.hooks import ReplyInput
from agentrt.loop.delivery import Delivery
from agentrt.loop.outcome import abandon_unfinished_reply, skip_unsaved
from agentrt.loop.repeat import is_in_progress, repeat_reply
from agentrt.loop.reply import reply, reply_unseen
from agentrt.loop.resume import already_answered, reply_to_resume
from agentrt.loop.structured_output import check_form, toolkit_for_reply, with_instance
from agentrt.message import AssistantMsg, Msg
from agentrt.state import ReplyContext

__all__ = ["begin_run", "finish_reply", "relate_to_earlier", "run_reply"]

_EventsAndMessage = AsyncGenerator[AgentEvent | Msg, None]


async def run_reply(  # noqa: C901  # the way of every event, where a call more would cost each of them
    agent: ReplyingAgent,
    claim: Claim,
    inputs: ReplyInput,
    form: AnswerForm | None,
    yield_final_msg: bool,
    deps: Any = None,
    begun: tuple[ReplyInput, ReplyRun | Msg] | None = None,
    opened: tuple[_EventsAndMessage, bool] | None = None,
) -> _EventsAndMessage:
    """Run one reply through on_reply and yield its events, then its final message when asked for.

    `begun` and `opened` are what the caller has of it already, from `begin_run` and `_open_reply`.
    A reply that waits resumes with the right answer; anything else is refused before any layer sees it.
    """
    inputs, run = begun or await begin_run(agent, claim, inputs, form)
    if isinstance(run, Msg):  # nothing is left to do
        claim.final = with_instance(run, form, agent.state.context)
        if yield_final_msg:
            yield claim.final
        return
    stream, has_layers = opened or _open_reply(agent, run, inputs, form, deps)
    delivery = Delivery(agent, run, inputs, has_layers)
    # What each event needs. The loop stays in this generator: another one, or a call, would slow every event down.
    progress, recorder = run.progress, run.progress.recorder
    plain = PLAIN_OUTSIDE if recorder is None else PLAIN_BETWEEN_LAYERS
    try:
        try:
            async for item in stream:
                if item.__class__ in plain and progress.is_flowing and not item.seq:
                    if recorder is not None and item.__class__ in DELTAS:
                        recorder.record(item)
                    item.seq = progress.sequence = progress.sequence + 1  # all that is left of `assign_seq`
                    yield item
                    continue
                if progress.is_flowing and not isinstance(item, (Msg, ReplyEndEvent)):
                    yield progress.assign_seq(item)
                    continue
                events = delivery.take_item(item)
                if delivery.must_reserve:
                    await delivery.reserve_numbers()
                for event in events:
                    yield progress.assign_seq(event)
            if run.interruption.has_pending_cancellation():  # a layer of on_reply has swallowed it
                await run.interruption.raise_pending_cancellation()
        except Exception as error:  # noqa: BLE001  # raised again below, once the listener has seen the end
            delivery.failure = error
        except Interrupted as error:
            claim.accept_hand_over(error)
            return
        for part in delivery.closing():
            for event in await part():
                yield progress.assign_seq(event)
        if delivery.failure is not None:
            raise delivery.failure
        claim.final = delivery.message() if form is None else with_instance(delivery.message(), form)
        if yield_final_msg:
            yield claim.final
    finally:
        await delivery.leave(stream)


async def finish_reply(
    agent: ReplyingAgent, claim: Claim, inputs: ReplyInput, form: AnswerForm | None, deps: Any = None
) -> Msg:
    """Run one reply through on_reply, as `run_reply` does, and return its final message: nobody reads its events."""
    inputs, run = begun = await begin_run(agent, claim, inputs, form)
    if isinstance(run, Msg) or agent.chains.on_event is not run_reply:
        return await _last_of(agent.chains.on_event(agent, claim, inputs, form, True, deps, begun))
    if agent.chains.on_reply is reply:
        run.deps = deps
    elif (opened := _open_reply(agent, run, inputs, form, deps))[1]:
        return await _last_of(run_reply(agent, claim, inputs, form, True, deps, begun, opened))
    run.is_unseen = True
    delivery = Delivery(agent, run, inputs, has_layers=False)
    try:
        try:
            message = await reply_unseen(agent, run, inputs, None if form is None else form.source)
            if run.interruption.has_pending_cancellation():
                await run.interruption.raise_pending_cancellation()
        except Exception as error:
            delivery.failure = error
            for part in delivery.closing():
                for event in await part():
                    run.progress.assign_seq(event)
            raise
        return message if form is None else with_instance(message, form)
    finally:
        await delivery.leave()


async def _last_of(items: _EventsAndMessage) -> Msg:
    async with aclosing(items):
        async for item in items:  # noqa: B007  # the last one is returned
            pass
    return item  # type: ignore[return-value]  # it is the message


def _open_reply(
    agent: ReplyingAgent, run: ReplyRun, inputs: ReplyInput, form: AnswerForm | None, deps: Any
) -> tuple[_EventsAndMessage, bool]:
    """Enter on_reply; returns its stream, and whether a layer may see what is in it. Else the stream is the core's."""
    run.deps = deps
    on_reply, schema = agent.chains.on_reply, None if form is None else form.source
    # A chain's own kind of stream; or a generator, of the core or of a method that overrides it.
    stream: Any = on_reply(agent, inputs=inputs, structured_schema=schema)
    if isinstance(stream, OwnedStream) and stream.passes_on_to(reply):
        return reply(agent, inputs, schema), False
    return stream, on_reply is not reply


async def begin_run(
    agent: ReplyingAgent, claim: Claim, inputs: ReplyInput, form: AnswerForm | None
) -> tuple[ReplyInput, ReplyRun | Msg]:
    """Take the conversation; returns the input and the run, or the message where nothing is left to do."""
    lock = lock_of(agent.state)
    if isinstance(inputs, UserInterruptEvent) and lock.run is not None:
        current, session_id = lock.run, agent.state.session_id
        if inputs.reply_id == current.id and inputs.session_id in (None, session_id):
            current.interruption.request("interrupted")
            return inputs, AssistantMsg(agent.name, [], finished_reason="interrupted")
    enclosing, max_depth = enclosing_replies.get(), agent.react_config.max_depth
    if enclosing and len(enclosing) >= max_depth:
        raise UsageError(
            f"agent {agent.name!r} was asked inside {len(enclosing)} other replies, each from a tool of the one "
            f"before, and the limit is {max_depth}: does an agent call itself? If that is intended, set "
            f"ReActConfig(max_depth=...)"
        )
    if not lock.take_free(claim, agent.when_busy):
        await lock.take(claim, agent.when_busy)
    # What the state holds is read with the conversation in hand, since another reply may have changed it until now.
    try:
        unfinished = message = None
        if agent.state.reply_context is not None or claim.is_named or isinstance(inputs, ANSWERS):
            inputs, unfinished, message = relate_to_earlier(agent, claim, inputs)
        agent.current_chains()  # which are compiled anew here, if hooks were registered since the last reply
        run = _new_run(agent, claim, unfinished, form) if message is None else None
    except BaseException:
        claim.give_back()
        raise
    if run is None:
        claim.give_back()
        assert message is not None
        return inputs, message
    run.interruption.bind_reader()
    return inputs, run


def relate_to_earlier(
    agent: ReplyingAgent, claim: Claim, inputs: ReplyInput
) -> tuple[ReplyInput, ReplyContext | None, Msg | None]:
    """Return the input, the reply in progress that it resumes, and the message where nothing is left to do.

    Raises `ResumeError` for an input that fits no reply, before anything has changed.
    """
    if claim.is_named:
        resumes = is_in_progress(agent, claim.reply_id, inputs)
        if not isinstance(inputs, ANSWERS):  # an answer names its reply by itself
            message = repeat_reply(agent, claim.reply_id)
            if message is not None:
                return None, None, message
            inputs = None if resumes else inputs
    if isinstance(inputs, ANSWERS) and already_answered(agent, inputs):
        message = repeat_reply(agent, inputs.reply_id)
    elif isinstance(inputs, UserInterruptEvent) and agent.state.reply_context is None:
        message = AssistantMsg(agent.name, [], finished_reason="interrupted")
    else:
        return inputs, reply_to_resume(agent, inputs), None
    return inputs, None, message


def _new_run(agent: ReplyingAgent, claim: Claim, unfinished: ReplyContext | None, form: AnswerForm | None) -> ReplyRun:
    state = agent.state
    if agent.toolkit.has_toolsets:
        agent.toolkit.check_open()  # before anything changes
    if unfinished is None:
        if state.reply_context is not None:
            abandon_unfinished_reply(agent)
        toolkit = agent.toolkit
        if toolkit.binds:
            toolkit = bound_toolkit(agent)
    else:
        task = unfinished.structured
        # A layer may have put another form in its place, or none.
        if agent.chains.on_reply is reply or (task is not None and not task.is_replaced):
            check_form(unfinished, form)
        skip_unsaved(state)
        claim.reply_id = unfinished.reply_id
        toolkit = toolkit_for_reply(agent, unfinished)
    run = ReplyRun(agent, claim, max(state.sequence, claim.after) if claim.after else state.sequence, toolkit)
    run.progress.form = form
    if unfinished is not None:
        run.toolkit = agent.live_conversation.round_toolkit or toolkit
        mark_resumed_calls(run.toolkit, unfinished)
        run.restore(unfinished)
    agent.live_conversation.begin(run)
    return run
