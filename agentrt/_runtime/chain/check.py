"""The checks that a list of middlewares must pass before any of it runs."""

import inspect
from collections.abc import Collection, Mapping, Sequence
from difflib import get_close_matches
from functools import lru_cache
from operator import attrgetter
from typing import Any

from agentrt._runtime.chain.order import check_order
from agentrt._runtime.chain.signature import signature_of
from agentrt._runtime.chain.spec import REQUEST_PARTS, Function, HookSpec, Middleware, Shape
from agentrt.errors import MiddlewareConfigError

MAX_LAYERS = 64
_NOT_PLAIN = inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR | inspect.CO_GENERATOR | inspect.CO_ITERABLE_COROUTINE

# What other frameworks call ours.
_PEERS_HOOKS = {
    word: hook
    for hook, words in {
        "on_reply": "after_agent after_invocation before_agent before_invocation on_agent_end on_agent_finish "
        "on_agent_start on_chain_end on_chain_start on_end on_run on_start",
        "on_reasoning": "on_llm_new_token on_stream",
        "on_model_call": "after_model after_model_callback before_model before_model_callback on_chat_model_start "
        "on_completion on_llm_call on_llm_end on_llm_error on_llm_start on_model wrap_model_call",
        "on_acting": "after_tool_callback before_tool_callback on_function_call on_tool on_tool_call on_tool_end "
        "on_tool_error on_tool_start on_tool_use wrap_tool_call",
        "on_system_prompt": "dynamic_prompt on_prompt",
        "on_check_permission": "on_approval on_permission",
    }.items()
    for word in words.split()
}
_EXPECTED_SHAPE = {
    "stream": "an async generator (`async def` with `yield`)",
    "call": "a coroutine function (`async def` without `yield`)",
    "transformer": "a coroutine function (`async def` without `yield`)",
    "observer": "a plain function (`def` without `yield`)",
}
_REMEDY = {
    "stream": "pass the items on with `async for item in next_handler(**input_kwargs): yield item`",
    "call": "return the result with `return await next_handler(**input_kwargs)`",
    "transformer": "return the new value with `return current_prompt`",
    "observer": "write `def`; what takes time or waits belongs in a queue that a task of yours reads",
}


def overrides(middleware: object, base: type, hook: str) -> bool:
    """Say whether the middleware's class has its own version of the hook."""
    # Compared as functions, so that a mixin's counts, and a class can take an override back with `on_x = Base.on_x`.
    return getattr(type(middleware), hook) is not getattr(base, hook)


def location_of(function: Function) -> str:
    """Return "file:line" of a function, or its name when it has no source."""
    function = inspect.unwrap(function)
    code = getattr(function, "__code__", None)
    if code is not None:
        return f"{code.co_filename}:{code.co_firstlineno}"
    return getattr(function, "__qualname__", None) or f"{function!r:.100}"


def overridden_hooks(middleware: object, base: type, table: Sequence[HookSpec]) -> list[HookSpec]:
    """Return the hooks that the middleware's class overrides."""
    return [spec for spec in table if overrides(middleware, base, spec.name)]


def check_middlewares(middlewares: Sequence[Middleware], base: type, table: Sequence[HookSpec]) -> list[list[HookSpec]]:
    """Return for each middleware the hooks that it overrides.

    Raises `MiddlewareConfigError`, naming class, hook and remedy, for anything that could not run.
    """
    overridden: list[list[HookSpec]] = []
    hooks = tuple(map(attrgetter("name"), table))
    depths = dict.fromkeys(hooks, 0)
    originals = [(spec, getattr(base, spec.name)) for spec in table]
    for middleware in middlewares:
        check_instance(middleware, base)
        _check_names(type(middleware), base, hooks)
        for name in getattr(middleware, "__dict__", ()):
            if name in depths:
                raise MiddlewareConfigError(
                    f"{type(middleware).__name__}.{name} is assigned on the instance, where the compiler does not "
                    f"look: define it as a method of the class"
                )
        cls = type(middleware)  # `overridden_hooks`, with less to look up for each middleware of each agent
        overridden.append([spec for spec, original in originals if getattr(cls, spec.name) is not original])
        for spec in overridden[-1]:
            hook = getattr(middleware, spec.name)
            name = f"{type(middleware).__name__}.{spec.name}"
            _check_function(getattr(hook, "__func__", hook), name, spec.shape, spec.parameters, inspect.ismethod(hook))
            depths[spec.name] += 1
    check_duplicates(middlewares)
    for hook, depth in depths.items():
        if depth > MAX_LAYERS:
            raise MiddlewareConfigError(
                f"{hook} has {depth} layers, but {MAX_LAYERS} is the most: merge middlewares, or split the agent"
            )
    # Only checked, never used to reorder: the list says which layer is where, and a reader must be able to trust it.
    for middleware in middlewares:
        check_constraints(middleware)
    check_order(middlewares)
    return overridden


def lifespans_of(middlewares: Sequence[Middleware], base: Any) -> tuple[Middleware, ...]:
    """Return the middlewares that have a lifespan; raises `MiddlewareConfigError` for one that cannot be entered."""
    none = getattr(base, "lifespan", None)
    having = () if none is None else tuple([one for one in middlewares if one.__class__.lifespan is not none])  # type: ignore[attr-defined]
    for middleware in having:
        lifespan = type(middleware).lifespan  # type: ignore[attr-defined]
        if inspect.isasyncgenfunction(lifespan) or inspect.iscoroutinefunction(lifespan):
            raise MiddlewareConfigError(
                f"{type(middleware).__name__}.lifespan must return an async context manager: write "
                f"@asynccontextmanager above it, and one `yield` in it ({location_of(lifespan)})"
            )
    return having


def check_instance(middleware: object, base: type) -> None:
    """Raise `MiddlewareConfigError` for anything but an instance of the base."""
    if isinstance(middleware, base):
        return
    if isinstance(middleware, type) and issubclass(middleware, base):
        name = middleware.__name__
        raise MiddlewareConfigError(f"middlewares holds the class {name}, not an instance of it: write {name}()")
    # The repr of a function has its address in memory.
    what = f"the function {middleware.__name__}" if inspect.isfunction(middleware) else f"{middleware!r:.200}"
    raise MiddlewareConfigError(
        f"middlewares holds {what}, which is not a {base.__name__} instance: "
        f"derive its class from agentrt.{base.__name__}"
    )


# This and the one below are cached, since a program may make agents by the thousand, of the same few classes.
@lru_cache(maxsize=1024)
def _check_names(cls: type, base: type, hooks: tuple[str, ...]) -> None:
    # Class by class, since most of what `dir()` lists is the base's, whose names are all known.
    names = [name for part in cls.__mro__ if part not in base.__mro__ for name in vars(part)]
    for name in sorted(names):
        # Whatever begins like a hook: a misspelt one would never run, and nothing would say so.
        peers_hook = _PEERS_HOOKS.get(name) or _PEERS_HOOKS.get(name.removeprefix("a"))
        looks_like_one = name.startswith("on_") or peers_hook in hooks
        if looks_like_one and name not in hooks and not hasattr(base, name) and callable(getattr(cls, name)):
            matches = [peers_hook] if peers_hook in hooks else get_close_matches(name, hooks, 1)
            hint = f"did you mean {matches[0]}?" if matches else "rename the method, or put an underscore before it."
            raise MiddlewareConfigError(
                f"{cls.__name__}.{name} is not a hook: {hint} The hooks are {', '.join(hooks)}."
            )


@lru_cache(maxsize=4096)
def _check_function(function: Function, name: str, shape: Shape, parameters: tuple[str, ...], is_method: bool) -> None:
    actual_shape = _wrong_shape(function, shape)
    if actual_shape is not None:
        raise MiddlewareConfigError(
            f"{name} must be {_EXPECTED_SHAPE[shape]}, but it is {actual_shape} ({location_of(function)}): "
            f"{_REMEDY[shape]}"
        )
    try:
        signature_of(function).bind(*[None] * (len(parameters) + is_method))
    except TypeError:
        raise MiddlewareConfigError(
            f"{name} must take ({', '.join(('self', *parameters))}), but it takes {signature_of(function)} "
            f"({location_of(function)})"
        ) from None


def _wrong_shape(function: Function, shape: Shape) -> str | None:
    """Return in words what the function is instead of the expected shape, `None` when it is as expected."""
    plain = inspect.unwrap(function)
    if shape == "observer":
        is_expected = inspect.isfunction(plain) and not plain.__code__.co_flags & _NOT_PLAIN
    elif shape == "stream":
        is_expected = inspect.isasyncgenfunction(plain)
    else:
        is_expected = inspect.iscoroutinefunction(plain)
    if is_expected:
        return None
    if inspect.isasyncgenfunction(plain):
        return "an async generator"
    if inspect.iscoroutinefunction(plain):
        return "a coroutine function"
    if inspect.isgeneratorfunction(plain):
        return "a sync generator"
    return "a plain function" if inspect.isfunction(plain) else f"of type {type(plain).__name__}"


def check_duplicates(middlewares: Sequence[Middleware]) -> None:
    """Raise `MiddlewareConfigError` for an instance that is listed twice, and for two with one key."""
    place_by_id: dict[int, int] = {}
    by_key: dict[str, Middleware] = {}
    for place, middleware in enumerate(middlewares):
        name = type(middleware).__name__
        if id(middleware) in place_by_id:
            raise MiddlewareConfigError(
                f"the same {name} instance is listed twice (positions {place_by_id[id(middleware)]} and {place}): "
                f"make two instances"
            )
        place_by_id[id(middleware)] = place
        key = middleware.key
        if key is None:
            continue
        if key in by_key:
            raise MiddlewareConfigError(
                f"{type(by_key[key]).__name__} and {name} both have the key {key!r}, by which data is saved: "
                f"keep one of them, or give one another key"
            )
        by_key[key] = middleware


def check_constraints(middleware: Middleware) -> None:
    """Raise `MiddlewareConfigError` for an invalid `position`, `requires`, `wraps`, `wrapped_by` or `rewrites`."""
    name = type(middleware).__name__
    if middleware.position not in (None, "outermost", "innermost"):
        raise MiddlewareConfigError(
            f'{name}.position must be "outermost", "innermost" or None, not {middleware.position!r}'
        )
    rewrites: object = middleware.rewrites
    is_collection = isinstance(rewrites, Collection) and not isinstance(rewrites, str)
    if not is_collection or not all(part in REQUEST_PARTS for part in middleware.rewrites):
        raise MiddlewareConfigError(
            f'{name}.rewrites must be a tuple of some of "tools", "system" and "history", not {rewrites!r:.200}'
        )
    for constraint in ("requires", "wraps", "wrapped_by"):
        targets = getattr(middleware, constraint)
        if isinstance(targets, tuple) and not targets:  # nearly always
            continue
        is_list = isinstance(targets, (list, tuple))
        has_reasons = not is_list and isinstance(targets, Mapping) and constraint != "requires"
        if not (is_list or has_reasons) or not all(isinstance(target, (str, type)) for target in targets):
            raise MiddlewareConfigError(
                f"{name}.{constraint} must be a list or tuple of middleware classes or their names, not {targets!r}"
            )
        if has_reasons and not all(isinstance(reason, str) and reason for reason in targets.values()):
            raise MiddlewareConfigError(f"{name}.{constraint} must give a reason in words for each, not {targets!r}")
