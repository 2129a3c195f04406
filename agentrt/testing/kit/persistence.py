"""Checks of a conversation that is saved and continues with another instance."""

from collections.abc import Sequence
from itertools import chain, zip_longest

import anyio

from agentrt.testing.harness.approve import approve
from agentrt.testing.kit.kit_agents import CONFIRM_QUESTION, PLAIN_QUESTION, TOOL_QUESTION
from agentrt.testing.kit.session import KitRun, differs_from_both

__all__ = ["save_and_load"]

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
