"""From a function's signature to what a model is told, and to the validator that checks what the model answers."""

import functools
import inspect
import json
import sys
import types
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NoReturn, Union, get_args, get_origin, get_type_hints

from pydantic import ConfigDict, TypeAdapter
from pydantic.errors import PydanticInvalidForJsonSchema, PydanticUserError
from pydantic.fields import FieldInfo
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import to_jsonable_python

from agentrt.errors import ToolConfigError
from agentrt.tool.arguments import Parse, by_types
from agentrt.tool.context import ToolContext
from agentrt.tool.docstring import parse_docstring
from agentrt.types import JSONSchema

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

_Parameters = dict[str, inspect.Parameter]
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
    defaults: dict[str, Any]
    aliases: dict[str, str]


class _Schema(GenerateJsonSchema):
    # A title that only repeats the name costs tokens; a default that has no JSON is the function's own business.
    ignored_warning_kinds = {"skipped-choice", "non-serializable-default"}  # noqa: RUF012  # as pydantic declares it

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


def read_signature(function: Callable[..., Any], hidden: Collection[str] = (), *, by_hand: bool = False) -> Signature:
    """Read everything once; raises `ToolConfigError` for what a model could not be told.

    The parameters named in `hidden`, those bound by `functools.partial`, the one annotated `ToolContext`, and `*args`
    and `**kwargs` beside other parameters are left out of the schema. `by_hand` says that a schema was given, which may
    have arguments for `**kwargs`.
    """
    parameters = _parameters(function)
    _refuse_unknown(function, hidden, parameters)
    hidden = {*hidden, *bound_arguments(function)}
    wanted = {name: each for name, each in parameters.items() if name not in hidden}
    hints = {name: _hint(function, each) for name, each in wanted.items()}
    context_name = _take_context(function, hints)
    variable = [name for name in hints if wanted[name].kind in _VARIABLE]
    for name in hints:
        if name not in variable or len(variable) == len(hints):
            _refuse_kind(function, wanted[name])
    takes_more = by_hand and any(wanted[name].kind is inspect.Parameter.VAR_KEYWORD for name in variable)
    for name in variable:
        del hints[name]
    adapter = _adapter(function, hints, wanted, "allow" if takes_more else "forbid")
    schema = _schema(function, adapter, hints)
    properties = schema.get("properties", {})
    if len(properties) != len(hints):
        _refuse(function, "two of its parameters have the same alias; give each its own")
    shown = dict(zip(hints, properties, strict=True))
    _explain(schema, {shown[name]: wanted[name] for name in hints}, parse_docstring(docstring_of(function))[1])
    return Signature(
        schema,
        by_types(adapter.validator),
        context_name,
        _defaults({name: wanted[name] for name in hints}),
        {name: alias for name, alias in shown.items() if alias != name},
    )


def context_parameter(function: Callable[..., Any], hidden: Collection[str] = ()) -> str | None:
    """Return the name of the parameter that takes the `ToolContext`, if any, whatever the other parameters are."""
    parameters = _parameters(function)
    _refuse_unknown(function, hidden, parameters)
    hints: dict[str, Any] = {}
    for name, each in parameters.items():
        with suppress(ToolConfigError):  # a hint that says nothing is not the context's
            hints[name] = _hint(function, each)
    return _take_context(function, hints)


def defaults_of(function: Callable[..., Any], hidden: Collection[str]) -> dict[str, Any]:
    """Return the defaults of the parameters that a model may give, if they have a JSON form."""
    hidden = {*hidden, *bound_arguments(function)}
    return _defaults({name: each for name, each in _parameters(function).items() if name not in hidden})


def _defaults(parameters: _Parameters) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, each in parameters.items():
        if each.default is not each.empty and not isinstance(each.default, FieldInfo):  # pydantic fills in that one
            with suppress(ValueError):
                found[name] = to_jsonable_python(each.default)
    return found


def underlying(function: Any) -> Any:
    """Return the function or method that does the work: partials and callable objects peeled off."""
    while not inspect.isroutine(function):
        function = function.func if isinstance(function, functools.partial) else function.__call__
    return function


def function_name(function: Any) -> str:
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


def source_location(function: Any) -> str:
    """Return "file:line" of a callable, its module and name when there is no source."""
    plain = inspect.unwrap(underlying(function))
    code = getattr(plain, "__code__", None)
    return (
        f"{code.co_filename}:{code.co_firstlineno}"
        if code
        else f"{plain.__module__ or 'builtins'}.{plain.__qualname__}"
    )


def _refuse(function: Any, why: str) -> NoReturn:
    owner = f"{type(function.__self__).__name__}." if inspect.ismethod(function) else ""
    raise ToolConfigError(f"{owner}{function_name(function)}() cannot be a tool: {why} ({source_location(function)})")


def _parameters(function: Any) -> _Parameters:
    try:
        return dict(inspect.signature(function).parameters)
    except (ValueError, TypeError):
        _refuse(function, "Python cannot tell its parameters; wrap it in a function with type hints")


def bound_arguments(function: Any) -> dict[str, Any]:
    """Return the arguments that `functools.partial` passes by name."""
    bound: dict[str, Any] = {}
    while isinstance(function, functools.partial):
        bound = {**function.keywords, **bound}
        function = function.func
    return bound


def _refuse_unknown(function: Any, hidden: Collection[str], parameters: _Parameters) -> None:
    if any(each.kind is each.VAR_KEYWORD for each in parameters.values()):
        return
    unknown = [name for name in hidden if name not in parameters]
    if unknown:
        _refuse(
            function, f"preset_kwargs names {unknown[0]!r}, but its parameters are {', '.join(parameters) or 'none'}"
        )


def _hint(function: Any, parameter: inspect.Parameter) -> Any:
    hint, name = parameter.annotation, parameter.name
    if parameter.kind in _VARIABLE:
        return Any  # left out, or refused for its kind, in words that fit better
    if hint is parameter.empty:
        return _missing_hint(function, parameter)
    try:
        return _evaluate(function, hint)
    except NameError as error:
        _refuse(
            function,
            f"the type hint {hint!r} of its parameter {name!r} cannot be looked up ({error}); "
            f"define that name at the top of the module, outside `if TYPE_CHECKING:`",
        )
    except (TypeError, SyntaxError, AttributeError) as error:
        _refuse(function, f"the type hint {hint!r} of its parameter {name!r} is no type ({error}); write e.g. `str`")


def _missing_hint(function: Any, parameter: inspect.Parameter) -> Any:
    if parameter.name == "self":
        _refuse(function, "it is a method without its object; pass a method of an instance, e.g. `store.search`")
    _refuse(
        function,
        f"its parameter {parameter.name!r} has no type hint, so a model cannot be told what to pass; "
        f"write e.g. `{parameter.name}: str`",
    )


def _evaluate(function: Any, hint: Any) -> Any:
    """Resolve a hint that `from __future__ import annotations`, or quotes inside it, left as text."""
    plain = inspect.unwrap(underlying(function))
    # ToolContext is often imported under TYPE_CHECKING only.
    names = {"ToolContext": ToolContext, **getattr(plain, "__globals__", {})}
    holder = types.SimpleNamespace(__annotations__={"hint": hint})
    return get_type_hints(holder, names, {}, include_extras=True)["hint"]


def _take_context(function: Any, hints: dict[str, Any]) -> str | None:
    """Remove the parameter that takes the context, and return its name."""
    found = [name for name, hint in hints.items() if _is_context(hint)]
    if len(found) > 1:
        _refuse(function, f"its parameters {', '.join(found)} all take the ToolContext; keep one of them")
    for name in found:
        del hints[name]
    return found[0] if found else None


def _is_context(hint: Any) -> bool:
    if get_origin(hint) is Annotated:
        return _is_context(get_args(hint)[0])
    if get_origin(hint) in (Union, types.UnionType):
        return set(get_args(hint)) == {ToolContext, types.NoneType}
    return isinstance(hint, type) and issubclass(hint, ToolContext)


def _refuse_kind(function: Any, parameter: inspect.Parameter) -> None:
    if parameter.kind is parameter.POSITIONAL_ONLY:
        _refuse(function, f"its parameter {parameter.name!r} is positional-only, a model gives names; remove the `/`")
    if parameter.kind is parameter.VAR_POSITIONAL:
        _refuse(function, f"a model cannot be told what to pass as *{parameter.name}; take a list instead")
    if parameter.kind is parameter.VAR_KEYWORD:
        _refuse(
            function,
            f"a model cannot be told what to pass as **{parameter.name}; write the parameters out, or give json_schema",
        )


def _adapter(
    function: Any, hints: dict[str, Any], parameters: _Parameters, extra: Literal["allow", "forbid"]
) -> TypeAdapter[Any]:
    fields = {name: _field(hint, parameters[name].default) for name, hint in hints.items()}
    try:
        return _adapter_of(fields, extra)
    except PydanticUserError as error:
        _refuse_hint(function, hints, error)


def _adapter_of(fields: dict[str, Any], extra: Literal["allow", "forbid"]) -> TypeAdapter[Any]:
    # A TypedDict, not a model: it makes a plain dict, leaves out what was not given so that the function's own default
    # holds, and has no attributes that a parameter called `json` or `copy` could shadow.
    arguments = TypedDict("arguments", fields)  # type: ignore[misc]  # its fields are known only now
    arguments.__pydantic_config__ = ConfigDict(extra=extra, allow_inf_nan=False)  # type: ignore[attr-defined]
    return TypeAdapter(arguments)


def _field(hint: Any, default: Any) -> Any:
    if isinstance(default, FieldInfo):  # `days: int = Field(ge=1)`, as pydantic's users write it
        hint = Annotated[hint, default]
        return Required[hint] if default.is_required() else NotRequired[hint]
    return Required[hint] if default is inspect.Parameter.empty else NotRequired[hint]


def _schema(function: Any, adapter: TypeAdapter[Any], hints: dict[str, Any]) -> JSONSchema:
    try:
        schema = adapter.json_schema(schema_generator=_Schema)
    except PydanticInvalidForJsonSchema as error:
        _refuse_hint(function, hints, error)
    del schema["title"]
    return schema


def _refuse_hint(function: Any, hints: dict[str, Any], error: PydanticUserError) -> NoReturn:
    guilty = next((name for name, hint in hints.items() if not _is_json(hint)), None)
    if guilty is None:
        raise error
    _refuse(
        function,
        f"its parameter {guilty!r} is a {getattr(hints[guilty], '__name__', hints[guilty])}, which no JSON can hold; "
        f"give the value yourself with preset_kwargs={{{guilty!r}: ...}}, or take a type that JSON can hold",
    )


def _is_json(hint: Any) -> bool:
    try:
        TypeAdapter(hint).json_schema()
    except PydanticUserError:
        return False
    return True


def _explain(schema: JSONSchema, parameters: _Parameters, meanings: dict[str, str]) -> None:
    """Add the defaults, and what the docstring says, where the hints say nothing."""
    for name, each in schema.get("properties", {}).items():
        meaning = meanings.get(parameters[name].name)
        if meaning:
            each.setdefault("description", meaning)
        default = parameters[name].default
        if default is not inspect.Parameter.empty and not isinstance(default, FieldInfo):
            _add_default(each, default)


def _add_default(schema: JSONSchema, default: Any) -> None:
    try:
        told = to_jsonable_python(default)
        json.dumps(told, allow_nan=False)
    except ValueError:
        return  # it has no JSON: the model need not know it
    schema.setdefault("default", told)
