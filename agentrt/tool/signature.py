"""From a function's signature to the schema that a model sees, and to the validator of the arguments that it writes."""

import functools
import inspect
import json
import sys
import types
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated, Any, NoReturn, Union, get_args, get_origin, get_type_hints

from pydantic import ConfigDict, TypeAdapter
from pydantic.errors import PydanticUserError
from pydantic.fields import FieldInfo
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import to_jsonable_python

from agentrt.chain.signature import signature_of
from agentrt.errors import ToolConfigError
from agentrt.tool.arguments import Parse, Validator, parser_by_types
from agentrt.tool.context import ToolContext
from agentrt.tool.docstring import parse_docstring
from agentrt.types import JSONObject, JSONSchema

if sys.version_info >= (3, 12):
    from typing import NotRequired, Required, TypedDict
else:  # pydantic takes no other TypedDict there, and brings this one along
    from typing import NotRequired, Required

    from typing_extensions import TypedDict

__all__ = [
    "Signature",
    "bound_arguments",
    "context_parameter",
    "defaults_of",
    "docstring_of",
    "function_name",
    "read_signature",
    "source_location",
    "underlying",
]

_Callable = Callable[..., object]
_ParametersByName = dict[str, inspect.Parameter]
_Hint = Any  # the annotation of a parameter: a class, a union, a special form, ...
_EMPTY = inspect.Parameter.empty
_VARIABLE = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


@dataclass(slots=True)
class Signature:
    """What a function's parameters mean to a model; `context_name` is the parameter that takes the `ToolContext`.

    `defaults` are those of the function's defaults that have a JSON form, by the names of the parameters; `aliases` are
    the names that the model sees, where the parameters have others.
    """

    schema: JSONSchema
    parse: Parse
    context_name: str | None
    defaults: JSONObject
    aliases: dict[str, str]


class _AnyNames(dict[str, Any]):
    """Names of a module, with `Any` for those that it does not have."""

    def __missing__(self, name: str) -> Any:
        return Any


class _SchemaWithoutTitles(GenerateJsonSchema):
    # A title that only repeats the name costs tokens; a default that has no JSON is the function's own business.
    ignored_warning_kinds = {"skipped-choice", "non-serializable-default"}  # noqa: RUF012  # as pydantic declares it

    def field_title_should_be_set(self, schema: object) -> bool:
        return False


def read_signature(function: _Callable, hidden: Collection[str] = (), *, has_schema: bool = False) -> Signature:
    """Read everything once; raises `ToolConfigError` for what cannot be described to a model.

    The parameters named in `hidden`, those bound by `functools.partial`, the one annotated `ToolContext`, and `*args`
    and `**kwargs` beside other parameters are left out of the schema. `has_schema` says that a schema was given, which
    may have arguments for `**kwargs`.
    """
    parameters = _parameters(function)
    _refuse_unknown_presets(function, hidden, parameters)
    parameters = _without_hidden(function, parameters, hidden)
    hints = {name: _read_hint(function, parameter) for name, parameter in parameters.items()}
    context_name = _take_context(function, hints)
    has_keywords = _take_variable(function, hints, parameters)
    validator, schema = _compile_types(function, hints, parameters, takes_more=has_schema and has_keywords)
    properties = schema.get("properties", {})
    if len(properties) != len(hints):
        _refuse(function, "two of its parameters have the same alias; give each its own")
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


def underlying(function: Any) -> _Callable:
    """Return the function or method that does the work: partials and callable objects peeled off."""
    while not inspect.isroutine(function):
        function = function.func if isinstance(function, functools.partial) else function.__call__
    return function


def function_name(function: _Callable) -> str:
    """Return the name that the source gives to a callable; an object with `__call__` is named after its class."""
    while isinstance(function, functools.partial):
        function = function.func
    return str(getattr(function, "__name__", type(function).__name__))


def docstring_of(function: Any) -> str | None:
    """Return the docstring that explains a callable."""
    while isinstance(function, functools.partial):
        function = function.func
    if inspect.isroutine(function):
        return inspect.getdoc(function)
    return function.__call__.__doc__ or type(function).__doc__


def source_location(function: _Callable) -> str:
    """Return "file:line" of a callable, or its module and name if it has no source."""
    plain = inspect.unwrap(underlying(function))
    code = getattr(plain, "__code__", None)
    return (
        f"{code.co_filename}:{code.co_firstlineno}"
        if code
        else f"{plain.__module__ or 'builtins'}.{plain.__qualname__}"
    )


def bound_arguments(function: _Callable) -> JSONObject:
    """Return the arguments that `functools.partial` passes by name."""
    bound: JSONObject = {}
    while isinstance(function, functools.partial):
        bound = {**function.keywords, **bound}
        function = function.func
    return bound


def _refuse(function: _Callable, why: str) -> NoReturn:
    owner = f"{type(function.__self__).__name__}." if inspect.ismethod(function) else ""
    raise ToolConfigError(f"{owner}{function_name(function)}() cannot be a tool: {why} ({source_location(function)})")


def _parameters(function: _Callable) -> _ParametersByName:
    try:
        return dict(signature_of(function).parameters)
    except (ValueError, TypeError):
        _refuse(function, "Python cannot tell its parameters; wrap it in a function with type hints")


def _without_hidden(function: _Callable, parameters: _ParametersByName, hidden: Collection[str]) -> _ParametersByName:
    left_out = {*hidden, *bound_arguments(function)}
    return {name: parameter for name, parameter in parameters.items() if name not in left_out}


def _refuse_unknown_presets(function: _Callable, hidden: Collection[str], parameters: _ParametersByName) -> None:
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return
    unknown = [name for name in hidden if name not in parameters]
    if unknown:
        _refuse(
            function, f"preset_kwargs names {unknown[0]!r}, but its parameters are {', '.join(parameters) or 'none'}"
        )


def _read_hint(function: _Callable, parameter: inspect.Parameter) -> _Hint:
    hint, name = parameter.annotation, parameter.name
    written = getattr(hint, "__forward_arg__", hint)
    if parameter.kind in _VARIABLE:
        return Any  # left out, or refused for its kind, in words that fit better
    if hint is _EMPTY and name == "self":
        _refuse(function, "it is a method without its object; pass a method of an instance, e.g. `store.search`")
    if hint is _EMPTY:
        _refuse(
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
        _refuse(
            function,
            f"the type hint {written!r} of its parameter {name!r} cannot be looked up ({error}); "
            f"define that name at the top of the module, outside `if TYPE_CHECKING:`",
        )
    except (TypeError, SyntaxError, AttributeError) as error:
        _refuse(
            function, f"the type hint {written!r} of its parameter {name!r} is not a type ({error}); write e.g. `str`"
        )


def _take_context(function: _Callable, hints: dict[str, _Hint]) -> str | None:
    """Remove the parameter that takes the context, and return its name."""
    names = [name for name, hint in hints.items() if _is_context(hint)]
    if len(names) > 1:
        _refuse(function, f"its parameters {', '.join(names)} all take the ToolContext; keep one of them")
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
    """Remove `*args` and `**kwargs` that stand beside other parameters, and say whether there is a `**kwargs`."""
    variable = [name for name in hints if parameters[name].kind in _VARIABLE]
    for name in hints:
        if name not in variable or len(variable) == len(hints):
            _refuse_kind(function, parameters[name])
    for name in variable:
        del hints[name]
    return any(parameters[name].kind is inspect.Parameter.VAR_KEYWORD for name in variable)


def _refuse_kind(function: _Callable, parameter: inspect.Parameter) -> None:
    if parameter.kind is parameter.POSITIONAL_ONLY:
        _refuse(
            function, f"its parameter {parameter.name!r} is positional-only, but a model gives names; remove the `/`"
        )
    if parameter.kind is parameter.VAR_POSITIONAL:
        _refuse(function, f"a model cannot be told what to pass as *{parameter.name}; take a list instead")
    if parameter.kind is parameter.VAR_KEYWORD:
        _refuse(
            function,
            f"a model cannot be told what to pass as **{parameter.name}; write the parameters out, or give json_schema",
        )


def _compile_types(
    function: _Callable, hints: dict[str, _Hint], parameters: _ParametersByName, *, takes_more: bool
) -> tuple[Validator, JSONSchema]:
    fields: JSONObject = {}
    for name, hint in hints.items():
        default = parameters[name].default
        is_required = default is _EMPTY
        if isinstance(default, FieldInfo):  # `days: int = Field(ge=1)`, as pydantic's users write it
            hint, is_required = Annotated[hint, default], default.is_required()
        fields[name] = Required[hint] if is_required else NotRequired[hint]
    # A TypedDict, not a model: it makes a plain dict, leaves out what was not given so that the function's own default
    # holds, and has no attributes that a parameter called `json` or `copy` could shadow.
    arguments = TypedDict("arguments", fields)  # type: ignore[misc]  # its fields are known only now
    config = ConfigDict(extra="allow" if takes_more else "forbid", allow_inf_nan=False)
    arguments.__pydantic_config__ = config  # type: ignore[attr-defined]
    try:
        adapter = TypeAdapter(arguments)
        schema = adapter.json_schema(schema_generator=_SchemaWithoutTitles)
    except PydanticUserError:
        _refuse_types(function, hints)
        raise
    del schema["title"]
    return adapter.validator, schema


def _refuse_types(function: _Callable, hints: dict[str, _Hint]) -> None:
    """Raise `ToolConfigError` for the first parameter whose type has no JSON schema, if there is one."""
    for name, hint in hints.items():
        try:
            TypeAdapter(hint).json_schema()
        except PydanticUserError:
            _refuse(
                function,
                f"its parameter {name!r} is of type {getattr(hint, '__name__', hint)}, which JSON cannot hold; "
                f"give the value yourself with preset_kwargs={{{name!r}: ...}}, or take a type that JSON can hold",
            )


def _json_defaults(parameters: _ParametersByName) -> JSONObject:
    defaults: JSONObject = {}
    for name, parameter in parameters.items():
        if parameter.default is not _EMPTY and not isinstance(parameter.default, FieldInfo):  # pydantic fills in those
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
        if default is not _EMPTY and not isinstance(default, FieldInfo):
            with suppress(ValueError):  # one that has no JSON form: the model need not know it
                json_default = to_jsonable_python(default)
                json.dumps(json_default, allow_nan=False)
                part.setdefault("default", json_default)
