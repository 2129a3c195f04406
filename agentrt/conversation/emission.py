"""Events that layers emit while they wait.

Such an event can only be seen at once when the waiting is done in another task than its reader's. That costs as much
as all the rest of a call, and hardly any middleware needs it, so it is done for the classes that say `emits = True`.
"""

import inspect
import warnings
from functools import lru_cache
from types import FrameType, FunctionType

from agentrt.chain import Chains
from agentrt.chain.owner import returning_layer
from agentrt.hooks import HOOKS, MiddlewareBase

__all__ = ["emitting_hooks", "warn_of_late_event"]

# What a layer of these emits flows with the items that it passes on, or has no reply to flow into.
_NEVER_LATE = {"on_reply", "on_reasoning", "on_observe", "on_print"}


def emitting_hooks(chains: Chains) -> frozenset[str]:
    """Return the hooks that have a layer of a class which says that it emits events."""
    return frozenset(hook for hook, layers in chains.layers.items() for layer in layers if layer.middleware.emits)


def warn_of_late_event(emitter: FrameType) -> bool:
    """Warn when the frame that emits an event belongs to a layer whose class does not say whether it emits.

    To be called when nobody takes the events that are emitted. Says whether another call for the same code of that
    frame would find the same.
    """
    middleware, hooks = _calling_layer(emitter)
    if middleware is None:
        return False
    cls: type = type(middleware)
    functions = _overridden_hooks(cls)
    parents = [parent for parent in cls.__mro__ if parent is not MiddlewareBase]
    says_nothing = all(vars(parent).get("emits") is None for parent in parents)
    # Where no frame of a hook is left, any hook of the class may have called the helper that emits.
    if functions and says_nothing and _NEVER_LATE.isdisjoint(hooks or functions):
        # Reported at the class's first hook, wherever it emits: Python shows a warning once for each line it names.
        first_hook = next(iter(functions.values()))
        warnings.warn_explicit(
            f"{cls.__name__} emitted an event that is not seen before its hook returns control: "
            f"set `emits = True` on {cls.__name__}, or `emits = False` if that is soon enough",
            UserWarning,
            first_hook.__code__.co_filename,
            first_hook.__code__.co_firstlineno,
            module=first_hook.__module__,
            registry=first_hook.__globals__.setdefault("__warningregistry__", {}),
        )
    return any(function.__code__ is emitter.f_code for function in functions.values())


def _calling_layer(emitter: FrameType) -> tuple[MiddlewareBase | None, set[str]]:
    """Return the layer that the frame works for, and its hook, or hooks if they share their code; empty if not known.

    Walks the frames outwards to the first one of the runtime, which is what called the layer. It finds nobody where the
    layer works in a task of its own.
    """
    middleware: MiddlewareBase | None = None
    hooks: set[str] = set()
    codes = []
    frame: FrameType | None = emitter
    while frame is not None and str(frame.f_globals.get("__name__")).partition(".")[0] != "agentrt":
        code = frame.f_code
        codes.append(code)
        first_argument = frame.f_locals.get(code.co_varnames[0]) if code.co_varnames else None
        if isinstance(first_argument, MiddlewareBase):
            cls: type = type(first_argument)
            hooks_here = {name for name, function in _overridden_hooks(cls).items() if function.__code__ is code}
            if hooks_here or first_argument is not middleware:
                middleware, hooks = first_argument, hooks_here
        frame = frame.f_back
    if (
        codes and not hooks and frame is not None
    ):  # perhaps a stream that a hook returned, whose own frame is gone by now
        layer = returning_layer(frame, codes)
        if layer is not None and isinstance(layer.middleware, MiddlewareBase):
            return layer.middleware, {"on_model_call"}
    return middleware, hooks


@lru_cache(maxsize=256)
def _overridden_hooks(cls: type) -> dict[str, FunctionType]:
    functions = {spec.name: inspect.unwrap(getattr(cls, spec.name)) for spec in HOOKS}
    return {
        name: function
        for name, function in functions.items()
        if isinstance(function, FunctionType) and function is not getattr(MiddlewareBase, name)
    }
