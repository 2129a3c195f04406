"""From the terms of a layer to the function that its chain calls in place of the hook."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from functools import partial
from typing import Any, Protocol

from agentrt._runtime.chain.attribution import add_origin_note
from agentrt._runtime.chain.chains import Layer
from agentrt._runtime.chain.spec import Function, HookSpec, Middleware
from agentrt._runtime.chain.terms.entries import Condition, Limit, Terms, read_limit, terms_of
from agentrt._runtime.chain.terms.limited import limit_hook
from agentrt.errors import ChainContractError, MiddlewareConfigError

_ConditionQuestion = Callable[[Any], bool]


class AskCondition(Protocol):
    """Asks a question of an agent, or returns the answer that is kept under this name."""

    def __call__(self, agent: Any, name: str, question: _ConditionQuestion) -> bool: ...


def ask_condition(agent: object, name: str, question: _ConditionQuestion) -> bool:
    """Ask a condition each time, and keep no answer."""
    return question(agent)


class LayerTerms:
    """The terms of the layers of one list, and the entries that state them, by the `id()` of the layer.

    Layers without terms are in neither. The answer to a condition is kept under the key of the first layer that it
    covers.
    """

    __slots__ = ("_ask", "_questions", "_used", "by_layer", "entries")

    def __init__(
        self, entries: Sequence[object], layers: Sequence[object], keys: Mapping[int, str], ask: AskCondition
    ) -> None:
        self._ask = ask
        self.by_layer: dict[int, Terms] = {}
        self.entries: dict[int, object] = {}
        self._used: dict[int, tuple[Limit, set[str]]] = {}
        self._questions: dict[int, list[tuple[str, _ConditionQuestion]]] = {}
        names: dict[int, str] = {}
        for entry, layer in zip(entries, layers, strict=True):
            terms = None if entry is layer else terms_of(entry)
            if terms is None:
                continue
            key = keys[id(layer)]
            self.by_layer[id(layer)], self.entries[id(layer)] = terms, entry
            self._questions[id(layer)] = [
                (
                    names.setdefault(id(condition), f"{key}/{depth}" if depth else key),
                    _question_of(condition, key),
                )
                for depth, condition in enumerate(terms.conditions)
            ]

    def holds(self, agent: object, layer: object) -> bool:
        """Say whether all conditions of the layer hold for the agent."""
        return all(self._ask(agent, name, question) for name, question in self._questions.get(id(layer), ()))

    def limits_of(
        self, layer: Middleware, overridden: Sequence[HookSpec], table: Sequence[HookSpec]
    ) -> Mapping[str, Limit] | None:
        """Return the limit of each hook that has one, `None` for a layer to which no terms apply at all.

        The user's limits come first, of these the nearest, and then those of the class. Raises `MiddlewareConfigError`
        for a limit that a hook cannot have.
        """
        terms, of_class = self.by_layer.get(id(layer)), type(layer).limits  # an instance may have anything of that name
        if terms is None and not of_class:
            return None
        limits: dict[str, Limit] = {}
        for limit in () if terms is None else terms.limits:
            by_user = _limits_by_user(type(layer).__name__, limit, overridden, table)
            self._used.setdefault(id(limit), (limit, set()))[1].update(by_user)
            limits = by_user | limits
        limits = _limits_by_class(type(layer).__name__, of_class, overridden, table) | limits
        for spec in overridden:
            if spec.name in limits and limits[spec.name].on_failure == "deny" and spec.denied is None:
                closed = ", ".join(other.name for other in table if other.denied is not None)
                raise MiddlewareConfigError(
                    f'{type(layer).__name__}: {spec.name} has no refusal, so a limit of it cannot "deny": take "raise" '
                    f'or "skip", or name the hooks, as hooks=[...]; {closed} can deny'
                )
        return limits

    def check_used(self) -> None:
        """Raise `MiddlewareConfigError` for a limit of a hook that none of its layers overrides."""
        for limit, used in self._used.values():
            for hook in limit.hooks:
                if hook not in used:
                    raise MiddlewareConfigError(
                        f"Limited(..., hooks=...) names {hook}, which none of its layers overrides: leave it out"
                    )

    def apply(self, spec: HookSpec, layer: Layer, limits: Mapping[str, Limit]) -> Layer:
        """Return the layer as the chain enters it: under its limit, and that only where its conditions hold."""
        limit, questions = limits.get(spec.name), self._questions.get(id(layer.middleware), ())
        enter = layer.hook if limit is None else limit_hook(spec, layer, limit)
        for name, question in reversed(questions):
            enter = _CONDITIONAL[spec.shape](enter, partial(self._ask, name=name, question=question))
        return replace(layer, enter=enter, limit=limit)


def _limits_by_user(
    name: str, limit: Limit, overridden: Sequence[HookSpec], table: Sequence[HookSpec]
) -> dict[str, Limit]:
    for hook in limit.hooks:
        _check_hook(hook, f"Limited({name}, hooks=...)", table)
    limited = [
        spec.name for spec in overridden if (spec.name in limit.hooks if limit.hooks else spec.shape != "observer")
    ]
    if not limited and not limit.hooks:
        hooks = ", ".join(spec.name for spec in overridden) or "no hooks"
        raise MiddlewareConfigError(
            f"Limited({name}, ...) would limit nothing: {name} has only {hooks}, and observers have no limit, since "
            f"they cannot wait"
        )
    return dict.fromkeys(limited, limit)


def _limits_by_class(
    name: str, limits: object, overridden: Sequence[HookSpec], table: Sequence[HookSpec]
) -> dict[str, Limit]:
    if not isinstance(limits, Mapping):
        raise MiddlewareConfigError(f'{name}.limits must be a dict, as {{"on_reply": (2.0, "skip")}}, not {limits!r}')
    checked: dict[str, Limit] = {}
    for hook, limit in limits.items():
        _check_hook(hook, f"{name}.limits", table)
        checked[hook] = read_limit(f"{name}.limits[{hook!r}]", limit)
    return {spec.name: checked[spec.name] for spec in overridden if spec.name in checked}


def _check_hook(hook: str, place: str, table: Sequence[HookSpec]) -> None:
    specs = {spec.name: spec for spec in table}
    if hook not in specs:
        matches = get_close_matches(str(hook), specs, 1)
        hint = f": did you mean {matches[0]!r}?" if matches else f": the hooks are {', '.join(specs)}"
        raise MiddlewareConfigError(f"{place} names {hook!r}, which is not a hook{hint}")
    if specs[hook].shape == "observer":
        raise MiddlewareConfigError(
            f"{place} names {hook}, whose layers are observers: they cannot wait, so they have no limit; leave it out"
        )


def _question_of(condition: Condition, key: str) -> _ConditionQuestion:
    """Return what asks the condition; an error that it raises names the layer."""
    predicate = condition.predicate

    def question(agent: Any) -> bool:
        try:
            answer = predicate(agent)
            is_on = inspect.isawaitable(answer) or bool(answer)  # which raises for an array of several values
        except Exception as error:  # named and raised again
            add_origin_note(error, f"the condition {condition.name} of {key}")
            raise
        if inspect.isawaitable(answer):
            if inspect.iscoroutine(answer):
                answer.close()  # or Python would warn that nobody awaited it
            raise ChainContractError(
                f"the condition {condition.name} of {key} must return True or False, not {type(answer).__name__}: it "
                f"cannot wait"
            )
        return is_on

    return question


# Plain functions: where the layer is not there, its step returns the inner stream, or the inner call, itself.


def _conditional_onion(enter: Function, holds: Function) -> Function:
    def hook(agent: Any, values: Any, next_handler: Any) -> Any:
        return enter(agent, values, next_handler) if holds(agent) else next_handler(**values)

    return hook


def _conditional_transformer(enter: Function, holds: Function) -> Function:
    async def hook(agent: Any, value: Any) -> Any:
        return await enter(agent, value) if holds(agent) else value

    return hook


def _conditional_observer(enter: Function, holds: Function) -> Function:
    def hook(agent: Any, item: Any) -> None:
        if holds(agent):
            enter(agent, item)

    return hook


_CONDITIONAL = {
    "stream": _conditional_onion,
    "call": _conditional_onion,
    "transformer": _conditional_transformer,
    "observer": _conditional_observer,
}
