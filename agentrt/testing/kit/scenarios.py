"""Everything that the kit does to a middleware, one function each."""

from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain, product, zip_longest
from typing import Any

import anyio
import anyio.lowlevel

from agentrt.agent import Agent
from agentrt.errors import ToolConfigError, Transient
from agentrt.event import ModelCallEndEvent
from agentrt.hooks import MiddlewareBase
from agentrt.message import TextBlock
from agentrt.model import ChatModelBase
from agentrt.state import AgentState, InMemoryStateStore
from agentrt.testing.harness.approve import approve
from agentrt.testing.harness.await_faults import try_every_suspension
from agentrt.testing.harness.fault_run import Scenario
from agentrt.testing.harness.tool_log import ToolLog
from agentrt.testing.kit.fault_points import Hang, cancel_at, raising
from agentrt.testing.kit.growth import replying_again_and_again
from agentrt.testing.kit.kit_agents import FORM, QUESTIONS, StageModel
from agentrt.testing.kit.observe_and_print import observing, printing
from agentrt.testing.kit.own_conversation import own_inputs, talking_as_told
from agentrt.testing.kit.probe_layers import Answers, Fails, HoldsBack, Outcomes, Rewrites
from agentrt.testing.kit.session import GivenUp, Rehearsal, Talk, between_lints, told
from agentrt.types import ToolOutput

__all__ = ["ORDEALS", "try_suspensions"]

_PLAIN = QUESTIONS["a plain question"]
_TOOL = QUESTIONS["a tool"]
_TOOLS = QUESTIONS["tools side by side"]
_BESIDE = ("add", "count")
_EVERY_TOOL = "Please add and subtract."
_POINTS = ("before", "midway", "after", "tool")
_STEPS_TO_MEET = 30
_SIMPLE = (bool, int, float, str, bytes, type(None))


class _MadeToFail(Exception):
    """An error that nobody knows."""


async def _alone(rehearsal: Rehearsal) -> None:
    for kind, question in QUESTIONS.items():
        rehearsal.doing = f"left alone, with {kind}"
        streamed, whole, again = [
            await rehearsal.talk(stream=stream).ask_without_errors(question) for stream in (True, False, True)
        ]
        if streamed == again != whole:
            rehearsal.tell(f"the answer is {streamed!r} when it streams, and {whole!r} when it does not")
        if rehearsal.problems:
            return
    rehearsal.doing = "left alone, with usage"
    for stream in (True, False):
        await _counted(rehearsal, stream)
    rehearsal.doing = "left alone, with structured output"
    for stream in (True, False):
        await rehearsal.talk(stream=stream).ask_without_errors(_PLAIN, FORM)
    rehearsal.doing = "left alone, with compression"
    talk = rehearsal.talk()
    for _ in range(2):  # the last question stays as it is
        await talk.ask_without_errors(_TOOL)
    await _compress(talk)
    await talk.ask_without_errors(_PLAIN)


async def _counted(rehearsal: Rehearsal, stream: bool) -> None:
    talk = rehearsal.talk(stream=stream)
    await talk.ask_without_errors(_PLAIN)
    ends = [event for event in talk.events if isinstance(event, ModelCallEndEvent)]
    if _asked_of(talk) and ends and not any(event.input_tokens and not event.estimated for event in ends):
        rehearsal.tell(
            "the model reported its usage, and MODEL_CALL_END has none of it: hand on the `usage` of a ChatResponse, "
            "as dataclasses.replace(response, content=...) does"
        )


async def _compress(talk: Talk) -> None:
    patience = talk.rehearsal.patience
    with anyio.move_on_after(patience) as limit:
        await talk.agent.compress_context()
    if limit.cancelled_caught:
        raise GivenUp(f"compressing the conversation was not over after {patience:g} seconds")


async def _left(rehearsal: Rehearsal) -> None:
    middleware = rehearsal.factory()
    began = _simple_values(middleware)
    meanwhile = await _read(rehearsal.agent([middleware]), middleware)
    ended = _simple_values(middleware)
    for place in range(1, len(meanwhile)):
        middleware = rehearsal.factory()
        talk = rehearsal.talk(between_lints([middleware]))
        await _leave(rehearsal, talk.agent, middleware, place)
        for name, stuck in _simple_values(middleware).items():
            if stuck == meanwhile[place - 1].get(name) != began.get(name) == ended.get(name):
                rehearsal.tell(
                    f"its `{name}` is {stuck} after a reply that its reader left, and {ended[name]} after one that "
                    f"came to its end: what brings it back belongs in a `finally`"
                )
        try:
            await Talk(rehearsal, talk.agent.with_state(AgentState())).ask_without_errors(_PLAIN)
        except GivenUp as error:
            raise GivenUp(
                f"{error}: it came after one whose reader had left, so give back in a `finally` what you take"
            ) from None
        if rehearsal.problems:
            break


async def _leave(rehearsal: Rehearsal, agent: Agent, middleware: MiddlewareBase, place: int) -> None:
    with anyio.move_on_after(rehearsal.patience) as limit:
        try:
            await _read(agent, middleware, place)
        except Exception as error:  # noqa: BLE001  # whatever it is, it is what is wrong
            rehearsal.tell(told(error))
    if limit.cancelled_caught:
        raise GivenUp(f"closing the reply took longer than {rehearsal.patience:g} seconds")


async def _read(agent: Agent, middleware: MiddlewareBase, most: int | None = None) -> list[dict[str, str]]:
    """Read that many items of a reply, and return what the middleware held after each."""
    held: list[dict[str, str]] = []
    async with agent.reply_stream(_TOOLS) as stream:
        async for _ in stream:
            held.append(_simple_values(middleware))
            if len(held) == most:
                break
    return held


def _simple_values(middleware: MiddlewareBase) -> dict[str, str]:
    return {name: repr(value) for name, value in getattr(middleware, "__dict__", {}).items() if _is_simple(value)}


def _is_simple(value: Any) -> bool:
    if isinstance(value, dict):
        return all(_is_simple(each) for pair in value.items() for each in pair)
    if isinstance(value, (list, tuple, set, frozenset)):
        return all(map(_is_simple, value))
    return isinstance(value, _SIMPLE)


async def _cancelled(rehearsal: Rehearsal) -> None:
    doing = rehearsal.doing
    for point, stream in product(_POINTS, (True, False)):
        where = "while a tool runs" if point == "tool" else f"{point} the model's answer"
        rehearsal.doing = f"{doing} {where}"
        await _cancelled_at(rehearsal, point, stream)


async def _cancelled_at(rehearsal: Rehearsal, point: str, stream: bool) -> None:
    core, hang = Outcomes(), Hang(point)
    outcomes = Outcomes(core)
    layers = rehearsal.layers([outcomes], [core])
    talk = rehearsal.talk(layers, stream=stream, on_point=hang.on_point)
    await cancel_at(rehearsal, hang, outcomes, partial(talk.ask, _TOOL))


async def _failing(rehearsal: Rehearsal) -> None:
    doing = rehearsal.doing
    for point, stream, kind in product((*_POINTS, "strict tool"), (True, False), (_MadeToFail, Transient)):
        error = kind("made to fail")
        where = f"the model raises {point} its answer" if point in _POINTS[:3] else f"a {point} raises"
        rehearsal.doing = f"{doing}: {where}"
        await _fails_once(rehearsal, error, (), stream=stream, on_point=raising(point, error))
    for hook, midway in product(("on_reply", "on_reasoning", "on_acting", "on_model_call"), (False, True)):
        error = _MadeToFail("made to fail")
        rehearsal.doing = f"{doing}: a layer inside of it raises in {hook}, {'midway' if midway else 'at once'}"
        await _fails_once(rehearsal, error, [Fails(hook, error, midway=midway)])
    rehearsal.doing = f"{doing}: the model's stream breaks off, and the question is a plain one"
    await _begun_again(rehearsal)


async def _begun_again(rehearsal: Rehearsal) -> None:
    for kind in (_MadeToFail, Transient):
        alone = await rehearsal.talk().ask(_PLAIN) or ""
        talk = rehearsal.talk(on_point=raising("midway", kind("made to fail")))
        text = await talk.ask(_PLAIN) or ""
        given_up = text.removesuffix(alone)
        if alone and given_up != text and given_up and alone.startswith(given_up):
            rehearsal.tell(
                f"what an attempt said before it broke off, {given_up!r}, stands before the whole answer: announce "
                f"that an attempt is given up, with agent.run.emit(ModelCallRetryEvent(...))"
            )


async def _fails_once(
    rehearsal: Rehearsal, injected: Exception, inside: Sequence[MiddlewareBase], **options: Any
) -> None:
    talk = rehearsal.talk(rehearsal.layers(inside=inside), **options)
    await talk.ask(_EVERY_TOOL)
    rehearsal.tell_what_became_of(injected, talk.error)
    await talk.ask(_PLAIN)  # which may be refused, but must be over


async def _held_back(rehearsal: Rehearsal) -> None:
    for question, stream in product(QUESTIONS.values(), (True, False)):
        held = rehearsal.talk(rehearsal.layers(inside=[HoldsBack()]), stream=stream)
        alone, again = (rehearsal.talk(stream=stream) for _ in range(2))
        text = await held.ask_without_errors(question)
        wanted = await alone.ask(question)
        if text != wanted == await again.ask(question):
            rehearsal.tell(f"the answer is {text!r} when items come later, and {wanted!r} when they do not")


async def _beside_answers(rehearsal: Rehearsal) -> None:
    doing = rehearsal.doing
    for kind, does in ((Answers, "answers by itself"), (Rewrites, "rewrites the answer")):
        for place, stream in product(("outside", "inside"), (True, False)):
            rehearsal.doing = f"{doing} that {does}, {place} of it"
            talk = rehearsal.talk(rehearsal.layers(**{place: [kind()]}), stream=stream)
            for question in (_PLAIN, _TOOL, QUESTIONS["a call to confirm"]):
                await talk.ask_without_errors(question)


async def _side_by_side(rehearsal: Rehearsal) -> None:
    together = await _results(rehearsal, _TOOLS)
    one, other = [(await _results(rehearsal, f"Please {name}.")).get(name) for name in _BESIDE]
    for name, own, others in ((_BESIDE[0], one, other), (_BESIDE[1], other, one)):
        if own != others == together.get(name):
            rehearsal.tell(
                f"the result of {name!r} is that of the call beside it, {others!r}, and {own!r} when it runs alone: "
                f"keep what belongs to one call in variables of the hook"
            )


async def _results(rehearsal: Rehearsal, question: str) -> dict[str, str]:
    talk = rehearsal.talk()
    await talk.ask_without_errors(question)
    blocks = [block for message in talk.agent.state.context for block in message.get_content_blocks("tool_result")]
    return {block.name: "".join(_texts(block.output)) for block in blocks}


def _texts(output: str | ToolOutput) -> Iterator[str]:
    yield from [output] if isinstance(output, str) else (block.text for block in output if isinstance(block, TextBlock))


async def _two_instances(rehearsal: Rehearsal) -> None:
    pair = [rehearsal.factory(), rehearsal.factory()]
    for each, key in zip(pair, ("first", "second"), strict=True):
        object.__setattr__(each, "key", key)  # it may be frozen
    try:
        talks = [rehearsal.talk(between_lints(pair), stream=stream) for stream in (True, False)]
    except ToolConfigError:
        return  # each brings a tool of the same name, so there can be no two of them
    for talk in talks:
        for question in (_TOOLS, _PLAIN):
            await talk.ask_without_errors(question)
        for key in talk.agent.state.middleware_data.keys() - {"first", "second"}:
            rehearsal.tell(
                f"two instances share the data {key!r} of the conversation: keep it in agent.state_of(self), "
                f"which has a place for each"
            )


async def _shared(rehearsal: Rehearsal) -> None:
    doing = rehearsal.doing
    questions = ["Is it a fine day?", "Please add, or is it a red, green or blue day?"]
    wanted = [[await rehearsal.talk().ask(each) for each in questions] for _ in range(2)]
    for how in ("two conversations of one agent", "two agents"):
        rehearsal.doing = f"{doing} {how}"
        middleware, together = rehearsal.factory(), _Together(len(questions))
        agents = [
            rehearsal.agent(between_lints([middleware]), name=name, on_point=together.on_point)
            for name in ("one", "two")
        ]
        if how != "two agents":
            agents = [agents[0], agents[0].with_state(AgentState())]
        rehearsal.trials += 2
        texts = await _ask_at_once([Talk(rehearsal, each) for each in agents], questions)
        for question, text, alone, again in zip(questions, texts, *wanted, strict=True):
            if text != alone == again:
                rehearsal.tell(
                    f"the answer to {question!r} is {text!r} while another one is given, and {alone!r} otherwise: "
                    f"keep what belongs to a reply in agent.run.scratch(self), and to a conversation in "
                    f"agent.state_of(self), not in self"
                )


class _Together:
    """Has the models wait for each other at their first point, for a while: one may wait for the other's end."""

    def __init__(self, number: int) -> None:
        self._missing = number

    async def on_point(self, point: str) -> None:
        await anyio.lowlevel.checkpoint()
        if point == "before":
            self._missing -= 1
            for _ in range(_STEPS_TO_MEET):
                if self._missing <= 0:
                    break
                await anyio.lowlevel.checkpoint()


async def _ask_at_once(talks: Sequence[Talk], questions: Sequence[str]) -> list[str | None]:
    texts: list[str | None] = [None] * len(talks)

    async def ask(place: int) -> None:
        try:
            texts[place] = await talks[place].ask_without_errors(questions[place])
        except GivenUp as error:
            talks[place].rehearsal.tell(str(error))

    async with anyio.create_task_group() as group:
        for place in range(len(talks)):
            group.start_soon(ask, place)
    return texts


async def _saved(rehearsal: Rehearsal) -> None:
    texts: list[list[str | None]] = []
    asked: list[list[list[str]]] = []
    for is_saved in (False, True, False):
        talk = rehearsal.talk()
        first = await talk.ask_without_errors(_TOOL)
        talk = await _elsewhere(rehearsal, talk) if is_saved else talk
        before = len(_asked_of(talk))
        texts.append([first, await talk.ask_without_errors(_PLAIN)])
        asked.append(_asked_of(talk)[before:])
    _compare(rehearsal, texts, "between two replies")
    _compare_requests(rehearsal, *asked)
    texts.clear()
    for is_saved in (False, True, False):
        talk = rehearsal.talk()
        with anyio.move_on_after(rehearsal.patience):
            await talk.agent.reply(QUESTIONS["a call to confirm"])
        if talk.agent.state.reply_context is not None:
            talk = await _elsewhere(rehearsal, talk) if is_saved else talk
            texts.append([await talk.ask_without_errors(approve(talk.agent.state))])
    _compare(rehearsal, texts, "while a call waited")


def _compare(rehearsal: Rehearsal, texts: Sequence[list[str | None]], when: str) -> None:
    if len(texts) == 3 and texts[0] == texts[2] != texts[1]:
        rehearsal.tell(
            f"saved and loaded {when}, the last answer is {texts[1][-1]!r}, and {texts[0][-1]!r} without that: keep "
            f"what belongs to the conversation in agent.state_of(self)"
        )


def _asked_of(talk: Talk) -> list[list[str]]:
    model = talk.agent.model
    return model.asked if isinstance(model, StageModel) else []


def _compare_requests(
    rehearsal: Rehearsal, before: list[list[str]], saved: list[list[str]], after: list[list[str]]
) -> None:
    if not before == after != saved:
        return
    one, other = [list(chain.from_iterable(each)) for each in (saved, before)]
    differing = next(((a, b) for a, b in zip_longest(one, other, fillvalue="nothing") if a != b), ("", ""))
    rehearsal.tell(
        f"saved and loaded between two replies, the model is asked {differing[0]!r:.300}, and without that "
        f"{differing[1]!r:.300}: keep what belongs to the conversation in agent.state_of(self)"
    )


async def _elsewhere(rehearsal: Rehearsal, talk: Talk) -> Talk:
    """Return the conversation as another process would go on with it."""
    other = rehearsal.talk()
    other.agent = other.agent.with_state(talk.saved_state())
    return other


ORDEALS: dict[str, Callable[[Rehearsal], Awaitable[None]]] = {
    "left alone": _alone,
    "left by its reader": _left,
    "cancelled": _cancelled,
    "something fails": _failing,
    "items come later": _held_back,
    "beside a layer": _beside_answers,
    "tools side by side": _side_by_side,
    "two instances in one agent": _two_instances,
    "one instance in": _shared,
    "saved and loaded": _saved,
    "many replies": replying_again_and_again,
    "in the conversation that was given": talking_as_told,
    "observing": observing,
    "printing": printing,
}
"""What is done to a middleware; the first leaves it alone."""


async def try_suspensions(rehearsal: Rehearsal, faults: Iterable[str]) -> None:
    """Try the faults at every suspension of some conversations."""
    faults = tuple(faults)
    plain, tools, waiting = _PLAIN, _TOOLS, QUESTIONS["calls to confirm and to execute outside"]
    own = tuple(own_inputs(rehearsal))
    for inputs, schema, stream, model in (
        ((plain, tools), None, True, None),
        ((waiting,), None, False, None),
        ((plain,), FORM, True, None),
        *([(own, None, True, rehearsal.model)] if own else []),
    ):
        rehearsal.doing = f"a fault at every suspension of {' '.join(map(str, inputs))!r:.200}"
        make = partial(_with_a_store, rehearsal, stream, model)
        try:
            report = await try_every_suspension(Scenario(make, inputs, schema, approve, any_answer=True), faults)
        except AssertionError as error:
            rehearsal.tell(*str(error).splitlines())
            return
        rehearsal.trials += sum(report.runs.values())


def _with_a_store(rehearsal: Rehearsal, stream: bool, model: Callable[[], ChatModelBase] | None, log: ToolLog) -> Agent:
    async def on_point(point: str) -> None:
        # That a tool runs is told, but not logged: a layer may answer in its place.
        if point == "tool" and log.on_run is not None:
            log.on_run("a tool")
        await anyio.lowlevel.checkpoint()

    layers, store = [rehearsal.factory()], InMemoryStateStore()
    return rehearsal.agent(layers, stream=stream, on_point=on_point, state_store=store, model=model)
