"""What must hold when tools run side by side, instances share an agent, and agents share an instance."""

from collections.abc import Sequence

import anyio
import anyio.lowlevel

from agentrt.errors import ToolConfigError
from agentrt.message import TextBlock
from agentrt.state import AgentState
from agentrt.testing.kit.kit_agents import PLAIN_QUESTION, TWO_TOOLS_QUESTION
from agentrt.testing.kit.session import KitConversation, KitRun, TimedOut, add_lints, differs_from_both

__all__ = ["put_two_in_one_agent", "run_tools_side_by_side", "share_one_instance"]

_TOOL_NAMES = ("add", "count")
_STEPS_TO_MEET = 30  # of the event loop


async def run_tools_side_by_side(run: KitRun) -> None:
    """Compare the results of two calls that run at the same time with those of the same calls alone."""
    together = await _find_results(run, TWO_TOOLS_QUESTION)
    alone = {name: (await _find_results(run, f"Please {name}.")).get(name) for name in _TOOL_NAMES}
    for name, other in (_TOOL_NAMES, _TOOL_NAMES[::-1]):
        if alone[name] != alone[other] == together.get(name):
            run.report(
                f"the result of {name!r} is that of the call beside it, {alone[other]!r}, and {alone[name]!r} when it "
                f"runs alone: keep what belongs to one call in variables of the hook"
            )


async def _find_results(run: KitRun, question: str) -> dict[str, str]:
    conversation = run.start()
    await conversation.ask_without_errors(question)
    context = conversation.agent.state.context
    blocks = [block for message in context for block in message.get_content_blocks("tool_result")]
    results: dict[str, str] = {}
    for block in blocks:
        parts = [TextBlock(block.output)] if isinstance(block.output, str) else block.output
        results[block.name] = "".join(part.text for part in parts if isinstance(part, TextBlock))
    return results


async def put_two_in_one_agent(run: KitRun) -> None:
    """Give one agent two instances with keys of their own; each must find data of its own."""
    pair = [run.factory(), run.factory()]
    for middleware, key in zip(pair, ("first", "second"), strict=True):
        object.__setattr__(middleware, "key", key)  # it may be frozen
    try:
        conversations = [run.start(add_lints(pair), stream=stream) for stream in (True, False)]
    except ToolConfigError:
        return  # each brings a tool of the same name, so there can be no two of them
    for conversation in conversations:
        for question in (TWO_TOOLS_QUESTION, PLAIN_QUESTION):
            await conversation.ask_without_errors(question)
        # Each has stored its data under its own key, so any other key was written past `state_of`.
        for key in conversation.agent.state.middleware_data.keys() - {"first", "second"}:
            run.report(
                f"two instances share the data {key!r} of the conversation: keep it in agent.state_of(self), "
                f"which has a place for each"
            )


async def share_one_instance(run: KitRun) -> None:
    """Have one instance serve two conversations, and then two agents, that reply at the same time."""
    activity = run.activity
    # Different ones, so that an answer that went to the wrong conversation is noticed.
    questions = ["Is it a fine day?", "Please add, or is it a red, green or blue day?"]
    alone, again = [[await run.start().ask(question) for question in questions] for _ in range(2)]
    for is_one_agent in (True, False):
        run.activity = f"{activity} {'two conversations of one agent' if is_one_agent else 'two agents'}"
        middleware, meeting = run.factory(), _Meeting(len(questions))
        agents = [
            run.make_agent(add_lints([middleware]), name=name, on_point=meeting.on_point) for name in ("one", "two")
        ]
        if is_one_agent:
            agents = [agents[0], agents[0].with_state(AgentState())]
        run.conversations += 2
        texts = await _ask_together([KitConversation(run, agent) for agent in agents], questions)
        for question, text, alone_text, again_text in zip(questions, texts, alone, again, strict=True):
            if differs_from_both(text, alone_text, again_text):
                run.report(
                    f"the answer to {question!r} is {text!r} while another one is given, and {alone_text!r} otherwise: "
                    f"keep what belongs to a reply in agent.run.scratch(self), and to a conversation in "
                    f"agent.state_of(self), not in self"
                )


class _Meeting:
    """Has the models wait for each other at their first point, for a while: one may wait for the other's end."""

    def __init__(self, participants: int) -> None:
        self._missing = participants

    async def on_point(self, point: str) -> None:
        await anyio.lowlevel.checkpoint()
        if point == "before":
            self._missing -= 1
            for _ in range(_STEPS_TO_MEET):
                if self._missing <= 0:
                    break
                await anyio.lowlevel.checkpoint()


async def _ask_together(conversations: Sequence[KitConversation], questions: Sequence[str]) -> list[str | None]:
    texts: list[str | None] = [None] * len(conversations)

    async def ask(index: int) -> None:
        conversation = conversations[index]
        try:
            texts[index] = await conversation.ask_without_errors(questions[index])
        except TimedOut as error:
            conversation.run.report(str(error))

    async with anyio.create_task_group() as group:
        for index in range(len(conversations)):
            group.start_soon(ask, index)
    return texts
