"""A log of the actual tool runs of an agent under test."""

import inspect
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, field, replace
from functools import wraps
from typing import Any, TypeVar, cast

from pydantic_core import to_jsonable_python

from agentrt._runtime.chain.signature import signature_of
from agentrt.tool import ToolContext

_F = TypeVar("_F", bound=Callable[..., Any])


@dataclass(slots=True)
class ToolRun:
    """One run of a tool: its arguments as JSON values, and whether it finished."""

    name: str
    arguments: dict[str, object]
    finished: bool = False


@dataclass(slots=True)
class ToolLog:
    """The actual tool runs of an agent, to be compared with its state."""

    runs: list[ToolRun] = field(default_factory=list)
    watched: set[str] = field(default_factory=set)
    on_run: Callable[[str], None] | None = field(default=None, repr=False)

    def watch(self, function: _F) -> _F:
        """Return the tool function, wrapped so that its runs are logged under its name.

        The tool must be the agent's own, not that of a sub-agent. A call by that name which is reported as a
        success must have run, so a tool that a layer may answer for, such as a cache, is better left unwatched.
        """
        self.watched.add(function.__name__)

        # One wrapper for each kind of function, since the runtime distinguishes them.
        @wraps(function)
        async def run_coroutine(*args: object, **kwargs: object) -> object:
            with self._log_run(function, args, kwargs):
                return await function(*args, **kwargs)

        @wraps(function)
        async def run_stream(*args: object, **kwargs: object) -> AsyncGenerator[object, None]:
            with self._log_run(function, args, kwargs):
                async with aclosing(function(*args, **kwargs)) as stream:
                    async for item in stream:
                        yield item

        @wraps(function)
        def run_plain(*args: object, **kwargs: object) -> object:
            with self._log_run(function, args, kwargs):
                return function(*args, **kwargs)

        if inspect.iscoroutinefunction(function):
            return cast(_F, run_coroutine)
        return cast(_F, run_stream if inspect.isasyncgenfunction(function) else run_plain)

    def copy(self) -> list[ToolRun]:
        """Return a copy of the runs."""
        return [replace(run) for run in self.runs]

    @contextmanager
    def _log_run(self, function: _F, args: tuple[object, ...], kwargs: dict[str, object]) -> Iterator[None]:
        bound = signature_of(function).bind(*args, **kwargs).arguments
        # The context is the runtime's; the model knows nothing of it.
        arguments = {name: value for name, value in bound.items() if not isinstance(value, ToolContext)}
        # As JSON values, like the call's, and copied, since a tool may change its arguments.
        run = ToolRun(function.__name__, to_jsonable_python(arguments, fallback=repr))
        self.runs.append(run)
        if self.on_run is not None:
            self.on_run(f"the tool {run.name!r}")
        yield
        run.finished = True  # not in a `finally`: a run that fails or is cancelled did not finish
