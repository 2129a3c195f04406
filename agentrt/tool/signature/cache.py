"""Signatures that were read before, since a program may make agents by the thousand over the same tools."""

import ast
import builtins
import types
from collections import ChainMap
from functools import lru_cache
from inspect import Parameter
from operator import is_
from typing import Annotated, Any, Literal, Union, get_args, get_origin
from weakref import WeakKeyDictionary

from agentrt.tool.context import ToolContext
from agentrt.tool.signature.parameters import Signature
from agentrt.tool.signature.plain_types import only_describes

__all__ = ["cache_signature", "cached_signature"]

_FIXED_SCALARS = frozenset({str, int, float, bool, types.NoneType})
_FIXED_ORIGINS = (list, dict, Union, types.UnionType)
# Weak, so that a function made for one agent goes with it. What is kept must not lead back to the function.
_signatures: WeakKeyDictionary[types.FunctionType, tuple[tuple[object, ...], Signature]] = WeakKeyDictionary()


def cached_signature(function: object) -> Signature | None:
    """Return what was kept of the function, as long as nothing has changed that the signature was read from."""
    if type(function) is not types.FunctionType or function.__dict__:  # which may hold `__signature__`
        return None
    entry = _signatures.get(function)
    if entry is None:
        return None
    sources, signature = entry
    # By identity, since `1 == True`, and `Literal["a", "b"] == Literal["b", "a"]`.
    return _copy_of(signature) if all(map(is_, sources, _sources_of(function))) else None


def cache_signature(function: object, signature: Signature) -> None:
    """Keep what was read from the function, if all that it was read from can be compared exactly."""
    if type(function) is not types.FunctionType or function.__dict__ or type(function.__doc__) is not str:
        return  # without a docstring of its own, a method shows that of a base class, which may change
    defaults = (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values())
    hints = [hint for name, hint in _hints_of(function).items() if name != "return"]
    if all(type(default) in _FIXED_SCALARS or only_describes(default) for default in defaults) and all(
        _is_fixed(hint, function) for hint in hints
    ):
        _signatures[function] = _sources_of(function), _copy_of(signature)


def _sources_of(function: types.FunctionType) -> tuple[object, ...]:
    """Return all that the signature is read from; of the same code and hints, always as many."""
    code, keyword_defaults, all_hints = function.__code__, function.__kwdefaults__ or {}, _hints_of(function)
    parameters = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    hints = [all_hints.get(name, Parameter.empty) for name in parameters]
    sources = [
        code,
        function.__doc__,
        function.__defaults__,
        *[keyword_defaults.get(name, Parameter.empty) for name in parameters[code.co_argcount :]],
        *hints,
    ]
    for hint in hints:
        if type(hint) is str:
            values = ChainMap(function.__globals__, vars(builtins))
            sources += [values.get(name) for name in _names_in(hint) or ()]
    return tuple(sources)


@lru_cache(maxsize=1024)
def _names_in(text: str) -> tuple[str, ...] | None:
    """Return the names that a hint written as text looks up; `None` where these do not say all that it means."""
    try:
        nodes = list(ast.walk(ast.parse(text, mode="eval")))
    except (SyntaxError, ValueError):
        return None
    # An attribute may be anything the next time.
    is_clear = not any(isinstance(node, (ast.Attribute, ast.Lambda, ast.comprehension)) for node in nodes)
    return tuple(node.id for node in nodes if isinstance(node, ast.Name)) if is_clear else None


def _hints_of(function: types.FunctionType) -> dict[str, Any]:
    try:
        return function.__annotations__
    except Exception:  # noqa: BLE001  # since Python 3.14 they are evaluated only now; nothing is fixed then
        return {"": ""}


def _is_fixed(hint: Any, function: types.FunctionType) -> bool:
    """Say whether a hint means the same for ever, or what else it depends on is among the sources."""
    if type(hint) is not str:
        return _is_fixed_type(hint)
    if _names_in(hint) is None:
        return False
    try:
        meaning = eval(hint, {"ToolContext": ToolContext, **function.__globals__})  # as reading it does
    except Exception:  # noqa: BLE001  # reading the hint says what is wrong with it
        return False
    return _is_fixed_type(meaning)


def _is_fixed_type(hint: Any) -> bool:
    """Say whether a hint means the same for ever: no text that is looked up, nothing that can be edited."""
    if hint is None or hint is Any or hint is ToolContext or hint is list or hint is dict:
        return True
    if type(hint) is type:
        return hint in _FIXED_SCALARS
    origin, parts = get_origin(hint), get_args(hint)
    if origin is Literal:
        return all(type(value) is str for value in parts)
    if origin is Annotated:
        return _is_fixed_type(parts[0]) and all(type(part) is str or only_describes(part) for part in parts[1:])
    return origin in _FIXED_ORIGINS and all(map(_is_fixed_type, parts))


def _copy_of(signature: Signature) -> Signature:
    """Return a copy, whose dicts are the caller's own."""
    return Signature(
        _copy_json(signature.schema),
        signature.parse,
        signature.context_name,
        signature.defaults.copy(),
        signature.aliases.copy(),
    )


def _copy_json(value: Any) -> Any:
    if type(value) is dict:
        return {key: _copy_json(part) for key, part in value.items()}
    return [_copy_json(part) for part in value] if type(value) is list else value
