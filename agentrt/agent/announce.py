"""Which hooks may send events while they wait.

An event can only be seen while its emitter waits when the waiting is done in another task than its reader's. That costs
as much as all the rest of a call, and hardly any middleware needs it, so it is done for those that speak of `emit`.
"""

import inspect
from collections.abc import Iterator
from types import CodeType, FunctionType
from typing import Any

from agentrt.chain import Chains
from agentrt.hooks import MiddlewareBase

__all__ = ["hooks_that_emit"]


def hooks_that_emit(chains: Chains) -> frozenset[str]:
    """Return the hooks that have a layer which may emit events."""
    return frozenset(
        hook for hook, layers in chains.layers.items() if any(_emits(layer.middleware) for layer in layers)
    )


def _emits(middleware: MiddlewareBase) -> bool:
    return _speaks_of_emit(type(middleware)) if middleware.emits is None else middleware.emits


def _speaks_of_emit(cls: type) -> bool:
    members = [member for each in cls.__mro__ for member in vars(each).values()]
    return any("emit" in code.co_names for member in members for code in _codes(member))


def _codes(value: Any) -> Iterator[CodeType]:
    function = getattr(value, "__func__", getattr(value, "fget", value))
    while isinstance(function, FunctionType):
        yield from _nested(function.__code__)
        function = inspect.unwrap(function) if hasattr(function, "__wrapped__") else None


def _nested(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _nested(constant)
