"""Callables of all kinds: what does their work, what they are called, and where they are."""

import functools
import inspect
import types
from collections.abc import Callable
from typing import Any, NoReturn

from agentrt.errors import ToolConfigError
from agentrt.types import JSONObject


def underlying(function: Any) -> Callable[..., object]:
    """Return the function or method that does the work: partials and callable objects peeled off."""
    while type(function) is not types.FunctionType and not inspect.isroutine(function):
        function = function.func if isinstance(function, functools.partial) else function.__call__
    return function


def function_name(function: Callable[..., object]) -> str:
    """Return the name that the source gives to a callable; an object with `__call__` is named after its class."""
    while isinstance(function, functools.partial):
        function = function.func
    return str(getattr(function, "__name__", type(function).__name__))


def docstring_of(function: Any) -> str | None:
    """Return the docstring that explains a callable, which may be indented as it is written."""
    if type(function) is types.FunctionType and type(function.__doc__) is str:
        return function.__doc__  # the very object, whose hash is known from the last time
    while isinstance(function, functools.partial):
        function = function.func
    if inspect.isroutine(function):
        return inspect.getdoc(function)
    return function.__call__.__doc__ or type(function).__doc__


def source_location(function: Callable[..., object]) -> str:
    """Return "file:line" of a callable, or its module and name if it has no source."""
    plain = inspect.unwrap(underlying(function))
    code = getattr(plain, "__code__", None)
    return (
        f"{code.co_filename}:{code.co_firstlineno}"
        if code
        else f"{plain.__module__ or 'builtins'}.{plain.__qualname__}"
    )


def bound_arguments(function: Callable[..., object]) -> JSONObject:
    """Return the arguments that `functools.partial` passes by name."""
    bound: JSONObject = {}
    while isinstance(function, functools.partial):
        bound = {**function.keywords, **bound}
        function = function.func
    return bound


def refuse(function: Callable[..., object], why: str) -> NoReturn:
    """Raise `ToolConfigError` for a callable that cannot be a tool."""
    owner = f"{type(function.__self__).__name__}." if inspect.ismethod(function) else ""
    raise ToolConfigError(f"{owner}{function_name(function)}() cannot be a tool: {why} ({source_location(function)})")
