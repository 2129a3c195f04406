"""A log of what the tools of an agent under test really did."""

import inspect
from collections.abc import AsyncGenerator, Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import wraps
from typing import Any, TypeVar, cast

from pydantic_core import to_jsonable_python

from agentrt.tool import ToolContext

__all__ = ["ToolLog", "ToolRun"]

_F = TypeVar("_F", bound=Callable[..., Any])


@dataclass(slots=True)
class ToolRun:
    """One run of a tool: what it was called with, as JSON would have it, and whether it came to its end."""

    name: str
    arguments: dict[str, Any]
    finished: bool = False


@dataclass(slots=True)
class ToolLog:
    """What the tools of an agent really did, to be compared with what its state says they did."""

    runs: list[ToolRun] = field(default_factory=list)
    watched: set[str] = field(default_factory=set)
    on_run: Callable[[str], None] | None = field(default=None, repr=False)

    def watch(self, function: _F) -> _F:
        """Return the tool function, with each of its runs logged under the function's name.

        The tool must be one of the agent's own, and not of an agent inside it. A call by that name which is reported a
        success must have run, so a tool that a layer may answer for, out of a cache say, is better left unwatched.
        """
        self.watched.add(function.__name__)
        if inspect.iscoroutinefunction(function):
            return cast(_F, self._around_coroutine(function))
        if inspect.isasyncgenfunction(function):
            return cast(_F, self._around_stream(function))
        return cast(_F, self._around_plain(function))

    def copy(self) -> list[ToolRun]:
        """Return the runs as they are now."""
        return [replace(run) for run in self.runs]

    def _around_coroutine(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        async def run(*args: Any, **kwargs: Any) -> Any:
            entry = self._begin(function, args, kwargs)
            result = await function(*args, **kwargs)
            entry.finished = True
            return result

        return run

    def _around_stream(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        async def run(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, None]:
            entry = self._begin(function, args, kwargs)
            stream = function(*args, **kwargs)
            try:
                async for item in stream:
                    yield item
            finally:
                await stream.aclose()
            entry.finished = True

        return run

    def _around_plain(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def run(*args: Any, **kwargs: Any) -> Any:
            entry = self._begin(function, args, kwargs)
            result = function(*args, **kwargs)
            entry.finished = True
            return result

        return run

    def _begin(self, function: Callable[..., Any], args: Iterable[Any], kwargs: dict[str, Any]) -> ToolRun:
        bound = inspect.signature(function).bind(*args, **kwargs).arguments
        given = {name: value for name, value in bound.items() if not isinstance(value, ToolContext)}
        entry = ToolRun(function.__name__, to_jsonable_python(given, fallback=repr))
        self.runs.append(entry)
        if self.on_run is not None:
            self.on_run(f"the tool {entry.name!r}")
        return entry
