"""Checks with concurrent tools, two instances in one agent, and one instance in two agents."""

from collections.abc import Sequence
from copy import copy

import anyio
import anyio.lowlevel

from agentrt.errors import ToolConfigError
from agentrt.event import AgentEvent
from agentrt.hooks import MiddlewareBase
from agentrt.message import TextBlock, UserMsg
from agentrt.state import AgentState
from agentrt.testing.harness.full_text import full_text
from agentrt.testing.kit.kit_agents import PLAIN_QUESTION, TOOL_QUESTION, TWO_TOOLS_QUESTION
from agentrt.testing.kit.probe_layers import ForeignEventsLayer
from agentrt.testing.kit.session import KitConversation, KitRun, TimedOut, add_lints, differs_from_both

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
        results[block.name] = "".join(part.text for part in block.blocks if isinstance(part, TextBlock))
    return results


async def put_two_in_one_agent(run: KitRun) -> None:
    """Give one agent two instances with different keys; each must find its own data."""
    pair = [run.factory(), run.factory()]
    for middleware, key in zip(pair, ("first", "second"), strict=True):
        object.__setattr__(middleware, "key", key)  # it may be frozen
    try:
        conversations = [run.start(add_lints(pair), stream=stream) for stream in (True, False)]
    except ToolConfigError:
        return  # both bring a tool of the same name, so two are not possible
    for conversation in conversations:
        for question in (TWO_TOOLS_QUESTION, PLAIN_QUESTION):
            await conversation.ask_without_errors(question)
        # Each layer stores its data under its own key, so any other key bypassed `state_of`.
        agent = conversation.agent
        for key in agent.state.middleware_data.keys() - set(map(agent.chains.name_of, agent.middlewares)):
            run.report(
                f"two instances share the data {key!r} of the conversation: keep it in agent.state_of(self), "
                f"which has a place for each"
            )


async def share_one_instance(run: KitRun) -> None:
    """Have one instance serve two conversations, and then two agents, that reply at the same time."""
    activity = run.activity
    # Different questions, so that an answer to the wrong conversation is noticed.
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
    """Makes the models meet at their first point, with a limit: one may wait for the other to end."""

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


async def pass_foreign_events(run: KitRun) -> None:
    """Send events of another reply through, such as a sub-agent's; the middleware must ignore them."""
    for stream in (True, False):
        alone, again = [await _leave_traces(run, [], stream) for _ in range(2)]
        foreign = ForeignEventsLayer()
        traces = await _leave_traces(run, [foreign], stream, foreign)
        if not foreign.sent:
            return  # the middleware answers by itself
        for name, trace in traces.items():
            if differs_from_both(trace, alone.get(name), again.get(name)):
                run.report(
                    f"{name} is {trace} where events of another reply pass through, and {alone.get(name)} otherwise: "
                    f"count, log and end nothing for an event whose reply_id is not agent.run.id"
                )
        if run.problems:
            return


async def _leave_traces(
    run: KitRun, inside: Sequence[MiddlewareBase], stream: bool, foreign: ForeignEventsLayer | None = None
) -> dict[str, str]:
    """Return the traces of a conversation: the answer, the middleware's data and the types of the reply's events."""
    middleware = run.factory()
    conversation = run.start(add_lints([middleware], inside=inside), stream=stream)
    # With our own id, since the middleware may keep data under a digest of it.
    answer = await conversation.ask_without_errors(UserMsg("user", TOOL_QUESTION, id="question"))
    events = conversation.events
    if foreign is not None:
        left = [event for event in events if event.reply_id == foreign.reply_id]
        if list(map(_without_number, left)) != list(map(_without_number, foreign.sent)):
            run.report(
                f"of the {len(foreign.sent)} events of another reply, {len(left)} leave it, or leave it in another "
                f"order or changed: pass on every event as it is, whose reply_id is not agent.run.id"
            )
    reply_id = conversation.agent.reply_id or ""
    own = [event.type for event in events if foreign is None or event.reply_id != foreign.reply_id]
    traces = {"the answer": repr(answer), "the order of the reply's events": repr(own)}
    kept = {"self": getattr(middleware, "__dict__", {}), "the conversation": conversation.agent.state.middleware_data}
    for where, data in kept.items():
        # Without the reply's id, which may be a key or a value, and is new each time.
        leaves = [(path.replace(reply_id, ""), text.replace(reply_id, "")) for path, text in _leaves(data, "")]
        traces |= {f"its data {path} of {where}": text for path, text in leaves}
    return traces


def _without_number(event: AgentEvent) -> str:
    event = copy(event)
    event.seq = 0  # which differs from stream to stream
    return full_text(event)


def _leaves(value: object, path: str) -> list[tuple[str, str]]:
    """Return the plain values in the data, as text, by their paths."""
    if isinstance(value, dict):
        return [leaf for name, part in value.items() for leaf in _leaves(part, f"{path}[{name!r}]")]
    if isinstance(value, (list, tuple)):
        return [leaf for index, part in enumerate(value) for leaf in _leaves(part, f"{path}[{index}]")]
    return [(path, repr(value))] if isinstance(value, (bool, int, float, str, type(None))) else []
