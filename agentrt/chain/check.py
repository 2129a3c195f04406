"""The checks that a list of middlewares must pass before any of it runs."""

import inspect
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from functools import lru_cache
from typing import Any

from agentrt.chain.spec import HookSpec
from agentrt.errors import MiddlewareConfigError

__all__ = ["MAX_LAYERS", "check_middlewares", "must_wrap", "overrides", "where"]

MAX_LAYERS = 64

_WANTED = {
    "stream": "an async generator (`async def` with `yield`)",
    "call": "a coroutine function (`async def` without `yield`)",
    "transformer": "a coroutine function (`async def` without `yield`)",
}
_REMEDY = {
    "stream": "pass the items on with `async for item in next_handler(**input_kwargs): yield item`",
    "call": "return the result with `return await next_handler(**input_kwargs)`",
    "transformer": "return the new value with `return current_prompt`",
}


def overrides(middleware: object, base: type, hook: str) -> bool:
    """Say whether the middleware's class has its own version of the hook."""
    return getattr(type(middleware), hook) is not getattr(base, hook)


def where(target: Any) -> str:
    """Return "file:line" of a function or class, the module's name when there is no source."""
    target = inspect.unwrap(target)
    code = getattr(target, "__code__", None)
    if code is not None:
        return f"{code.co_filename}:{code.co_firstlineno}"
    return getattr(target, "__qualname__", None) or f"{target!r:.100}"


def check_middlewares(middlewares: Sequence[Any], base: type, table: Sequence[HookSpec]) -> None:
    """Raise `MiddlewareConfigError`, naming class, hook and remedy, for anything that could not run."""
    for middleware in middlewares:
        _check_instance(middleware, base)
        _check_names(type(middleware), base, table)
        for spec in table:
            _check_hook(middleware, base, spec)
    _check_twice(middlewares)
    for spec in table:
        depth = sum(overrides(middleware, base, spec.name) for middleware in middlewares)
        if depth > MAX_LAYERS:
            raise MiddlewareConfigError(
                f"{spec.name} has {depth} layers, {MAX_LAYERS} is the most: merge middlewares, or split the agent"
            )
    for place, middleware in enumerate(middlewares):
        _check_order(place, middleware, middlewares)


def _check_instance(middleware: Any, base: type) -> None:
    if isinstance(middleware, base):
        return
    if isinstance(middleware, type) and issubclass(middleware, base):
        name = middleware.__name__
        raise MiddlewareConfigError(f"middlewares holds the class {name}, not an instance of it: write {name}()")
    raise MiddlewareConfigError(
        f"middlewares holds {middleware!r}, which is no {base.__name__}: derive its class from agentrt.{base.__name__}"
    )


def _check_names(cls: type, base: type, table: Sequence[HookSpec]) -> None:
    hooks = [spec.name for spec in table]
    for name in dir(cls):
        if name.startswith("on_") and name not in hooks and not hasattr(base, name) and callable(getattr(cls, name)):
            near = get_close_matches(name, hooks, 1)
            hint = f"did you mean {near[0]}?" if near else "rename the method, or put an underscore before it."
            raise MiddlewareConfigError(
                f"{cls.__name__}.{name} is not a hook: {hint} The hooks are {', '.join(hooks)}."
            )


def _check_hook(middleware: Any, base: type, spec: HookSpec) -> None:
    cls = type(middleware)
    if spec.name in getattr(middleware, "__dict__", ()):
        raise MiddlewareConfigError(
            f"{cls.__name__}.{spec.name} is assigned on the instance, where the compiler does not look: "
            f"define it as a method of the class"
        )
    if not overrides(middleware, base, spec.name):
        return
    hook = getattr(middleware, spec.name)
    function = getattr(hook, "__func__", hook)
    found = _found_shape(function, spec.shape)
    if found is not None:
        raise MiddlewareConfigError(
            f"{cls.__name__}.{spec.name} must be {_WANTED[spec.shape]}, but it is {found} ({where(function)}): "
            f"{_REMEDY[spec.shape]}"
        )
    problem = _parameter_problem(function, spec.parameters, inspect.ismethod(hook))
    if problem is not None:
        wanted = ", ".join(("self", *spec.parameters))
        raise MiddlewareConfigError(
            f"{cls.__name__}.{spec.name} must take ({wanted}), but it {problem} ({where(function)})"
        )


@lru_cache(maxsize=4096)
def _found_shape(function: Callable[..., Any], shape: str) -> str | None:
    """Return in words what the function is instead of the wanted shape, `None` when it is as wanted."""
    plain = inspect.unwrap(function)
    is_wanted = inspect.isasyncgenfunction if shape == "stream" else inspect.iscoroutinefunction
    if is_wanted(plain):
        return None
    if inspect.isasyncgenfunction(plain):
        return "an async generator"
    if inspect.iscoroutinefunction(plain):
        return "a coroutine function"
    if inspect.isgeneratorfunction(plain):
        return "a sync generator"
    return "a plain function" if inspect.isfunction(plain) else f"of type {type(plain).__name__}"


@lru_cache(maxsize=4096)
def _parameter_problem(function: Callable[..., Any], names: tuple[str, ...], bound: bool) -> str | None:
    signature = inspect.signature(function)
    try:
        signature.bind(*([None] * (len(names) + bound)))
    except TypeError:
        return f"takes {signature}"
    return None


def _check_twice(middlewares: Sequence[Any]) -> None:
    seen: dict[int, int] = {}
    keys: dict[str, Any] = {}
    for place, middleware in enumerate(middlewares):
        name = type(middleware).__name__
        if id(middleware) in seen:
            raise MiddlewareConfigError(
                f"the same {name} instance stands at places {seen[id(middleware)]} and {place}: make two instances"
            )
        seen[id(middleware)] = place
        key = middleware.key
        if key is not None and key in keys:
            raise MiddlewareConfigError(
                f"{type(keys[key]).__name__} and {name} both have the key {key!r}: give one of them another key"
            )
        if key is not None:
            keys[key] = middleware


def _check_order(place: int, middleware: Any, middlewares: Sequence[Any]) -> None:
    name = type(middleware).__name__
    _check_position(place, middleware, middlewares)
    for constraint in ("requires", "wraps", "wrapped_by"):
        wanted = getattr(middleware, constraint)
        if not isinstance(wanted, (list, tuple)) or not all(isinstance(each, (str, type)) for each in wanted):
            raise MiddlewareConfigError(
                f"{name}.{constraint} must be a list or tuple of middleware classes or their names, not {wanted!r}"
            )
    for wanted in middleware.requires:
        if not any(_matches(other, wanted) for other in middlewares if other is not middleware):
            raise MiddlewareConfigError(f"{name} requires {_label(wanted)}, which is not in middlewares: add it")
    for other in middlewares[:place]:
        if any(_matches(other, wanted) for wanted in middleware.wraps):
            raise MiddlewareConfigError(
                f"{name} must wrap {type(other).__name__}, but stands inside it: "
                f"put {name} before {type(other).__name__}"
            )
    for other in middlewares[place + 1 :]:
        if any(_matches(other, wanted) for wanted in middleware.wrapped_by):
            raise MiddlewareConfigError(
                f"{name} must be wrapped by {type(other).__name__}, but stands outside it: "
                f"put {name} after {type(other).__name__}"
            )


def _check_position(place: int, middleware: Any, middlewares: Sequence[Any]) -> None:
    position, name = middleware.position, type(middleware).__name__
    if position not in (None, "outermost", "innermost"):
        raise MiddlewareConfigError(f'{name}.position must be "outermost", "innermost" or None, not {position!r}')
    others = {"outermost": middlewares[:place], "innermost": middlewares[place + 1 :]}.get(position, ())
    for other in others:
        if other.position != position:
            side, move = ("outside", "before") if position == "outermost" else ("inside", "after")
            raise MiddlewareConfigError(
                f"{name} must be {position}, but {type(other).__name__} stands {side} it: "
                f"put {name} {move} {type(other).__name__}"
            )


def must_wrap(outer: Any, inner: Any) -> bool:
    """Say whether one of the two middlewares states that the first stands outside of the second."""
    if outer is inner:  # which may be of a class that it names
        return False
    return any(_matches(inner, each) for each in outer.wraps) or any(_matches(outer, each) for each in inner.wrapped_by)


def _matches(middleware: Any, wanted: type | str) -> bool:
    if isinstance(wanted, type):
        return isinstance(middleware, wanted)
    return any(cls.__name__ == wanted for cls in type(middleware).__mro__)


def _label(wanted: type | str) -> str:
    return wanted if isinstance(wanted, str) else wanted.__name__
