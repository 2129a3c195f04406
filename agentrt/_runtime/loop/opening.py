"""How the core of a reply opens it: with an input, with the answer that it waited for, or all over again."""

from copy import deepcopy
from typing import Any

from agentrt._runtime.conversation.conversation import ReplyingAgent
from agentrt._runtime.conversation.inputs import (
    ANSWERS,
    as_messages,
    check_content,
    incoming_content,
    receive_emitted,
    receive_messages,
)
from agentrt._runtime.conversation.open_calls import (
    asked_calls,
    begun_inner_calls,
    close_calls_in_doubt,
    forget_inner_calls,
    mark_resumed_calls,
)
from agentrt._runtime.conversation.progress import TEXT_RESULT_EVENTS, Origin
from agentrt._runtime.conversation.reply_run import ReplyRun
from agentrt._runtime.loop.outcome import begin_context, forget_unfinished_round, resumption_event, start_event
from agentrt._runtime.loop.resume import apply_answer, check_answer, receive_answer, reply_to_resume
from agentrt._runtime.loop.structured_output import require_structured_output, restore_form
from agentrt._runtime.loop.tool_calls.background import receive_wake, task_woken_by
from agentrt._runtime.loop.tool_calls.round_tools import assemble_on_resume
from agentrt.errors import ChainError, InvalidInputError
from agentrt.event import AgentEvent, ModelCallRetryEvent, ToolResultEndEvent, UserInterruptEvent
from agentrt.hooks import ReplyInput
from agentrt.message import APPLY, Msg, ToolCallState
from agentrt.state import ReplyContext


async def open_reply(
    agent: ReplyingAgent, run: ReplyRun, inputs: ReplyInput, structured_schema: Any
) -> tuple[ReplyContext, list[AgentEvent]]:
    """Take in the input and begin the reply, resume it, or begin it again when a layer of on_reply does so.

    Returns the events to begin with, recorded: what they say is saved with the input.
    """
    context, progress = agent.state.reply_context, run.progress
    if run.ended:  # what is on record cannot be taken back
        raise ChainError(
            "on_reply called next_handler() again after the reply had ended: to have another round, call "
            "agent.run.continue_with(hint) before that"
        )
    if context is None:
        woken_by = task_woken_by(agent.state, run.id) if agent.state.tasks else None
        if woken_by is not None:
            inputs = [await receive_wake(agent, woken_by, message) for message in as_messages(inputs)]
        elif agent.chains.on_content is not incoming_content:
            inputs = await receive_input(agent, inputs)
        held = len(agent.state.context)
        context = _begin_reply(agent, run, inputs, structured_schema)
        if woken_by is not None:
            del agent.state.tasks[woken_by.id]
        _withhold_tools(agent, run)
        opening: list[AgentEvent] = []
        if progress.start_event is None:
            opening.append(start_event(agent, run))
        if agent.state_store is not None:
            state, taken = agent.state, len(agent.state.context)
            try:
                await agent.save()
            except Exception:  # raised again: the input is not taken, so that it can be given again
                del state.context[held:taken]
                state.reply_context = progress.message = None
                if woken_by is not None:
                    state.tasks[woken_by.id] = woken_by
                raise
        return context, opening
    if progress.is_new:
        restore_form(agent, run, context, structured_schema)
        _withhold_tools(agent, run)
        return context, await _resume_reply(agent, run, context, inputs)
    # Results are on record, though layers that left the core have not taken all of their events. What the model was
    # saying is withdrawn, or told as a whole.
    results = [event for event in run.untold if isinstance(event, TEXT_RESULT_EVENTS)]
    untold, run.untold = list(progress.fill_missing_starts(results)), ()
    if progress.origin is not Origin.INPUT:
        return context, [*untold, *await _resume_again(agent, run, context)]
    return context, [*untold, progress.record_event(_begin_again(run, context))]


async def receive_input(agent: ReplyingAgent, inputs: ReplyInput) -> list[Msg]:
    """Return the messages of an input as on_content leaves them."""
    messages = as_messages(inputs)
    check_content(messages)
    return await receive_messages(agent, "input", messages)


def _begin_reply(agent: ReplyingAgent, run: ReplyRun, inputs: ReplyInput, structured_schema: Any) -> ReplyContext:
    state = agent.state
    # Checked as it came in, and no layer had it, which may have replaced or changed it.
    if isinstance(inputs, Msg) and run.progress.recorder is None and not agent.chains.layers["on_reply"]:
        messages = [inputs]
    else:
        messages = as_messages(inputs)
        check_content(messages)
    if not messages:
        check_has_something(agent)
    # Nothing has changed so far, so that an input that is refused can be given again.
    context = begin_context(agent, run)
    run.identify()
    if structured_schema is not None:
        require_structured_output(agent, context, structured_schema)
    state.context += [message.copy() for message in messages]
    state.reply_context = context
    return context


def _withhold_tools(agent: ReplyingAgent, run: ReplyRun) -> None:
    """Take the tools of layers out whose conditions do not hold in this reply."""
    if not agent.chains.terms.by_layer:
        return
    names = agent.withheld_tools()
    if names:
        run.toolkit = run.toolkit.without_names(names)
        run.progress.lasting_toolkit = run.progress.lasting_toolkit.without_names(names)


def check_has_something(agent: ReplyingAgent) -> None:
    """Raise `InvalidInputError` for a conversation in which nothing was said yet, and so nothing can be answered."""
    if not agent.state.context and not agent.state.summary and not agent.can_speak_first:
        raise InvalidInputError(
            f"agent {agent.name!r} was asked to reply to nothing: the conversation is empty and no input was given; "
            f"send a message, or have it observe one first"
        )


async def _resume_reply(
    agent: ReplyingAgent, run: ReplyRun, context: ReplyContext, inputs: ReplyInput
) -> list[AgentEvent]:
    reply_to_resume(agent, inputs)  # a layer may have put something else in the place of the answer
    await assemble_on_resume(agent, run, context)
    if isinstance(inputs, ANSWERS):
        inputs = check_answer(agent, context, inputs)  # with the tools that layers add
        if agent.chains.on_content is not incoming_content:
            inputs = await receive_answer(agent, context, inputs)
    progress, permissions = run.progress, agent.state.permission_context
    before = deepcopy((context, permissions.rules)) if agent.state_store is not None else None
    is_first = progress.was_left and progress.start_event is None
    opening: list[AgentEvent] = []
    if is_first:
        opening = [start_event(agent, run), *map(progress.record_event, begun_inner_calls(context))]
    opening += [progress.record_event(event) for event in close_calls_in_doubt(run, context)]
    if isinstance(inputs, ANSWERS):
        opening += [progress.record_event(event) for event in apply_answer(agent, context, inputs)]
    progress.reopen(context)
    if isinstance(inputs, UserInterruptEvent):
        run.interruption.request("interrupted")
    if before is not None:
        try:
            await agent.save()
        except Exception:  # raised again: the answer is not taken, so that it can be given again
            agent.state.reply_context, permissions.rules = before
            raise
    return opening


async def _resume_again(agent: ReplyingAgent, run: ReplyRun, context: ReplyContext) -> list[AgentEvent]:
    """Resume a resumed reply again, with the user's answer and the results so far.

    Returns the event with all of its content, since a layer may have hidden any part of it from the listener.
    """
    progress = run.progress
    forget_unfinished_round(progress, context)
    for event in await receive_emitted(agent, run):
        if event.reply_id == run.id and event.__class__ in APPLY:
            progress.record_event(event)
            if isinstance(event, ToolResultEndEvent):
                forget_inner_calls(context, event.tool_call_id)
        else:
            run.mailbox.post(event)
    for event in close_calls_in_doubt(run, context, "the reply was resumed again"):
        progress.record_event(event)
    mark_resumed_calls(run.toolkit, context)
    progress.note_resumed(context)
    if context.parked:
        for call, decision, _ in asked_calls(context):  # asked again, since the listener may not have got the question
            call.state, decision.asked_seq = ToolCallState.PENDING, 0
        progress.reopen(context)
    if agent.state_store is not None:
        await agent.save()
    return [resumption_event(agent, run, context.message)]


def _begin_again(run: ReplyRun, context: ReplyContext) -> ModelCallRetryEvent:
    """Forget what the reply holds, and return the event that withdraws it."""
    progress = run.progress
    block_ids = [block.id for block in context.blocks]
    for event in list(run.mailbox.take()):  # events of tools that ran side by side, which nobody has seen
        if event.reply_id != run.id or event.__class__ not in APPLY:
            run.mailbox.post(event)
    progress.call_ids.clear()
    progress.attempt = None
    progress.reopen(context)
    context.cur_iter = context.round_start = context.empty_rounds = context.summarised = 0
    context.response = None
    context.decisions.clear()
    context.kept.clear()
    context.inner.clear()
    context.hidden_calls = None
    if context.structured is not None:
        context.structured.begin_again()
    return ModelCallRetryEvent("the reply was started again", block_ids=block_ids, reply_id=run.id)
