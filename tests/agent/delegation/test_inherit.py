"""Which layers an agent has of the one that it works for, and where they stand among its own."""

from collections.abc import Sequence
from itertools import permutations
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from agentrt import Agent, MiddlewareBase
from agentrt._runtime.chain.check import check_middlewares
from agentrt.agent.delegation.inherit import bind_child, layers_to_inherit, merge_layers
from agentrt.errors import ConfigError, MiddlewareConfigError
from agentrt.hooks import HOOKS
from agentrt.middleware import (
    CircuitBreakerMiddleware,
    HumanApprovalMiddleware,
    LoggingMiddleware,
    RateLimitMiddleware,
    RedactionMiddleware,
    RetryMiddleware,
    TimeoutMiddleware,
    TracingMiddleware,
    UsageMiddleware,
)
from agentrt.model import ScriptedChatModel
from agentrt.tool import FunctionTool
from tests.loop.helpers import add

LETTERS = "ABCDEF"
Rules = dict[str, tuple[str, set[str], set[str]]]


def layer_classes(rules: Rules) -> dict[str, type[MiddlewareBase]]:
    """Return a class for each letter, which says where it must stand."""
    return {
        letter: type(
            letter,
            (MiddlewareBase,),
            {"position": position or None, "wraps": tuple(wraps), "wrapped_by": tuple(wrapped_by), "inherited": True},
        )
        for letter, (position, wraps, wrapped_by) in rules.items()
    }


def is_valid(order: Sequence[MiddlewareBase], *lists: Sequence[MiddlewareBase]) -> bool:
    """Say whether the order keeps that of each list, and the checks of every agent accept it."""
    places = {id(layer): place for place, layer in enumerate(order)}
    if any(
        [places[id(layer)] for layer in layers] != sorted(places[id(layer)] for layer in layers) for layers in lists
    ):
        return False
    try:
        check_middlewares(order, MiddlewareBase, HOOKS)
    except MiddlewareConfigError:
        return False
    return True


letters = st.sampled_from(LETTERS)
rule = st.tuples(
    st.sampled_from(["", "", "", "outermost", "innermost"]), st.sets(letters, max_size=2), st.sets(letters, max_size=2)
)


@settings(max_examples=100, deadline=None)
@given(
    rules=st.fixed_dictionaries(dict.fromkeys(LETTERS, rule)),
    order=st.permutations(LETTERS),
    size=st.integers(0, 6),
    parent_size=st.integers(0, 6),
    shared=st.sets(letters, max_size=1),
)
@example(rules=dict.fromkeys(LETTERS, ("", set(), set())), order=list("ABCDEF"), size=6, parent_size=3, shared={"A"})
def test_merged_layers_are_in_an_order_whenever_one_exists(
    rules: Rules, order: list[str], size: int, parent_size: int, shared: set[str]
) -> None:
    classes = layer_classes(rules)
    layers = {letter: classes[letter]() for letter in LETTERS}
    names = order[:size]
    inherited = [layers[name] for name in names[:parent_size]]
    own = [layers[name] for name in names[parent_size:]]
    own += [layers[name] for name in shared if layers[name] in inherited]  # in both lists
    union = list({id(layer): layer for layer in (*inherited, *own)}.values())
    valid = [list(order) for order in permutations(union) if is_valid(order, inherited, own)]
    try:
        merged = merge_layers(inherited, own)
    except ConfigError:
        assert not valid
        return
    assert merged in valid

    def places(order: Sequence[MiddlewareBase]) -> list[int]:
        return [order.index(layer) for layer in inherited]

    assert places(merged) == min(map(places, valid))


# What is inherited


class Own(MiddlewareBase):
    async def on_system_prompt(self, agent: Any, current_prompt: str) -> str:
        return current_prompt


class Policy(Own):
    """A layer that reaches into children, and brings a tool."""

    inherited = True

    def list_tools(self) -> list[Any]:
        return [FunctionTool(add, name="policy")]


class WrapsPolicy(Own):
    wraps = (Policy,)


class InsideWrapsPolicy(Own):
    wrapped_by = (WrapsPolicy,)


class NeedsOwn(Policy):
    requires = (WrapsPolicy,)


def agent(name: str, *middlewares: MiddlewareBase, **options: Any) -> Agent:
    return Agent(name, model=ScriptedChatModel([]), middlewares=list(middlewares), **options)


def names_of(layers: Sequence[object]) -> list[str]:
    return [type(layer).__name__ for layer in layers]


SHIPPED_POLICIES = [
    LoggingMiddleware,
    TracingMiddleware,
    UsageMiddleware,
    RateLimitMiddleware,
    CircuitBreakerMiddleware,
]


def test_policies_that_ship_are_inherited_and_the_others_are_not():
    assert all(cls.inherited for cls in (*SHIPPED_POLICIES, RedactionMiddleware, HumanApprovalMiddleware))
    assert not any(cls.inherited for cls in (MiddlewareBase, RetryMiddleware, TimeoutMiddleware))


def test_a_rate_limit_of_the_parent_fits_a_retry_of_the_child():
    boss = agent("boss", TracingMiddleware(), UsageMiddleware(), RateLimitMiddleware(), Own())
    child = agent("child", RetryMiddleware(), TimeoutMiddleware(total=9))
    bound = bind_child(child, boss)
    assert names_of(bound.middlewares) == [
        "TracingMiddleware",
        "UsageMiddleware",
        "RetryMiddleware",
        "RateLimitMiddleware",
        "TimeoutMiddleware",
    ]
    assert set(bound.lineage.inherited) == set(boss.middlewares[:3])
    assert child.middlewares == bound.middlewares[2:3] + bound.middlewares[4:]


@pytest.mark.parametrize("policies", [SHIPPED_POLICIES, SHIPPED_POLICIES[::-1], SHIPPED_POLICIES[2:]])
def test_all_policies_fit_a_child_with_all_the_others(policies: list[Any]):
    order = {TracingMiddleware: 0, LoggingMiddleware: 1, UsageMiddleware: 2, CircuitBreakerMiddleware: 3}
    boss = agent("boss", *[cls() for cls in sorted(policies, key=lambda cls: order.get(cls, 9))])
    child = agent("child", RetryMiddleware(), TimeoutMiddleware(total=9))
    bound = bind_child(child, boss)
    assert {*boss.middlewares, *child.middlewares} == {*bound.middlewares}


def test_inherited_layers_bring_no_tools():
    boss = agent("boss", Policy())
    bound = bind_child(agent("child", tools=[add]), boss)
    assert bound.toolkit.names() == ["add"]
    assert boss.toolkit.names() == ["policy"]


def test_a_layer_of_both_stands_there_once_with_its_tools():
    policy = Policy()
    boss, child = agent("boss", policy), agent("child", policy)
    bound = bind_child(child, boss)
    assert bound.middlewares == (policy,)
    assert bound.toolkit.names() == ["policy"]
    assert bound.lineage.inherited == ()


@pytest.mark.parametrize(
    ("inherit", "expected"),
    [
        (True, ["Policy"]),
        (False, []),
        ([], []),
        ([Own], ["Own", "Policy"]),
        ([Policy], ["Policy"]),
        ((Policy, Own), ["Own", "Policy"]),
        ([MiddlewareBase], ["Own", "Policy"]),
    ],
)
def test_a_child_has_the_layers_that_inherit_says(inherit: Any, expected: list[str]):
    layers = [Own(), Policy()]
    assert names_of(layers_to_inherit(layers, inherit)) == expected
    assert names_of(bind_child(agent("child"), agent("boss", *layers), inherit).middlewares) == expected


@pytest.mark.parametrize(
    ("inherit", "says"),
    [
        (["Policy"], "holds 'Policy'"),
        ([Policy()], "holds Policy"),
        ([int], "holds <class 'int'>"),
        ("Policy", "holds 'Policy'"),
        (None, "holds None"),
        (1, "holds 1"),
    ],
)
def test_an_inherit_that_is_no_choice_of_classes_is_refused(inherit: Any, says: str):
    with pytest.raises(ConfigError, match=r"inherit=.* of 'child' must be True, False or a list") as caught:
        agent("child").as_tool("Answers.", inherit=inherit)
    assert says in str(caught.value)


def test_a_class_of_no_layer_is_refused_and_names_both_agents():
    child = agent("child").as_tool("Answers.", inherit=[RetryMiddleware])
    with pytest.raises(ConfigError, match="agent 'child' cannot be a tool of 'boss'") as caught:
        agent("boss", Own(), Policy(), tools=[child])
    known = "holds RetryMiddleware, which is not the class of one of its middlewares: Own, Policy"
    assert known in str(caught.value)


def test_layers_that_fit_into_no_order_are_named():
    boss = agent("boss", WrapsPolicy(), Policy())
    child = agent("child", InsideWrapsPolicy())
    with pytest.raises(ConfigError) as caught:
        bind_child(child, agent("boss", Policy()), inherit=[InsideWrapsPolicy])
    assert "not the class of one of its middlewares" in str(caught.value)
    assert names_of(bind_child(child, boss).middlewares) == ["Policy", "InsideWrapsPolicy"]

    class Outside(Own):
        position = "outermost"

    class Between(Own):
        wraps = (Outside,)

    class Last(Policy):
        wrapped_by = (Between,)

    class First(Policy):
        wraps = (Last,)
        position = "outermost"

    with pytest.raises(ConfigError) as caught:
        bind_child(agent("child", Between()), agent("boss", First(), Outside()), inherit=[First, Outside])
    message = str(caught.value)
    assert message.startswith("agent 'child' cannot be a tool of 'boss': their middlewares fit into no order: ")
    assert "Outside outside Between, as their classes say" in message
    assert "Between outside Outside, as their classes say" in message


def test_a_required_layer_that_is_not_inherited_is_named():
    boss = agent("boss", WrapsPolicy(), NeedsOwn())
    with pytest.raises(ConfigError, match=r"'child' cannot be a tool of 'boss': NeedsOwn requires WrapsPolicy"):
        bind_child(agent("child"), boss)
    assert names_of(bind_child(agent("child"), boss, [WrapsPolicy, NeedsOwn]).middlewares) == [
        "WrapsPolicy",
        "NeedsOwn",
    ]


def test_more_layers_than_fit_are_refused():
    boss = agent("boss", *[Policy() for _ in range(1)], *[Own() for _ in range(40)])
    child = agent("child", *[Own() for _ in range(40)])
    with pytest.raises(ConfigError, match="'child' cannot be a tool of 'boss': on_system_prompt has 81 layers"):
        bind_child(child, boss, [Own])


def test_grandchildren_have_the_layers_of_all_above():
    root_policy, middle_policy = Policy(), Policy()
    root, middle, leaf = agent("root", root_policy), agent("middle", middle_policy), agent("leaf", Own())
    bound = bind_child(leaf, bind_child(middle, root))
    assert bound.middlewares == (root_policy, middle_policy, leaf.middlewares[0])
    assert [ancestor.name for ancestor in bound.lineage.ancestors] == ["root", "middle"]
    assert bound.lineage.is_inherited(root_policy)
    assert not bound.lineage.is_inherited(leaf.middlewares[0])


def test_an_agent_cannot_work_for_itself():
    boss, child = agent("boss"), agent("child")
    for ancestor in (boss, bind_child(child, boss)):
        with pytest.raises(ConfigError, match="it would work for itself"):
            bind_child(boss, ancestor)
