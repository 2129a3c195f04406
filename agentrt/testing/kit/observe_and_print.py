"""What the kit does to a middleware aside from replies: the agent observes, and it prints."""

from functools import partial
from typing import Any

import anyio.lowlevel

from agentrt.errors import SessionIOError
from agentrt.message import Base64Source, DataBlock, Msg, TextBlock
from agentrt.testing.harness.approve import approve
from agentrt.testing.kit.fault_points import Hang, cancel_at, raising
from agentrt.testing.kit.kit_agents import QUESTIONS, OnPoint, StageQueue, StageStore
from agentrt.testing.kit.probe_layers import OutcomesAside
from agentrt.testing.kit.session import GivenUp, Rehearsal, Talk

__all__ = ["observing", "printing"]

_PLAIN = QUESTIONS["a plain question"]


async def observing(rehearsal: Rehearsal) -> None:
    """Have the agent observe: between replies, while one waits, while it is cancelled, and with a store that fails."""
    rehearsal.doing = "observing, between replies and while one waits"
    await _observed(rehearsal)
    if rehearsal.doing in rehearsal.problems or not rehearsal.has("on_observe"):
        return  # what is broken when nothing goes wrong would be told again and again
    rehearsal.doing = "observing, and cancelled while what was observed is saved"
    await _observing_is_cancelled(rehearsal)
    rehearsal.doing = "observing, and the store fails"
    await _observing_fails(rehearsal)


async def _observed(rehearsal: Rehearsal) -> None:
    talk = rehearsal.talk()
    for each in _heard():
        await _observe_without_errors(talk, each)
    await talk.ask_without_errors(_PLAIN)
    await _observe_without_errors(talk, _said("It rains."))
    await talk.ask(QUESTIONS["a call to confirm"], answers=0)
    await _observe_without_errors(talk, _said("It has stopped."))
    if talk.agent.state.reply_context is not None:
        await talk.ask_without_errors(approve(talk.agent.state))
    await talk.ask_without_errors(_PLAIN)


def _heard() -> list[Any]:
    """Return one of each kind of what an agent takes in."""
    blocks = Msg("friend", [TextBlock("I am here.")], "assistant")
    return ["Hello, all.", blocks, [_said("It is late."), Msg("moderator", "Go on.", "system")], None]


def _said(text: str) -> Msg:
    return Msg("friend", text, "user")


async def _observe(talk: Talk, msg: Any) -> BaseException | None:
    before = repr(msg)
    error = await talk.do("observing a message", talk.agent.observe, msg)
    if repr(msg) != before and not talk.lints():  # where there is an error, the lints do not look
        talk.rehearsal.tell("its on_observe changed the message that it was given, which others share: replace it")
    return error


async def _observe_without_errors(talk: Talk, msg: Any) -> None:
    talk.tell_error(await _observe(talk, msg))


async def _observing_is_cancelled(rehearsal: Rehearsal) -> None:
    core, hang = OutcomesAside(), Hang("save")
    outcomes = OutcomesAside(core)
    layers = rehearsal.layers([outcomes], [core])
    talk = rehearsal.talk(layers, state_store=StageStore(hang.on_point))
    await cancel_at(rehearsal, hang, outcomes, partial(_observe, talk, _said("It rains.")))
    await _is_free_again(talk, "that was cancelled")


async def _observing_fails(rehearsal: Rehearsal) -> None:
    error, core, is_broken = SessionIOError("made to fail"), OutcomesAside(), [True]

    async def on_point(point: str) -> None:
        await anyio.lowlevel.checkpoint()
        if is_broken:
            raise error

    layers = rehearsal.layers(inside=[core])
    talk = rehearsal.talk(layers, state_store=StageStore(on_point))
    core.strike()
    raised = await _observe(talk, _said("It rains."))
    if any(each is not None for _, each in core.seen):  # rather than that the message was dropped on purpose
        _tell_of_failure(talk, error, raised)
    else:
        talk.tell_error(raised)
    is_broken.clear()
    await _is_free_again(talk, "that failed")


def _tell_of_failure(talk: Talk, error: Exception, raised: BaseException | None) -> None:
    rehearsal = talk.rehearsal
    if raised is None:
        rehearsal.tell(
            f"its on_observe swallowed the {type(error).__name__} of the store: let it through, for whoever gave the "
            f"message has to know that it was not kept"
        )
    rehearsal.tell_what_became_of(error, raised)
    if talk.agent.state.context:
        rehearsal.tell(
            "what was observed is in the conversation though the store has failed, and is there twice once it is given "
            "again: leave it to next_handler() to take messages in"
        )


async def _is_free_again(talk: Talk, why: str) -> None:
    try:
        await _observe_without_errors(talk, _said("It is fine again."))
    except GivenUp as error:
        raise GivenUp(f"{error}: it came after one {why}, so give back in a `finally` what you take") from None
    await talk.ask_without_errors(_PLAIN)


async def printing(rehearsal: Rehearsal) -> None:
    """Have the agent print: replies, messages given by hand, while it is cancelled, and into a queue that fails."""
    if not rehearsal.has("on_print"):
        return
    rehearsal.doing = "printing into a queue, and by hand"
    await _printed(rehearsal)
    if rehearsal.doing in rehearsal.problems:
        return
    for point, where in (("piece", "a piece of a message"), ("last", "a whole message")):
        rehearsal.doing = f"printing, and cancelled while {where} is shown"
        await _printing_is_cancelled(rehearsal, point)
        rehearsal.doing = f"printing, and showing {where} fails"
        await _printing_fails(rehearsal, point)


async def _printed(rehearsal: Rehearsal) -> None:
    talk = _with_queue(rehearsal.talk(), _at_once)
    for question in (_PLAIN, QUESTIONS["tools side by side"]):
        await talk.ask_without_errors(question)
    sound = DataBlock(Base64Source("AAAA", "audio/wav"))
    message = Msg("tester", "Hello", "assistant")
    for last, speech in ((False, None), (False, sound), (True, [sound])):
        talk.tell_error(await talk.do("printing a message", talk.agent.print, message, last, speech))


async def _at_once(point: str) -> None:
    await anyio.lowlevel.checkpoint()


def _with_queue(talk: Talk, on_point: OnPoint) -> Talk:
    talk.agent.set_msg_queue_enabled(True, StageQueue(on_point))
    talk.agent.disable_console_output()
    return talk


async def _printing_is_cancelled(rehearsal: Rehearsal, point: str) -> None:
    core, hang = OutcomesAside(), Hang(point)
    outcomes = OutcomesAside(core)
    layers = rehearsal.layers([outcomes], [core])
    talk = _with_queue(rehearsal.talk(layers), hang.on_point)
    await cancel_at(rehearsal, hang, outcomes, partial(talk.ask, _PLAIN))
    await _prints_again(talk, "that was cancelled")


async def _printing_fails(rehearsal: Rehearsal, point: str) -> None:
    error = OSError("made to fail")
    talk = _with_queue(rehearsal.talk(), raising(point, error))
    await talk.ask(_PLAIN)
    rehearsal.tell_what_became_of(error, talk.error)  # going on without what cannot be shown is as good
    await _prints_again(talk, "that failed")


async def _prints_again(talk: Talk, why: str) -> None:
    try:
        await talk.ask_without_errors(_PLAIN)
    except GivenUp as error:
        raise GivenUp(f"{error}: it came after printing {why}, so give back in a `finally` what you take") from None
