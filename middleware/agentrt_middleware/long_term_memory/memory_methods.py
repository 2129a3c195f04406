"""The required methods of a custom memory, checked before the first reply."""

from inspect import iscoroutinefunction, signature, unwrap
from typing import Any

from agentrt.errors import MiddlewareConfigError
from agentrt.memory import LongTermMemoryBase
from agentrt.types import LongTermMemoryMode

# How each method is called: the number of positional arguments, and the keywords.
_Methods = dict[str, tuple[int, tuple[str, ...]]]
_STATIC: _Methods = {"record": (1, ("owner", "key", "run")), "retrieve": (2, ("owner",))}
_TOOLS: _Methods = {"record_to_memory": (2, ("owner",)), "retrieve_from_memory": (2, ("owner",))}
_METHODS: dict[LongTermMemoryMode, _Methods] = {
    "static_control": _STATIC,
    "agent_control": _TOOLS,
    "both": _STATIC | _TOOLS,
}


def check_memory_methods(memory: LongTermMemoryBase, mode: LongTermMemoryMode) -> None:
    """Raise `MiddlewareConfigError` for a memory without a method that the mode needs, or with one of another form."""
    for name, (positions, keywords) in _METHODS[mode].items():
        place = f"{type(memory).__name__}.{name}()"
        method: Any = getattr(type(memory), name)
        if method is getattr(LongTermMemoryBase, name):
            remedy = ', or write mode="static_control"' if mode == "both" and name in _TOOLS else ""
            raise MiddlewareConfigError(f'{place} is missing, which the mode "{mode}" needs: override it{remedy}')
        if not iscoroutinefunction(unwrap(method)):
            raise MiddlewareConfigError(f"{place} must be a coroutine function: write `async def {name}`")
        try:
            signature(method).bind(memory, *range(positions), **dict.fromkeys(keywords))
        except TypeError as error:
            raise MiddlewareConfigError(
                f"{place} cannot be called with {', '.join(f'{keyword}=...' for keyword in keywords)} ({error}): take "
                f"them, or **kwargs"
            ) from None
