"""Tries a middleware in a conversation, and with a model, that its author gives."""

from collections.abc import Sequence
from functools import partial

import anyio

from agentrt.hooks import ReplyInput
from agentrt.testing.kit.fault_points import Hang, cancel_at
from agentrt.testing.kit.kit_agents import QUESTIONS
from agentrt.testing.kit.probe_layers import Outcomes
from agentrt.testing.kit.session import Rehearsal, Talk, told

__all__ = ["own_inputs", "talking_as_told"]


def own_inputs(rehearsal: Rehearsal) -> Sequence[str | ReplyInput]:
    """Return the inputs of that conversation; none if neither inputs nor a model were given."""
    if rehearsal.inputs or rehearsal.model is None:
        return rehearsal.inputs
    return (QUESTIONS["a plain question"], QUESTIONS["a tool"])


async def talking_as_told(rehearsal: Rehearsal) -> None:
    """Hold the conversation undisturbed, left at each item, cancelled, and saved and loaded after each input."""
    inputs = own_inputs(rehearsal)
    if not inputs:
        return
    doing = rehearsal.doing
    streamed, whole, again = [await _said(rehearsal, inputs, stream=stream) for stream in (True, False, True)]
    if streamed == again != whole:
        rehearsal.tell(f"the answers are {streamed!r} when they stream, and {whole!r} when they do not")
    if rehearsal.problems:
        return  # what is broken without any fault would be reported again and again
    rehearsal.doing = f"{doing}, left by its reader"
    for place in range(len(inputs)):
        await _left(rehearsal, inputs[: place + 1])
    rehearsal.doing = f"{doing}, saved and loaded"
    saved = await _said(rehearsal, inputs, is_saved=True)
    if saved != streamed == again:
        rehearsal.tell(
            f"saved and loaded after each reply, the answers are {saved!r}, and {streamed!r} without that: keep what "
            f"belongs to the conversation in agent.state_of(self)"
        )
    for point in ("before", "midway", "after"):
        rehearsal.doing = f"{doing}, cancelled {point} the model's answer"
        await _cancelled(rehearsal, inputs, point)


def _talk(rehearsal: Rehearsal, *, stream: bool = True) -> Talk:
    return rehearsal.talk(stream=stream, model=rehearsal.model)


async def _said(
    rehearsal: Rehearsal, inputs: Sequence[str | ReplyInput], *, stream: bool = True, is_saved: bool = False
) -> list[str | None]:
    talk, texts = _talk(rehearsal, stream=stream), []
    for each in inputs:
        texts.append(await talk.ask_without_errors(each))
        if is_saved:
            # The model stays the same: it is not part of what is saved.
            other, model = _talk(rehearsal), talk.agent.model
            other.agent = other.agent.with_state(talk.saved_state())
            other.agent.model = model
            talk = other
    return texts


async def _left(rehearsal: Rehearsal, inputs: Sequence[str | ReplyInput]) -> None:
    """Leave the reply to the last of the inputs after its first item, after its second, and so on."""
    place, is_over = 1, False
    while not is_over and not rehearsal.problems:
        talk = _talk(rehearsal)
        for each in inputs[:-1]:
            await talk.ask(each)
        with anyio.move_on_after(rehearsal.patience) as limit:
            try:
                is_over = await _read(talk, inputs[-1], place)
            except Exception as error:  # noqa: BLE001  # whatever it is, it is what is wrong
                rehearsal.tell(told(error))
        if limit.cancelled_caught:
            rehearsal.tell(f"closing the reply took longer than {rehearsal.patience:g} seconds")
        place += 1


async def _read(talk: Talk, inputs: str | ReplyInput, most: int) -> bool:
    """Read that many items of a reply, and say whether there were no more."""
    async with talk.agent.reply_stream(inputs) as stream:
        async for _ in stream:
            most -= 1
            if not most:
                return False
    return True


async def _cancelled(rehearsal: Rehearsal, inputs: Sequence[str | ReplyInput], point: str) -> None:
    core, hang = Outcomes(), Hang(point)
    outcomes = Outcomes(core)
    layers = rehearsal.layers(outside=[outcomes], inside=[core])
    talk = rehearsal.talk(layers, on_point=hang.on_point, model=rehearsal.model)

    async def ask_all() -> None:
        for each in inputs:
            await talk.ask(each)

    await cancel_at(rehearsal, hang, outcomes, partial(ask_all))
