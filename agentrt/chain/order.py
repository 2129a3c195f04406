"""The order of middlewares: checked and sorted by the constraints that their classes state."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TypeVar

from agentrt.chain.spec import Middleware
from agentrt.errors import MiddlewareConfigError

__all__ = ["check_order", "must_come_first", "must_wrap", "reason_to_wrap", "sort_middlewares"]

_AnyMiddleware = TypeVar("_AnyMiddleware", bound=Middleware)


def check_order(middlewares: Sequence[Middleware]) -> None:
    """Raise `MiddlewareConfigError`, with all conflicts and the correct order, if the order breaks a constraint."""
    conflicts: list[str] = []
    for place, middleware in enumerate(middlewares):
        if middleware.position is not None:
            conflicts += _conflicts_of_position(place, middlewares)
        if middleware.requires or middleware.wraps or middleware.wrapped_by:
            conflicts += _conflicts_of(place, middlewares)
    if not conflicts:
        return
    try:
        order = _names(sort_middlewares(middlewares))
    except MiddlewareConfigError as error:
        remedy = str(error)
    else:
        remedy = f"the correct order is {order}, and agentrt.middleware.arrange(middlewares) returns it"
        if order == _names(middlewares):  # only a required middleware is missing; the others are in order
            remedy = ""
    if len(conflicts) == 1:
        raise MiddlewareConfigError("; ".join(filter(None, [conflicts[0], remedy])))
    lines = "".join(f"\n- {conflict}" for conflict in conflicts)
    raise MiddlewareConfigError(
        f"the list of middlewares breaks {len(conflicts)} constraints:{lines}" + (remedy and f"\n{remedy}")
    )


def sort_middlewares(middlewares: Sequence[_AnyMiddleware]) -> list[_AnyMiddleware]:
    """Return the middlewares in an order that satisfies all constraints, as close to the given one as these allow.

    Raises `MiddlewareConfigError` if the constraints contradict each other.
    """
    rest, order = list(middlewares), list[_AnyMiddleware]()
    while rest:
        free = (candidate for candidate in rest if not any(must_come_first(other, candidate) for other in rest))
        following = next(free, None)
        if following is None:
            raise MiddlewareConfigError(
                f"no order satisfies the constraints of {_names(rest)}, which contradict each other: leave one out"
            )
        rest = [other for other in rest if other is not following]
        order.append(following)
    return order


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


def _conflicts_of(place: int, middlewares: Sequence[Middleware]) -> list[str]:
    middleware, conflicts = middlewares[place], list[str]()
    name = type(middleware).__name__
    for target in middleware.requires:
        if not any(target in _names_for(other) for other in middlewares if other is not middleware):
            label = target if isinstance(target, str) else target.__name__
            conflicts.append(f"{name} requires {label}, which is not in middlewares: add it")
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


def _names(middlewares: Sequence[Middleware]) -> str:
    return ", ".join(type(middleware).__name__ for middleware in middlewares)


def _is_target_of(middleware: Middleware, targets: Collection[type | str]) -> bool:
    return any(name in targets for name in _names_for(middleware))


def _names_for(middleware: Middleware) -> Iterator[type | str]:
    for cls in type(middleware).__mro__:
        yield cls
        yield cls.__name__  # so that a middleware can name one that it does not import
