"""The layers that an agent has of the one that it works for, merged into its own."""

import warnings
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any, Protocol, Self, TypeVar

from agentrt._runtime.chain.explain import ExplainFormat
from agentrt._runtime.chain.order import must_come_first, sort_by_reasons
from agentrt._runtime.text import repr_of
from agentrt.agent.delegation.lineage import Relative
from agentrt.errors import ConfigError
from agentrt.hooks import MiddlewareBase, must_state_inheritance

Inherit = bool | Sequence[type[MiddlewareBase]]
"""Which layers of its parent an agent has: those whose class says `inherited`, none, or those of these classes."""


class Child(Relative, Protocol):
    """An agent that can work for another one."""

    def with_middlewares(self, middlewares: Sequence[MiddlewareBase], *, parent: Any = None) -> Self: ...
    def explain(self, format: ExplainFormat = "text") -> str: ...


_ChildT = TypeVar("_ChildT", bound=Child)


def bind_child(child: _ChildT, parent: Relative, inherit: Inherit = True) -> _ChildT:
    """Return the agent as it works for the parent: over the same conversation, with the layers that it inherits.

    Raises `ConfigError`, which names both agents, for layers that fit into no order, for what `inherit` cannot be, and
    for an agent that would work for itself.
    """
    if find_ancestor(child, parent) is not None:
        raise circle_error(child, parent)
    if inherit is True:
        _warn_of_unstated(child, parent)
    try:
        layers = merge_layers(layers_to_inherit(parent.middlewares, inherit), child.middlewares)
        return child.with_middlewares(layers, parent=parent)
    except ConfigError as error:
        raise ConfigError(f"agent {child.name!r} cannot be a tool of {parent.name!r}: {error}") from error


def _warn_of_unstated(child: Relative, parent: Relative) -> None:
    """Warn, once for each class, of layers of the parent that guard or observe and do not state who inherits them."""
    own = set(map(id, child.middlewares))
    for layer in parent.middlewares:
        cls: Any = type(layer)
        if id(layer) in own or not must_state_inheritance(layer) or _warnings_of(cls):
            continue
        _warnings_of(cls).append(child.name)
        warnings.warn(
            f"{cls.__name__} guards or observes {parent.name!r} and not its sub-agents {child.name!r}: set inherited = "
            f"True on {cls.__name__}, or False",
            UserWarning,
            stacklevel=2,
        )


@lru_cache(maxsize=1024)
def _warnings_of(cls: Any) -> list[str]:
    return []


def find_ancestor(child: Relative, parent: Relative) -> Any:
    """Return the parent, or the agent above it, that is the child itself, `None` if none of them is."""
    for ancestor in (*parent.lineage.ancestors, parent):
        if (ancestor.id, ancestor.name) == (child.id, child.name):
            return ancestor
    return None


def circle_error(child: Relative, parent: Relative) -> ConfigError:
    """Return the error of an agent that works for itself."""
    path = (*parent.lineage.ancestors, parent, child)
    names = " > ".join(repr(relative.name) for relative in path)
    return ConfigError(
        f"agent {child.name!r} cannot be a tool of {parent.name!r}: it would work for itself ({names}); give one of "
        f"them a tool less"
    )


def checked_inherit(agent_name: str, inherit: Any) -> Inherit:
    """Return what `as_tool(inherit=...)` was given; raises `ConfigError` for what is not a choice of layers."""
    if isinstance(inherit, bool):
        return inherit
    classes = inherit if isinstance(inherit, (list, tuple)) else [inherit]
    for cls in classes:
        if not (isinstance(cls, type) and issubclass(cls, MiddlewareBase)):
            raise ConfigError(
                f"Agent.as_tool(inherit=...) of {agent_name!r:.100} must be True, False or a list of classes of "
                f"middlewares, such as [TracingMiddleware], and holds {repr_of(cls)}"
            )
    return tuple(classes)


def layers_to_inherit(layers: Iterable[MiddlewareBase], inherit: Inherit) -> list[MiddlewareBase]:
    """Return which of a parent's layers a child has, in their order; raises `ConfigError` for a class of none,
    and for a layer whose `inherited` is not a bool.

    `inherit` has been checked by `checked_inherit`.
    """
    layers = list(layers)
    for layer in layers:
        stated: object = layer.inherited
        if stated is not None and not isinstance(stated, bool):
            raise ConfigError(f"{type(layer).__name__}.inherited must be True, False or None, not {repr_of(stated)}")
    if isinstance(inherit, bool):
        return [layer for layer in layers if inherit and layer.inherited]
    for cls in inherit:
        if not any(isinstance(layer, cls) for layer in layers):
            known = ", ".join(dict.fromkeys(type(layer).__name__ for layer in layers)) or "none"
            raise ConfigError(
                f"inherit=[...] holds {cls.__name__}, which is not the class of one of its middlewares: {known}"
            )
    return [layer for layer in layers if isinstance(layer, tuple(inherit))]


def merge_layers(inherited: Sequence[MiddlewareBase], own: Sequence[MiddlewareBase]) -> list[MiddlewareBase]:
    """Return both lists as one, in which each keeps its order and every class stands where it says that it must.

    The inherited layers stand as far out as that allows, and one that is in both lists stands there once. Raises
    `ConfigError` where no order of that kind exists.
    """
    # By identity: a layer of the user's own may be equal to another. Inherited ones come first.
    layers = list({id(layer): layer for layer in (*inherited, *own)}.values())
    merged, circles = sort_by_reasons(layers, lambda outer, inner: _reason(outer, inner, inherited, own))
    if circles:
        raise ConfigError(f"their middlewares fit into no order: {'; '.join(map('; '.join, circles))}")
    return merged


def _reason(
    outer: MiddlewareBase, inner: MiddlewareBase, inherited: Sequence[MiddlewareBase], own: Sequence[MiddlewareBase]
) -> str | None:
    """Say why the first layer must come before the second one, `None` if it need not."""
    if outer is inner:
        return None
    if must_come_first(outer, inner):
        return "as their classes say"
    for layers, whose in ((inherited, "of the parent"), (own, "of its own")):
        places = {id(layer): place for place, layer in enumerate(layers)}
        if id(outer) in places and id(inner) in places and places[id(outer)] < places[id(inner)]:
            return f"as in the list {whose}"
    return None
