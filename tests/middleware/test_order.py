"""The order of the middlewares that ship: what must stand inside of what, checked, with a reason that is shown."""

import json
import runpy
from itertools import combinations, product
from pathlib import Path
from typing import Any

import pytest

import agentrt.middleware
from agentrt import Agent
from agentrt._runtime.chain.order import must_wrap, reason_to_wrap
from agentrt.errors import MiddlewareConfigError
from agentrt.hooks import HOOKS, arrange
from agentrt.middleware import AgentHooksMiddleware, MiddlewareBase
from agentrt.model import ScriptedChatModel
from tests.middleware.shipped import SHIPPED

BY_NAME = {cls.__name__.removesuffix("Middleware"): make() for cls, make in SHIPPED.items()}


def rows(*names: str) -> list[list[MiddlewareBase]]:
    return [[BY_NAME[name] for name in row.split()] for row in names]


# From outermost to innermost. Those of one row may stand in any order.
ROWS = rows(
    "Tracing Logging",
    "PlanNotebook Todo RAG LongTermMemory Skills",
    "DynamicContext KeepLast TrimToolResults ToolSelector Compression ModelRouter ToolResultLimit",
    "Guardrail",
    "Budget",
    "HumanApproval Redaction",
    "InformationFlow",
    "Cache",
    "ModelFallback Refusal",
    "Retry",
    "CircuitBreaker",
    "RateLimit",
    "Timeout",
)
# Those that wrap only the running of tools have a shorter order of their own.
TOOL_ROWS = [*ROWS[:7], *rows("ToolError", "ToolRetry", "ToolEmulator")]
OUTERMOST = {"AgentHooksMiddleware"}  # outside of all others, by its position
ANYWHERE = {"HookMiddleware", "LayerTimes", "TimingMiddleware", "UsageMiddleware"}


def hooks_of(layer: MiddlewareBase) -> set[str]:
    return {hook.name for hook in HOOKS if getattr(type(layer), hook.name) is not getattr(MiddlewareBase, hook.name)}


def pairs(rows: list[list[MiddlewareBase]]) -> list[tuple[MiddlewareBase, MiddlewareBase]]:
    """Return each two of different rows that meet in a hook, the outer one first."""
    found = [pair for outer, inner in combinations(rows, 2) for pair in product(outer, inner)]
    return [(outer, inner) for outer, inner in found if hooks_of(outer) & hooks_of(inner)]


FREE = {
    ("CacheMiddleware", "ToolErrorMiddleware"),  # only results of tools that did not fail are kept
    ("HumanApprovalMiddleware", "InformationFlowMiddleware"),  # each asks, and neither answers the other
    ("SkillsMiddleware", "HumanApprovalMiddleware"),  # likewise, and a grant answers no question of theirs
    ("SkillsMiddleware", "InformationFlowMiddleware"),
    ("SkillsMiddleware", "DynamicContextMiddleware"),  # their sections are in list order
}
CONSTRAINED = {
    names: pair
    for pair in [*pairs(ROWS), *pairs(TOOL_ROWS)]
    if (names := (type(pair[0]).__name__, type(pair[1]).__name__)) not in FREE
}
ALL = list({id(layer): layer for row in [*ROWS, *TOOL_ROWS] for layer in row}.values())


def agent_of(*layers: MiddlewareBase) -> Agent:
    return Agent("a", model=ScriptedChatModel([]), middlewares=list(layers))


def test_two_that_meet_in_a_hook_have_one_order() -> None:
    for outer, inner in CONSTRAINED.values():
        agent_of(outer, inner)
        with pytest.raises(MiddlewareConfigError) as refused:
            agent_of(inner, outer)
        reason = reason_to_wrap(outer, inner)
        assert reason, (outer, inner)
        assert f"({reason})" in str(refused.value)
        assert "put " in str(refused.value)


def test_explain_gives_the_reason_at_both_layers() -> None:
    for names, (outer, inner) in CONSTRAINED.items():
        reason = reason_to_wrap(outer, inner)
        description = json.loads(agent_of(outer, inner).explain("json"))
        meeting = [hook["layers"] for hook in description["hooks"] if len(hook["layers"]) == 2]
        assert meeting, names
        for layers in meeting:
            assert layers[0]["because"] == [f"wraps {names[1]}: {reason}"]
            assert layers[1]["because"] == [f"inside {names[0]}: {reason}"]


EXAMPLE = Path(__file__).parents[2] / "examples" / "production_stack.py"
STACK: list[MiddlewareBase] = runpy.run_path(str(EXAMPLE))["layers"]()


@pytest.mark.parametrize("places", list(combinations(range(len(STACK)), 2)), ids=str)
def test_no_two_of_the_example_can_be_swapped_against_an_order(places: tuple[int, int]) -> None:
    first, second = places
    swapped = list(STACK)
    swapped[first], swapped[second] = STACK[second], STACK[first]
    broken = [
        (outer, inner)
        for outer, inner in combinations(STACK, 2)
        if must_wrap(outer, inner) and swapped.index(outer) > swapped.index(inner)
    ]
    if not broken:
        agent_of(*swapped)
        assert not must_wrap(STACK[first], STACK[second])
        return
    with pytest.raises(MiddlewareConfigError) as refused:
        agent_of(*swapped)
    text = str(refused.value)
    for outer, inner in broken:
        stated = f"{type(outer).__name__} must wrap {type(inner).__name__} ("
        assert stated in text or f"{type(inner).__name__} must be wrapped by {type(outer).__name__} (" in text
    right = arrange(swapped)
    agent_of(*right)
    order = ", ".join(type(layer).__name__ for layer in right)
    assert text.endswith(
        f"agentrt.middleware.arrange(middlewares) returns the correct order, write: middlewares=[{order}]"
    )


def test_only_approval_has_more_than_one_place_in_the_example() -> None:
    free = {
        (type(outer).__name__, type(inner).__name__)
        for outer, inner in combinations(STACK, 2)
        if not must_wrap(outer, inner)
    }
    # A middleware of permissions or of tools alone meets only those of its kind.
    assert all({"HumanApprovalMiddleware", "ToolResultLimitMiddleware"} & set(pair) for pair in free)


def test_no_order_is_stated_from_both_sides() -> None:
    for outer, inner in product(ALL, ALL):
        assert not (must_wrap(outer, inner) and must_wrap(inner, outer))
        assert type(inner).__name__ not in outer.wraps or type(outer).__name__ not in inner.wrapped_by


def test_every_order_has_a_reason() -> None:
    for outer, inner in product(ALL, ALL):
        assert bool(reason_to_wrap(outer, inner)) == must_wrap(outer, inner)


def test_the_outermost_stands_outside_of_all_others() -> None:
    for layer in ALL:
        with pytest.raises(MiddlewareConfigError, match="AgentHooksMiddleware"):
            agent_of(layer, AgentHooksMiddleware())


def test_every_middleware_that_ships_has_a_place() -> None:
    shipped: set[Any] = {getattr(agentrt.middleware, name) for name in agentrt.middleware.__all__}
    classes = {cls for cls in shipped if isinstance(cls, type) and issubclass(cls, MiddlewareBase)} - {MiddlewareBase}
    assert {cls.__name__ for cls in classes} - ANYWHERE - OUTERMOST == {type(layer).__name__ for layer in ALL}
