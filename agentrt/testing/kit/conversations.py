"""Checks of whole conversations: one that continues with another instance, and that of the middleware's author."""

from collections.abc import Sequence
from functools import partial
from itertools import chain, zip_longest

import anyio

from agentrt.hooks import ReplyInput
from agentrt.testing.harness.approve import approve
from agentrt.testing.kit.fault_points import cancel_at
from agentrt.testing.kit.kit_agents import CONFIRM_QUESTION, PLAIN_QUESTION, TOOL_QUESTION
from agentrt.testing.kit.session import KitConversation, KitRun, differs_from_both

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


_SAVED_OR_NOT = (False, True, False)  # without saving before and after, since answers may vary by themselves


async def save_and_load(run: KitRun) -> None:
    """Save and load a conversation between two replies, and while a call waits; compare it with one that is not."""
    texts: list[list[str | None]] = []
    requests: list[list[str]] = []
    for is_saved in _SAVED_OR_NOT:
        conversation = run.start()
        first = await conversation.ask_without_errors(TOOL_QUESTION)
        if is_saved:
            conversation = conversation.resume_elsewhere()
        earlier = len(conversation.requests)
        texts.append([first, await conversation.ask_without_errors(PLAIN_QUESTION)])
        # Only the requests of the second reply, in which the instances differ.
        requests.append(list(chain.from_iterable(conversation.requests[earlier:])))
    _compare_answers(run, texts, "between two replies")
    if differs_from_both(requests[1], requests[0], requests[2]):
        pairs = zip_longest(requests[1], requests[0], fillvalue="nothing")
        difference = next(((words, other) for words, other in pairs if words != other), ("", ""))
        run.report(
            f"saved and loaded between two replies, the model is asked {difference[0]!r:.300}, and without that "
            f"{difference[1]!r:.300}: keep what belongs to the conversation in agent.state_of(self)"
        )
    texts.clear()
    for is_saved in _SAVED_OR_NOT:
        conversation = run.start()
        # Not with `ask`, which would answer the call and so end the wait.
        with anyio.move_on_after(run.patience):
            await conversation.agent.reply(CONFIRM_QUESTION)
        if conversation.agent.state.reply_context is not None:  # a layer may have decided by itself
            if is_saved:
                conversation = conversation.resume_elsewhere()
            texts.append([await conversation.ask_without_errors(approve(conversation.agent.state))])
    _compare_answers(run, texts, "while a call waited")


def _compare_answers(run: KitRun, texts: Sequence[list[str | None]], when: str) -> None:
    if len(texts) == len(_SAVED_OR_NOT) and differs_from_both(texts[1], texts[0], texts[2]):
        run.report(
            f"saved and loaded {when}, the last answer is {texts[1][-1]!r}, and {texts[0][-1]!r} without that: keep "
            f"what belongs to the conversation in agent.state_of(self)"
        )
