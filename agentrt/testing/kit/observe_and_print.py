"""Checks beside replies: the agent observes and prints."""

from functools import partial

import anyio.lowlevel

from agentrt.errors import SessionIOError
from agentrt.hooks import MiddlewareBase
from agentrt.message import Base64Source, DataBlock, Msg, TextBlock
from agentrt.testing.harness.approve import approve
from agentrt.testing.harness.full_text import full_text
from agentrt.testing.kit.fault_points import cancel_at, raise_once_at
from agentrt.testing.kit.kit_agents import (
    CONFIRM_QUESTION,
    PLAIN_QUESTION,
    TWO_TOOLS_QUESTION,
    KitQueue,
    KitStore,
    OnPoint,
    pass_point,
)
from agentrt.testing.kit.probe_layers import ObserveAndPrintProbe
from agentrt.testing.kit.session import KitConversation, KitRun, blame_what_came_before


async def observe_messages(run: KitRun) -> None:
    """Have the agent observe: between replies, while one waits, when cancelled, and with a failing store."""
    run.activity = "observing, between replies and while one waits"
    await _observe_undisturbed(run)
    if run.activity in run.problems or not run.has_hook("on_observe"):
        return  # a problem without a fault would be reported again and again
    run.activity = "observing, and cancelled while what was observed is saved"
    conversation = await cancel_at(
        run,
        "save",
        lambda layers, on_point: run.start(layers, state_store=KitStore(on_point)),
        lambda conversation: _observe(conversation, _msg("It rains.")),
        ObserveAndPrintProbe,
    )
    # Whatever the outcome, the middleware must be free for the next message.
    await _observe_again(conversation, "one that was cancelled")
    run.activity = "observing, and the store fails"
    await _observe_with_broken_store(run)


async def _observe_undisturbed(run: KitRun) -> None:
    conversation = run.start()
    blocks = Msg("friend", [TextBlock("I am here.")], "assistant")
    # One of each kind that an agent accepts.
    for msg in ("Hello, all.", blocks, [_msg("It is late."), Msg("moderator", "Go on.", "system")], None):
        conversation.report_error(await _observe(conversation, msg))
    await conversation.ask_without_errors(PLAIN_QUESTION)
    conversation.report_error(await _observe(conversation, _msg("It rains.")))
    await conversation.ask(CONFIRM_QUESTION, answers=0)  # now a reply waits, unless the middleware prevents it
    conversation.report_error(await _observe(conversation, _msg("It has stopped.")))
    if conversation.agent.state.reply_context is not None:
        await conversation.ask_without_errors(approve(conversation.agent.state))
    await conversation.ask_without_errors(PLAIN_QUESTION)


def _msg(text: str) -> Msg:
    return Msg("friend", text, "user")


async def _observe(conversation: KitConversation, msg: str | Msg | list[Msg] | None) -> BaseException | None:
    before = full_text(msg)
    error = await conversation.perform("observing a message", lambda: conversation.agent.observe(msg))
    if full_text(msg) != before and not conversation.lint_problems():  # after an error, the lints do not check
        conversation.run.report("its on_observe changed the message that it was given, which others share: replace it")
    return error


async def _observe_with_broken_store(run: KitRun) -> None:
    # Broken until the end: a middleware may retry, and must still let the error propagate.
    error, core, is_broken = SessionIOError("made to fail"), ObserveAndPrintProbe(), True

    async def on_point(point: str) -> None:
        await anyio.lowlevel.checkpoint()
        if is_broken:
            raise error

    conversation = run.start(run.layers(inside=[core]), state_store=KitStore(on_point))
    core.arm()
    raised = await _observe(conversation, _msg("It rains."))
    if all(outcome is None for _, outcome in core.outcomes):  # the message was dropped on purpose
        conversation.report_error(raised)
    else:
        if raised is None:
            run.report(
                "its on_observe swallowed the SessionIOError of the store: let it through, for the caller who gave "
                "the message has to know that it was not kept"
            )
        run.check_error(error, raised)
        if conversation.agent.state.context:
            run.report(
                "what was observed is in the conversation though the store has failed, and is there twice once it is "
                "given again: leave it to next_handler() to take messages in"
            )
    is_broken = False
    await _observe_again(conversation, "one that failed")


async def _observe_again(conversation: KitConversation, what_came_before: str) -> None:
    with blame_what_came_before(what_came_before):
        conversation.report_error(await _observe(conversation, _msg("It is fine again.")))
    await conversation.ask_without_errors(PLAIN_QUESTION)


async def print_messages(run: KitRun) -> None:
    """Have the agent print: replies, explicit messages, when cancelled, and into a failing queue."""
    if not run.has_hook("on_print"):
        return
    run.activity = "printing into a queue, and by hand"
    conversation = _start_with_queue(run, run.layers(), on_point=pass_point)
    for question in (PLAIN_QUESTION, TWO_TOOLS_QUESTION):
        await conversation.ask_without_errors(question)
    sound = DataBlock(Base64Source("AAAA", "audio/wav"))
    message = Msg("tester", "Hello", "assistant")
    calls: list[tuple[bool, DataBlock | list[DataBlock] | None]] = [(False, None), (False, sound), (True, [sound])]
    for last, speech in calls:
        print_it = partial(conversation.agent.print, message, last, speech)
        conversation.report_error(await conversation.perform("printing a message", print_it))
    if run.activity in run.problems:
        return
    for point, where in (("piece", "a piece of a message"), ("last", "a whole message")):
        run.activity = f"printing, and cancelled while {where} is shown"
        conversation = await cancel_at(
            run,
            point,
            partial(_start_with_queue, run),
            lambda conversation: conversation.ask(PLAIN_QUESTION),
            ObserveAndPrintProbe,
        )
        with blame_what_came_before("printing that was cancelled"):
            await conversation.ask_without_errors(PLAIN_QUESTION)
        run.activity = f"printing, and showing {where} fails"
        error = OSError("made to fail")
        conversation = _start_with_queue(run, run.layers(), on_point=raise_once_at(point, error))
        await conversation.ask(PLAIN_QUESTION)
        run.check_error(error, conversation.error)  # continuing without output is fine too
        with blame_what_came_before("printing that failed"):
            await conversation.ask_without_errors(PLAIN_QUESTION)


def _start_with_queue(run: KitRun, layers: list[MiddlewareBase], *, on_point: OnPoint) -> KitConversation:
    conversation = run.start(layers)
    conversation.agent.set_msg_queue_enabled(True, KitQueue(on_point))
    conversation.agent.disable_console_output()  # a check prints nothing
    return conversation
