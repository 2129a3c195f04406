"""The owner of a reply, outside every layer: it takes the conversation, runs on_reply, and gives it back."""

from collections.abc import Sequence
from typing import Any

from agentrt._runtime.chain.spec import Notify
from agentrt._runtime.concurrency.background_task import enclosing_replies
from agentrt._runtime.concurrency.coroutine_reader import hand_out
from agentrt._runtime.concurrency.interrupt import Interrupted
from agentrt._runtime.conversation.conversation import ReplyingAgent, bound_toolkit
from agentrt._runtime.conversation.inputs import ANSWERS
from agentrt._runtime.conversation.open_calls import mark_resumed_calls
from agentrt._runtime.conversation.reply_run import ReplyRun
from agentrt._runtime.conversation.turns import Claim, lock_of
from agentrt._runtime.decoding.answer_form import AnswerForm
from agentrt._runtime.flow.handles import holds
from agentrt._runtime.flow.release import replace_in_message, value_in_output
from agentrt._runtime.loop.delivery import Delivery
from agentrt._runtime.loop.outcome import abandon_unfinished_reply, skip_unsaved
from agentrt._runtime.loop.outlet import LayeredOutlet, Outlet
from agentrt._runtime.loop.repeat import is_in_progress, repeat_reply
from agentrt._runtime.loop.reply import reply
from agentrt._runtime.loop.resume import already_answered, reply_to_resume
from agentrt._runtime.loop.structured_output import check_form, toolkit_for_reply, with_instance
from agentrt.errors import UsageError
from agentrt.event import UserInterruptEvent
from agentrt.hooks import ReplyInput
from agentrt.message import AssistantMsg, Msg
from agentrt.state import ReplyContext


async def run_reply(
    agent: ReplyingAgent,
    claim: Claim,
    inputs: ReplyInput,
    form: AnswerForm | None,
    deps: Any = None,
    is_read: bool = False,
    begun: tuple[ReplyInput, ReplyRun | Msg] | None = None,
    notify: Notify | None = None,
) -> Msg | None:
    """Run one reply through on_reply and return its final message, `None` for one that was handed over.

    With `is_read` its events go to the reader of this coroutine; `notify` tells observers. `begun` is what the caller
    has of it already, from `begin_run`. A reply that waits resumes with the right answer; anything else is refused
    before any layer sees it.
    """
    inputs, run = begun or await begin_run(agent, claim, inputs, form)
    if not isinstance(run, ReplyRun):  # nothing is left to do
        claim.final = _as_it_leaves(agent, run, form, agent.state.context)
        if claim.tells_message:
            await hand_out(claim.final)
        return claim.final
    run.deps = deps
    on_reply, schema = agent.chains.on_reply, None if form is None else form.source
    outlet = Outlet(agent, run, is_read, notify, has_steps=on_reply is reply)
    message: Msg | None = None
    delivery = Delivery(agent, run, inputs, outlet, has_layers=on_reply is not reply)
    try:
        try:
            if agent.chains.lifespans:
                await delivery.open_layers()
            if on_reply is reply:
                run.outlet = outlet
                message = await reply(agent, inputs, schema)
            else:
                run.outlet = LayeredOutlet(agent, run)
                await delivery.pass_on(on_reply(agent, inputs=inputs, structured_schema=schema))
            if run.interruption.has_pending_cancellation():  # a layer of on_reply has swallowed it
                await run.interruption.raise_pending_cancellation()
        except Exception as error:  # noqa: BLE001  # raised again below, once the listener has seen the end
            delivery.failure, message = error, None
        except Interrupted as error:
            claim.accept_hand_over(error)
            return None
        finally:
            delivery.keep_rest()
        if message is None:  # else nothing stands between the core and the listener, who has seen the end
            for part in delivery.closing():
                await delivery.send(await part())
        if delivery.failure is not None:
            raise delivery.failure
        claim.final = _as_it_leaves(agent, message or delivery.message(), form)
        if claim.tells_message:
            await hand_out(claim.final)
        return claim.final
    except GeneratorExit:  # its event loop is gone, and nothing can be awaited any more
        delivery.let_go()
        raise
    finally:
        await delivery.leave()


def _as_it_leaves(agent: ReplyingAgent, message: Msg, form: AnswerForm | None, context: Sequence[Msg] = ()) -> Msg:
    """Return the message for the caller, who reads values and not the handles that stand for them."""
    # Here and not by the caller: a stream's message and an awaited one are the same object.
    if holds(agent.state):
        replacement = agent.live_conversation.replacement
        replaced = replace_in_message(agent.state, message, replacement)
        if replaced is not message and replacement is not value_in_output:
            return replaced  # JSON with handles, which need not fit the type
        message = replaced
    return message if form is None else with_instance(message, form, context)


async def begin_run(
    agent: ReplyingAgent, claim: Claim, inputs: ReplyInput, form: AnswerForm | None
) -> tuple[ReplyInput, ReplyRun | Msg]:
    """Take the conversation; returns the input and the run, or the message where nothing is left to do."""
    lock = lock_of(agent.state)
    if lock.run is not None and isinstance(inputs, UserInterruptEvent):
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
        agent.current_chains()  # recompiled here, if hooks were registered since the last reply
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
        if toolkit.table.binds:
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
