"""Events that layers emit while they wait.

Such an event can only be seen at once when the waiting is done in another task than its reader's. That costs as much
as all the rest of a call, and hardly any middleware needs it, so it is done for the classes that say `emits = True`.
"""

import inspect
import warnings
from types import FrameType, FunctionType

from agentrt.chain import Chains
from agentrt.chain.owner import returning_layer
from agentrt.hooks import HOOKS, MiddlewareBase

__all__ = ["emitting_hooks", "warn_of_late_event"]

# What a layer of these emits flows with the items that it passes on, or has no reply to flow into.
_NEVER_LATE = {"on_reply", "on_reasoning", "on_observe", "on_print"}


def emitting_hooks(chains: Chains) -> frozenset[str]:
    """Return the hooks that have a layer of a class which says that it emits events."""
    return frozenset(hook for hook, layers in chains.layers.items() if any(layer.middleware.emits for layer in layers))


def warn_of_late_event(emit: FrameType | None) -> None:
    """Warn when `emit` was called by a layer whose class does not say whether it emits.

    To be called when nobody takes the events that are emitted.
    """
    middleware, hook = _calling_layer(emit)
    if middleware is None or hook in _NEVER_LATE:
        return
    cls = type(middleware)
    hooks = _overridden_hooks(cls)
    if not hooks or (hook is None and not _NEVER_LATE.isdisjoint(hooks)):
        return  # a helper, and which hook called it is not known
    if any("emits" in vars(parent) for parent in cls.__mro__ if parent is not MiddlewareBase):
        return
    # Said of the class's first hook, wherever it emits: Python shows a warning once for each line that it is said of.
    function = next(iter(hooks.values()))
    warnings.warn_explicit(
        f"{cls.__name__} emitted an event that is not seen before its hook returns control: "
        f"set `emits = True` on {cls.__name__}, or `emits = False` if that is soon enough",
        UserWarning,
        function.__code__.co_filename,
        function.__code__.co_firstlineno,
        module=function.__module__,
        registry=function.__globals__.setdefault("__warningregistry__", {}),
    )


def _calling_layer(emit: FrameType | None) -> tuple[MiddlewareBase | None, str | None]:
    """Return the layer in which `emit` was called, and its hook where that is known.

    Walks the frames outwards to the first one of the runtime, which is what called the layer. It finds nobody where the
    layer works in a task of its own.
    """
    middleware: MiddlewareBase | None = None
    hook: str | None = None
    codes = []
    frame = emit.f_back if emit is not None else None
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] != "agentrt":
        code = frame.f_code
        codes.append(code)
        first_argument = frame.f_locals.get(code.co_varnames[0]) if code.co_varnames else None
        if isinstance(first_argument, MiddlewareBase):
            if first_argument is not middleware:
                middleware, hook = first_argument, None
            for name, function in _overridden_hooks(type(middleware)).items():
                if function.__code__ is code:
                    hook = name
        frame = frame.f_back
    if middleware is None and frame is not None:
        layer = returning_layer(frame, codes)
        if layer is not None and isinstance(layer.middleware, MiddlewareBase):
            return layer.middleware, "on_model_call"
    return middleware, hook


def _overridden_hooks(cls: type[MiddlewareBase]) -> dict[str, FunctionType]:
    functions = {spec.name: inspect.unwrap(getattr(cls, spec.name)) for spec in HOOKS}
    return {
        name: function
        for name, function in functions.items()
        if isinstance(function, FunctionType) and function is not getattr(MiddlewareBase, name)
    }
