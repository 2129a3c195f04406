"""From a function's signature to the schema that a model sees, and to the validator of the arguments that it writes."""

import inspect
import json
import sys
import types
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

from pydantic_core import to_jsonable_python

from agentrt._runtime.chain.signature import signature_of
from agentrt.errors import ToolConfigError
from agentrt.tool.arguments import parser_by_types
from agentrt.tool.context import ToolContext
from agentrt.tool.signature.callables import bound_arguments, docstring_of, refuse, underlying
from agentrt.tool.signature.docstring import parse_docstring
from agentrt.tool.signature.parameters import Signature
from agentrt.types import JSONObject, JSONSchema

_Callable = Callable[..., object]
_ParametersByName = dict[str, inspect.Parameter]
_Hint = Any  # the annotation of a parameter: a class, a union, a special form, ...
_EMPTY = inspect.Parameter.empty
_VARIABLE = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


class _AnyNames(dict[str, Any]):
    """Names of a module, with `Any` for those that it does not have."""

    def __missing__(self, name: str) -> Any:
        return Any


def read_signature(function: _Callable, hidden: Collection[str] = (), *, has_schema: bool = False) -> Signature:
    """Read what a model needs to know; raises `ToolConfigError` for what cannot be described to a model.

    The parameters named in `hidden`, those bound by `functools.partial`, the one annotated `ToolContext`, and `*args`
    and `**kwargs` beside other parameters are left out of the schema. `has_schema` says that a schema was given, which
    may have arguments for `**kwargs`.
    """
    # Here, since loading pydantic takes as long as loading most of agentrt.
    from agentrt.tool.signature.pydantic_types import compile_types

    parameters = _parameters(function)
    _refuse_unknown_presets(function, hidden, parameters)
    parameters = _without_hidden(function, parameters, hidden)
    hints = {name: _read_hint(function, parameter) for name, parameter in parameters.items()}
    context_name = _take_context(function, hints)
    has_keywords = _take_variable(function, hints, parameters)
    takes_more = has_keywords and (has_schema or not hints)  # by a schema, or by `**kwargs` alone
    validator, schema = compile_types(function, hints, parameters, takes_more=takes_more)
    properties = schema.get("properties", {})
    if len(properties) != len(hints):
        refuse(function, "two of its parameters have the same alias; give each its own")
    # Pydantic writes the properties in the order of the fields, under their aliases.
    aliases = dict(zip(hints, properties, strict=True))
    _add_descriptions(schema, {alias: parameters[name] for name, alias in aliases.items()}, function)
    return Signature(
        schema,
        parser_by_types(validator),
        context_name,
        _json_defaults({name: parameters[name] for name in hints}),
        {name: alias for name, alias in aliases.items() if alias != name},
    )


def context_parameter(function: _Callable, hidden: Collection[str] = ()) -> str | None:
    """Return the name of the parameter that takes the `ToolContext`, if any, whatever the other parameters are."""
    parameters = _parameters(function)
    _refuse_unknown_presets(function, hidden, parameters)
    hints: dict[str, _Hint] = {}
    for name, parameter in parameters.items():
        with suppress(ToolConfigError):  # a hint that says nothing is not the context's
            hints[name] = _read_hint(function, parameter)
    return _take_context(function, hints)


def defaults_of(function: _Callable, hidden: Collection[str]) -> JSONObject:
    """Return the defaults of the parameters that a model may give, if they have a JSON form."""
    return _json_defaults(_without_hidden(function, _parameters(function), hidden))


def _parameters(function: _Callable) -> _ParametersByName:
    try:
        return dict(signature_of(function).parameters)
    except (ValueError, TypeError):
        refuse(function, "Python cannot tell its parameters; wrap it in a function with type hints")


def _without_hidden(function: _Callable, parameters: _ParametersByName, hidden: Collection[str]) -> _ParametersByName:
    left_out = {*hidden, *bound_arguments(function)}
    return {name: parameter for name, parameter in parameters.items() if name not in left_out}


def _refuse_unknown_presets(function: _Callable, hidden: Collection[str], parameters: _ParametersByName) -> None:
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return
    unknown = [name for name in hidden if name not in parameters]
    if unknown:
        refuse(
            function, f"preset_kwargs names {unknown[0]!r}, but its parameters are {', '.join(parameters) or 'none'}"
        )


def _read_hint(function: _Callable, parameter: inspect.Parameter) -> _Hint:
    hint, name = parameter.annotation, parameter.name
    written = getattr(hint, "__forward_arg__", hint)
    if parameter.kind in _VARIABLE:
        return Any  # left out, or refused for its kind, in words that fit better
    if type(hint) is type and hint is not _EMPTY:
        return hint  # as it would be below, for a twentieth of the time
    if hint is _EMPTY and name == "self":
        refuse(function, "it is a method without its object; pass a method of an instance, e.g. `store.search`")
    if hint is _EMPTY:
        refuse(
            function,
            f"its parameter {name!r} has no type hint, so a model cannot be told what to pass; "
            f"write e.g. `{name}: str`",
        )
    try:
        # `from __future__ import annotations`, or quotes inside a hint, leave text.
        plain = inspect.unwrap(underlying(function))
        # ToolContext is often imported under TYPE_CHECKING only.
        names = {"ToolContext": ToolContext, **getattr(plain, "__globals__", {})}
        # `get_type_hints` evaluates all hints of a function, and one that cannot be read would hide the others.
        holder = types.SimpleNamespace(__annotations__={"hint": hint})
        return get_type_hints(holder, names, {}, include_extras=True)["hint"]
    except NameError as error:
        # The type in `ToolContext[Deps]` is for type checkers alone, and often imported for them alone.
        with suppress(NameError, TypeError, SyntaxError, AttributeError):
            context: _Hint = get_type_hints(holder, names, _AnyNames(names), include_extras=True)["hint"]
            if _is_context(context):
                return context
        refuse(
            function,
            f"the type hint {written!r} of its parameter {name!r} cannot be looked up ({error}); "
            f"define that name at the top of the module, outside `if TYPE_CHECKING:`",
        )
    except (TypeError, SyntaxError, AttributeError) as error:
        refuse(
            function, f"the type hint {written!r} of its parameter {name!r} is not a type ({error}); write e.g. `str`"
        )


def _take_context(function: _Callable, hints: dict[str, _Hint]) -> str | None:
    """Remove the parameter that takes the context, and return its name."""
    names = [name for name, hint in hints.items() if _is_context(hint)]
    if len(names) > 1:
        refuse(function, f"its parameters {', '.join(names)} all take the ToolContext; keep one of them")
    for name in names:
        del hints[name]
    return names[0] if names else None


def _is_context(hint: _Hint) -> bool:
    origin: object = get_origin(hint)
    if origin is Annotated:
        return _is_context(get_args(hint)[0])
    if origin in (Union, types.UnionType):
        members = [member for member in get_args(hint) if member is not types.NoneType]
        return len(members) == 1 and _is_context(members[0])
    cls = hint if origin is None else origin  # `ToolContext[Deps]` is not a class
    return isinstance(cls, type) and issubclass(cls, ToolContext)


def _take_variable(function: _Callable, hints: dict[str, _Hint], parameters: _ParametersByName) -> bool:
    """Remove `*args` and `**kwargs`, and say whether there is a `**kwargs`; `*args` alone is refused."""
    variable = [name for name in hints if parameters[name].kind in _VARIABLE]
    has_keywords = any(parameters[name].kind is inspect.Parameter.VAR_KEYWORD for name in variable)
    for name in hints:
        parameter = parameters[name]
        if parameter.kind is parameter.POSITIONAL_ONLY:
            refuse(function, f"its parameter {name!r} is positional-only, but a model gives names; remove the `/`")
        if parameter.kind is parameter.VAR_POSITIONAL and len(variable) == len(hints) and not has_keywords:
            refuse(function, f"a model cannot be told what to pass as *{name}; take a list instead")
    for name in variable:
        del hints[name]
    return has_keywords


def _is_field(value: object) -> bool:
    """Say whether the value comes from pydantic's `Field(...)`; before pydantic is loaded, none does."""
    fields = sys.modules.get("pydantic.fields")
    return fields is not None and isinstance(value, fields.FieldInfo)


def _json_defaults(parameters: _ParametersByName) -> JSONObject:
    defaults: JSONObject = {}
    for name, parameter in parameters.items():
        if parameter.default is not _EMPTY and not _is_field(parameter.default):  # pydantic fills in those
            with suppress(ValueError):
                defaults[name] = to_jsonable_python(parameter.default)
    return defaults


def _add_descriptions(schema: JSONSchema, parameters: _ParametersByName, function: _Callable) -> None:
    """Add the defaults, and what the docstring says, where the hints say nothing."""
    meanings = parse_docstring(docstring_of(function))[1]
    for name, part in schema.get("properties", {}).items():
        meaning = meanings.get(parameters[name].name)
        if meaning:
            part.setdefault("description", meaning)
        default = parameters[name].default
        if default is not _EMPTY and not _is_field(default):
            with suppress(ValueError):  # one that has no JSON form: the model need not know it
                json_default = to_jsonable_python(default)
                json.dumps(json_default, allow_nan=False)
                part.setdefault("default", json_default)
