"""Checks a middleware in a conversation, and with a model, of its author."""

from collections.abc import Sequence
from functools import partial

from agentrt.hooks import ReplyInput
from agentrt.testing.kit.fault_points import cancel_at
from agentrt.testing.kit.kit_agents import PLAIN_QUESTION, TOOL_QUESTION
from agentrt.testing.kit.session import KitConversation, KitRun, differs_from_both

__all__ = ["hold_own_conversation", "inputs_of_author"]

_Inputs = Sequence[str | ReplyInput]


def inputs_of_author(run: KitRun) -> _Inputs:
    """Return the inputs of the author's conversation; none if neither inputs nor a model were given."""
    # With a model alone, the input does not matter: the words that trigger the middleware are the model's.
    if run.inputs or run.model is None:
        return run.inputs
    return (PLAIN_QUESTION, TOOL_QUESTION)


async def hold_own_conversation(run: KitRun) -> None:
    """Run the conversation undisturbed, left at each item, cancelled, and saved and loaded after each input."""
    inputs = inputs_of_author(run)
    if not inputs:
        return
    activity = run.activity
    streamed, whole, again = [await _ask_all(run, inputs, stream=stream) for stream in (True, False, True)]
    if differs_from_both(whole, streamed, again):
        run.report(f"the answers are {streamed!r} when they stream, and {whole!r} when they do not")
    if run.problems:
        return  # a problem without a fault would be reported again and again
    run.activity = f"{activity}, left by its reader"
    for index, last in enumerate(inputs):
        items, has_ended = 0, False
        while not has_ended and not run.problems:  # after the first item of the last reply, after the second, and so on
            items += 1
            conversation = run.start(model=run.model)
            for question in inputs[:index]:
                await conversation.ask(question)
            has_ended = await conversation.read_items(last, items)
    run.activity = f"{activity}, saved and loaded"
    saved = await _ask_all(run, inputs, is_saved=True)
    if differs_from_both(saved, streamed, again):
        run.report(
            f"saved and loaded after each reply, the answers are {saved!r}, and {streamed!r} without that: keep what "
            f"belongs to the conversation in agent.state_of(self)"
        )

    async def ask(conversation: KitConversation) -> None:
        for question in inputs:
            await conversation.ask(question)

    for point in ("before", "midway", "after"):
        run.activity = f"{activity}, cancelled {point} the model's answer"
        await cancel_at(run, point, partial(run.start, model=run.model), ask)


async def _ask_all(run: KitRun, inputs: _Inputs, *, stream: bool = True, is_saved: bool = False) -> list[str | None]:
    conversation = run.start(stream=stream, model=run.model)
    texts: list[str | None] = []
    for question in inputs:
        texts.append(await conversation.ask_without_errors(question))
        if is_saved:
            model = conversation.agent.model
            conversation = conversation.resume_elsewhere(model=run.model)
            conversation.agent.model = model  # which is not part of what is saved
    return texts
