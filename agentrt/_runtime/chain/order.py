"""The order of middlewares: checked and sorted by the constraints that their classes state."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import TypeVar

from agentrt._runtime.chain.spec import Middleware
from agentrt._runtime.chain.terms.entries import layers_in
from agentrt.errors import MiddlewareConfigError

_Sorted = TypeVar("_Sorted")


def check_order(middlewares: Sequence[Middleware]) -> None:
    """Raise `MiddlewareConfigError`, with all conflicts and the correct order, if the order breaks a constraint."""
    conflicts: list[str] = []
    for place, middleware in enumerate(middlewares):
        if middleware.position is not None:
            conflicts += _conflicts_of_position(place, middlewares)
        if middleware.requires or middleware.wraps or middleware.wrapped_by:
            conflicts += _missing_for(middleware, middlewares)
            conflicts += _conflicts_of(place, middlewares)
    if not conflicts:
        return
    order, circles = sort_by_reasons(middlewares, _reason_of_classes)
    if circles:
        remedy = "; ".join(map(_describe_contradiction, circles))
    elif order == list(middlewares):  # only a required middleware is missing; the others are in order
        remedy = ""
    else:
        names = ", ".join(type(middleware).__name__ for middleware in order)
        remedy = f"agentrt.middleware.arrange(middlewares) returns the correct order, write: middlewares=[{names}]"
    if len(conflicts) == 1:
        raise MiddlewareConfigError("; ".join(filter(None, [conflicts[0], remedy])))
    lines = "".join(f"\n- {conflict}" for conflict in conflicts)
    raise MiddlewareConfigError(
        f"the list of middlewares breaks {len(conflicts)} constraints:{lines}" + (remedy and f"\n{remedy}")
    )


def arrange_entries(entries: Sequence[_Sorted]) -> list[_Sorted]:
    """Return the entries of a split list in an order that satisfies all constraints, as close to this one as possible.

    Raises `MiddlewareConfigError` if no order does, with all contradictions and all missing layers.
    """
    layers: list[Middleware] = layers_in(entries)
    order, circles = sort_by_reasons(layers, _reason_of_classes)
    problems = [_describe_contradiction(circle) for circle in circles]
    problems += [problem for layer in layers for problem in _missing_for(layer, layers)]
    if problems:
        raise MiddlewareConfigError(
            problems[0]
            if len(problems) == 1
            else "".join(["no order is possible:"] + [f"\n- {problem}" for problem in problems])
        )
    entry_by_layer = {id(layer): entry for layer, entry in zip(layers, entries, strict=True)}
    return [entry_by_layer[id(layer)] for layer in order]


def sort_by_reasons(
    layers: Sequence[_Sorted], reason: Callable[[_Sorted, _Sorted], str | None]
) -> tuple[list[_Sorted], list[list[str]]]:
    """Return the layers in the order nearest to the given one, and the circles that bar an order.

    `reason` says why the first of two layers must come before the second, `None` if it need not. Each circle is a list
    of reasons. Layers of a circle stand in no order.
    """
    left, order, circles = list(layers), list[_Sorted](), list[list[str]]()
    while left:
        # Take the first layer that may come next. It could also come later, so this choice rules out no valid order.
        layer = next((one for one in left if not any(reason(other, one) for other in left)), None)
        if layer is None:
            circle = _find_circle(left, reason)
            circles.append(
                [
                    f"{type(outer).__name__} outside {type(inner).__name__}, {reason(outer, inner)}"
                    for outer, inner in pairwise([*circle, circle[0]])
                ]
            )
            left = [one for one in left if not any(one is other for other in circle)]
        else:
            left = [one for one in left if one is not layer]
            order.append(layer)
    return order, circles


def _find_circle(layers: Sequence[_Sorted], reason: Callable[[_Sorted, _Sorted], str | None]) -> list[_Sorted]:
    """Return a circle: each layer must come before the next one, and the last before the first.

    Each of the given layers has another one that must come before it.
    """
    path = [layers[0]]
    while True:
        before = next(one for one in layers if reason(one, path[-1]))
        places = [place for place, one in enumerate(path) if one is before]
        if places:
            return [before, *reversed(path[places[0] + 1 :])]
        path.append(before)


def _reason_of_classes(outer: Middleware, inner: Middleware) -> str | None:
    if not must_come_first(outer, inner):
        return None
    words = reason_to_wrap(outer, inner)
    if not words and not must_wrap(outer, inner):
        return "which must be outermost" if outer.position == "outermost" else "which must be innermost"
    return words or "as their classes say"


def _describe_contradiction(circle: Sequence[str]) -> str:
    return f"no order satisfies constraints that contradict each other: {'; '.join(circle)}: leave one out"


def must_wrap(outer: Middleware, inner: Middleware) -> bool:
    """Say whether one of the two middlewares states that the first stands outside of the second."""
    if outer is inner:  # which may be of a class that it names
        return False
    return _is_target_of(inner, outer.wraps) or _is_target_of(outer, inner.wrapped_by)


def reason_to_wrap(outer: Middleware, inner: Middleware) -> str:
    """Return why the first of two middlewares must stand outside of the second, "" where neither says so."""
    for targets, other in ((outer.wraps, inner), (inner.wrapped_by, outer)):
        if isinstance(targets, Mapping):
            for name in _names_for(other):
                if name in targets:
                    return str(targets[name])
    return ""


def must_come_first(outer: Middleware, inner: Middleware) -> bool:
    """Say whether the first of two middlewares must stand outside of the second, by its position or theirs."""
    if outer.position == "outermost" and inner.position != "outermost":
        return True
    if inner.position == "innermost" and outer.position != "innermost":
        return True
    return must_wrap(outer, inner)


def _conflicts_of_position(place: int, middlewares: Sequence[Middleware]) -> list[str]:
    middleware = middlewares[place]
    position, name = middleware.position, type(middleware).__name__
    # From that end of the list: it must go before, or after, the first other one.
    beyond = middlewares[:place] if position == "outermost" else middlewares[:place:-1]
    for other in beyond:
        if other.position != position:
            side, move = ("outside", "before") if position == "outermost" else ("inside", "after")
            stranger = type(other).__name__
            return [f"{name} must be {position}, but {stranger} stands {side} it: put {name} {move} {stranger}"]
    return []


def _missing_for(middleware: Middleware, middlewares: Sequence[Middleware]) -> list[str]:
    others = [other for other in middlewares if other is not middleware]
    missing = [target for target in middleware.requires if not any(target in _names_for(other) for other in others)]
    labels = [target if isinstance(target, str) else target.__name__ for target in missing]
    return [f"{type(middleware).__name__} requires {label}, which is not in middlewares: add it" for label in labels]


def _conflicts_of(place: int, middlewares: Sequence[Middleware]) -> list[str]:
    middleware, conflicts = middlewares[place], list[str]()
    name = type(middleware).__name__
    for other in middlewares[:place] if middleware.wraps else ():
        if _is_target_of(other, middleware.wraps):
            reason = reason_to_wrap(middleware, other)
            conflicts.append(
                f"{name} must wrap {type(other).__name__}{reason and f' ({reason})'}, but stands inside it: "
                f"put {name} before {type(other).__name__}"
            )
    for other in middlewares[place + 1 :] if middleware.wrapped_by else ():
        if _is_target_of(other, middleware.wrapped_by) and not _is_target_of(middleware, other.wraps):
            reason = reason_to_wrap(other, middleware)
            conflicts.append(
                f"{name} must be wrapped by {type(other).__name__}{reason and f' ({reason})'}, but stands outside it: "
                f"put {name} after {type(other).__name__}"
            )
    return conflicts


def _is_target_of(middleware: Middleware, targets: Collection[type | str]) -> bool:
    return any(name in targets for name in _names_for(middleware))


def _names_for(middleware: Middleware) -> Iterator[type | str]:
    for cls in type(middleware).__mro__:
        yield cls
        yield cls.__name__  # so that a middleware can name one that it does not import
