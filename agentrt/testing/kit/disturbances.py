"""Checks of replies that are left by their reader, cancelled, or fail."""

from collections.abc import Sequence
from functools import partial
from itertools import product
from typing import Unpack

from agentrt.errors import Transient
from agentrt.hooks import MiddlewareBase
from agentrt.state import AgentState
from agentrt.testing.kit.fault_points import cancel_at, raise_once_at
from agentrt.testing.kit.kit_agents import PLAIN_QUESTION, TOOL_QUESTION, TWO_TOOLS_QUESTION, AgentOptions
from agentrt.testing.kit.probe_layers import FaultLayer
from agentrt.testing.kit.session import KitConversation, KitRun, add_lints, blame_what_came_before

_EVERY_TOOL = "Please add and subtract."  # a tool whose errors become results, and one whose errors propagate
_MODEL_POINTS = ("before", "midway", "after")
_HOOKS_THAT_FAIL = ("on_reply", "on_reasoning", "on_acting", "on_model_call")
_COMPARABLE_TYPES = (bool, int, float, str, bytes, type(None))


class InjectedError(Exception):
    """An error of a type unknown to every middleware."""


async def leave_at_each_item(run: KitRun) -> None:
    """Leave a reply after its first item, after its second, and so on; the middleware's counters must come back."""
    middleware = run.factory()
    at_first = _simple_values(middleware)
    after_item: list[dict[str, str]] = []  # the middleware's attributes after each item of a reply that is not left
    conversation = KitConversation(run, run.make_agent([middleware]))
    await conversation.read_items(TWO_TOOLS_QUESTION, on_item=lambda: after_item.append(_simple_values(middleware)))
    at_end = _simple_values(middleware)
    for number in range(1, len(after_item)):
        middleware = run.factory()
        conversation = run.start(add_lints([middleware]))
        await conversation.read_items(TWO_TOOLS_QUESTION, number)
        for name, value in _simple_values(middleware).items():
            # A value that changes temporarily must also come back when the reader leaves.
            if value == after_item[number - 1].get(name) != at_first.get(name) == at_end.get(name):
                run.report(
                    f"its `{name}` is {value} after a reply that its reader left, and {at_end[name]} after one that "
                    f"came to its end: what brings it back belongs in a `finally`"
                )
        # The same instance, which must have released everything: a place in a limit, a lock.
        with blame_what_came_before("one whose reader had left"):
            await KitConversation(run, conversation.agent.with_state(AgentState())).ask_without_errors(PLAIN_QUESTION)
        if run.problems:
            break


def _simple_values(middleware: MiddlewareBase) -> dict[str, str]:
    values = getattr(middleware, "__dict__", {})
    return {name: repr(value) for name, value in values.items() if _is_simple(value)}


def _is_simple(value: object) -> bool:
    if isinstance(value, dict):
        return all(_is_simple(part) for item in value.items() for part in item)
    if isinstance(value, (list, tuple, set, frozenset)):
        return all(map(_is_simple, value))
    return isinstance(value, _COMPARABLE_TYPES)


async def cancel_at_each_point(run: KitRun) -> None:
    """Cancel a reply before, during and after the model's answer, and while a tool runs."""
    activity = run.activity
    for point, stream in product((*_MODEL_POINTS, "tool"), (True, False)):
        where = "while a tool runs" if point == "tool" else f"{point} the model's answer"
        run.activity = f"{activity} {where}"
        await cancel_at(
            run, point, partial(run.start, stream=stream), lambda conversation: conversation.ask(TOOL_QUESTION)
        )


async def fail_everywhere(run: KitRun) -> None:
    """Raise an error in the model, in a tool and in each hook of an inner layer, once each."""
    activity = run.activity
    points = (*_MODEL_POINTS, "tool", "strict tool")
    # A transient error, and a permanent one.
    for point, stream, make_error in product(points, (True, False), (InjectedError, Transient)):
        error = make_error("made to fail")
        where = f"the model raises {point} its answer" if point in _MODEL_POINTS else f"a {point} raises"
        run.activity = f"{activity}: {where}"
        await _fail_once(run, error, (), stream=stream, on_point=raise_once_at(point, error))
    for hook, is_midway in product(_HOOKS_THAT_FAIL, (False, True)):
        error = InjectedError("made to fail")
        run.activity = f"{activity}: a layer inside of it raises in {hook}, {'midway' if is_midway else 'at once'}"
        await _fail_once(run, error, [FaultLayer(hook, error, is_midway=is_midway)])


async def _fail_once(
    run: KitRun, injected: Exception, inside: Sequence[MiddlewareBase], **options: Unpack[AgentOptions]
) -> None:
    conversation = run.start(run.layers(inside=inside), **options)
    await conversation.ask(_EVERY_TOOL)
    run.check_error(injected, conversation.error)
    await conversation.ask(PLAIN_QUESTION)  # which may be refused, but must end


async def break_off_streams(run: KitRun) -> None:
    """Have the model's stream fail midway; a second attempt must not be shown after the text of the first."""
    for make_error in (InjectedError, Transient):
        alone = await run.start().ask(PLAIN_QUESTION) or ""
        conversation = run.start(on_point=raise_once_at("midway", make_error("made to fail")))
        text = await conversation.ask(PLAIN_QUESTION) or ""
        abandoned = text.removesuffix(alone)
        if alone and abandoned != text and abandoned and alone.startswith(abandoned):
            run.report(
                f"what an attempt said before it broke off, {abandoned!r}, stands before the whole answer: announce "
                f"that an attempt is given up, with agent.run.emit(ModelCallRetryEvent(...))"
            )
