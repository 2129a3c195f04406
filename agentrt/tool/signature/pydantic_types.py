"""Schemas of parameters of any types, made by pydantic, which is loaded only when a tool needs it."""

import inspect
import sys
from collections.abc import Callable, Mapping
from typing import Annotated, Any

from pydantic import ConfigDict, TypeAdapter
from pydantic.errors import PydanticUserError
from pydantic.fields import FieldInfo
from pydantic.json_schema import GenerateJsonSchema

from agentrt.tool.arguments import Validator
from agentrt.tool.signature.callables import refuse
from agentrt.types import JSONObject, JSONSchema

if sys.version_info >= (3, 12):
    from typing import NotRequired, Required, TypedDict
else:  # pydantic takes no other TypedDict there, and brings this one along
    from typing import NotRequired, Required

    from typing_extensions import TypedDict

__all__ = ["compile_types"]


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
) -> tuple[Validator, JSONSchema]:
    """Return the validator of the arguments and their JSON schema, by the hints of the parameters.

    Raises `ToolConfigError` for a type that JSON cannot hold. `takes_more` says that other arguments are allowed.
    """
    fields: JSONObject = {}
    for name, hint in hints.items():
        default = parameters[name].default
        is_required = default is inspect.Parameter.empty
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


def _refuse_types(function: Callable[..., object], hints: Mapping[str, Any]) -> None:
    """Raise `ToolConfigError` for the first parameter whose type has no JSON schema, if there is one."""
    for name, hint in hints.items():
        try:
            TypeAdapter(hint).json_schema()
        except PydanticUserError:
            refuse(
                function,
                f"its parameter {name!r} is of type {getattr(hint, '__name__', hint)}, which JSON cannot hold; "
                f"give the value yourself with preset_kwargs={{{name!r}: ...}}, or take a type that JSON can hold",
            )
