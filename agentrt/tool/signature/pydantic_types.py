"""Schemas of parameters of any types, made by pydantic, which is loaded only when a tool needs it."""

import inspect
import sys
from collections.abc import Callable, Mapping
from copy import deepcopy
from functools import lru_cache
from typing import Annotated, Any

from pydantic import ConfigDict, TypeAdapter
from pydantic.errors import PydanticUserError
from pydantic.fields import FieldInfo
from pydantic.json_schema import GenerateJsonSchema

from agentrt.tool.arguments import TypeValidator
from agentrt.tool.signature.callables import refuse
from agentrt.types import JSONSchema

if sys.version_info >= (3, 12):
    from typing import TypedDict
else:  # pydantic takes no other TypedDict there, and brings this one along
    from typing_extensions import TypedDict


class _SchemaWithoutTitles(GenerateJsonSchema):
    # A title that only repeats the name costs tokens; a default that has no JSON is the function's own business.
    ignored_warning_kinds = {"skipped-choice", "non-serializable-default"}  # noqa: RUF012  # as pydantic declares it

    def field_title_should_be_set(self, schema: object) -> bool:
        return False


def compile_types(
    function: Callable[..., object],
    hints: Mapping[str, Any],
    parameters: Mapping[str, inspect.Parameter],
    *,
    takes_more: bool,
) -> tuple[TypeValidator, JSONSchema]:
    """Return the validator of the arguments and their JSON schema, by the hints of the parameters.

    Raises `ToolConfigError` for a type that JSON cannot hold. `takes_more` says that other arguments are allowed.
    """
    fields = dict(hints)
    required = set()
    for name in hints:
        default = parameters[name].default
        if isinstance(default, FieldInfo):  # `days: int = Field(ge=1)`, as pydantic's users write it
            fields[name] = Annotated[fields[name], default]
        if default is inspect.Parameter.empty or (isinstance(default, FieldInfo) and default.is_required()):
            required.add(name)
    # As text too, since `Literal["a", "b"] == Literal["b", "a"]`.
    parts = tuple(fields.items()), frozenset(required), takes_more, str(fields)
    compile_fields: Callable[..., tuple[TypeValidator, JSONSchema]] = _compile_once
    try:
        hash(parts)
    except TypeError:  # an `Annotated` with a list, say
        compile_fields = _compile_fields
    try:
        validator, schema = compile_fields(*parts)
    except PydanticUserError:
        for name, hint in hints.items():  # which of them has no JSON schema
            try:
                TypeAdapter(hint).json_schema()
            except PydanticUserError:
                refuse(
                    function,
                    f"its parameter {name!r} is of type {getattr(hint, '__name__', hint)}, which JSON cannot hold; "
                    f"give the value yourself with preset_kwargs={{{name!r}: ...}}, or take a type that JSON can hold",
                )
        raise
    return validator, deepcopy(schema)  # which the caller adds to


def _compile_fields(
    fields: tuple[tuple[str, Any], ...], required: frozenset[str], takes_more: bool, text: str
) -> tuple[TypeValidator, JSONSchema]:
    # A TypedDict, not a model: it makes a plain dict, leaves out what was not given so that the function's own default
    # holds, and has no attributes that a parameter called `json` or `copy` could shadow.
    hints = dict(fields)
    arguments = TypedDict("arguments", hints)  # type: ignore[misc]  # its fields are known only now
    config = ConfigDict(extra="allow" if takes_more else "forbid", allow_inf_nan=False)
    arguments.__pydantic_config__ = config  # type: ignore[attr-defined]
    # Not by `Required[...]`, which may be that of an equal hint: typing keeps them.
    arguments.__required_keys__ = required
    adapter = TypeAdapter(arguments)
    schema = adapter.json_schema(schema_generator=_SchemaWithoutTitles)
    del schema["title"]
    return adapter.validator, schema


# A program may make agents by the thousand over the same functions, and pydantic takes a millisecond for each.
_compile_once = lru_cache(maxsize=256)(_compile_fields)
