"""Keywords of AgentScope 1.x, which work as they are: each is passed on under its new name."""

from collections.abc import Callable, Mapping
from functools import wraps
from inspect import iscoroutinefunction
from typing import Any, TypeVar

from agentrt.errors import WrongCallError

_Renaming = TypeVar("_Renaming", bound=Callable[..., Any])


def rename_keywords(
    title: str, kwargs: Mapping[str, Any], names: Mapping[str, str], defaults: Mapping[str, object]
) -> dict[str, Any]:
    """Return the keywords under their new names, without those that have their value in `defaults`."""
    renamed: dict[str, Any] = {}
    for name, value in kwargs.items():
        if name in defaults and value == defaults[name]:
            continue
        key = names.get(name, name)
        if key in renamed or (key != name and key in kwargs):
            raise WrongCallError(f"{title}() was given {name!r} and {key!r}, which mean the same: leave out {name!r}")
        renamed[key] = value
    return renamed


def accept_old_keywords(
    defaults: Mapping[str, object] | None = None, /, **names: str
) -> Callable[[_Renaming], _Renaming]:
    """Return a decorator that renames keywords of AgentScope 1.x, `old="new"`, to those of the function.

    `defaults` are further keywords that are accepted with this value only; with another, they are unknown keywords.
    """
    ignored = defaults or {}
    old = {*names, *ignored}

    def decorate(function: Any) -> Any:
        def rename(kwargs: dict[str, Any]) -> dict[str, Any]:
            if old.isdisjoint(kwargs):
                return kwargs
            return rename_keywords(function.__qualname__, kwargs, names, ignored)

        if iscoroutinefunction(function):  # so the replacement must be one too

            @wraps(function)
            async def call_async(*args: Any, **kwargs: Any) -> Any:
                return await function(*args, **rename(kwargs))

            return call_async

        @wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            return function(*args, **rename(kwargs))

        return call

    return decorate
