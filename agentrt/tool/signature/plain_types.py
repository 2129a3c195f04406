"""Schemas of parameters of plain types, written down directly.

They are what pydantic makes of the same hints, for a twentieth of the time and without loading it; a property test
compares the two. Plain are `str`, `int`, `float`, `bool`, `None`, `Any`, a `Literal` of strings, lists and dicts of
them, and each of these or `None`.
"""

import inspect
import sys
import types
from collections.abc import Mapping
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin

from pydantic_core import CoreConfig, SchemaValidator, core_schema

from agentrt.tool.arguments import Validator
from agentrt.types import JSONSchema

__all__ = ["compile_plain_types", "is_field", "only_describes"]


class _Schemas(NamedTuple):
    core: core_schema.CoreSchema
    json: JSONSchema


_SCALARS: dict[type | None, _Schemas] = {
    str: _Schemas(core_schema.str_schema(), {"type": "string"}),
    int: _Schemas(core_schema.int_schema(), {"type": "integer"}),
    float: _Schemas(core_schema.float_schema(), {"type": "number"}),
    bool: _Schemas(core_schema.bool_schema(), {"type": "boolean"}),
    types.NoneType: _Schemas(core_schema.none_schema(), {"type": "null"}),
    None: _Schemas(core_schema.none_schema(), {"type": "null"}),  # as `dict[str, None]` has it
}
_ANY_SCHEMA = core_schema.any_schema()
_CLOSED = CoreConfig(extra_fields_behavior="forbid", allow_inf_nan=False)
_OPEN = CoreConfig(extra_fields_behavior="allow", allow_inf_nan=False)


def is_field(value: object) -> bool:
    """Say whether the value is what pydantic's `Field(...)` returns; there is none while pydantic is not loaded."""
    fields = sys.modules.get("pydantic.fields")
    return fields is not None and isinstance(value, fields.FieldInfo)


def compile_plain_types(
    hints: Mapping[str, Any], parameters: Mapping[str, inspect.Parameter], *, takes_more: bool
) -> tuple[Validator, JSONSchema] | None:
    """Return what `compile_types` would, or `None` where a parameter is of no plain type."""
    fields: dict[str, core_schema.TypedDictField] = {}
    properties: dict[str, JSONSchema] = {}
    required: list[str] = []
    for name, hint in hints.items():
        default = parameters[name].default
        is_required = default is inspect.Parameter.empty
        if is_field(default):
            if not default.is_required():
                return None
            hint, is_required = Annotated[hint, default], True
        schemas = _schemas_of_parameter(hint)
        if schemas is None:
            return None
        fields[name] = core_schema.typed_dict_field(schemas.core, required=is_required)
        properties[name] = schemas.json
        if is_required:
            required.append(name)
    core = core_schema.typed_dict_schema(
        fields, extra_behavior="allow" if takes_more else "forbid", config=_OPEN if takes_more else _CLOSED
    )
    schema: JSONSchema = {"additionalProperties": takes_more, "properties": properties}
    if required:
        schema["required"] = required
    schema["type"] = "object"
    return SchemaValidator(core), schema


def _schemas_of_parameter(hint: Any) -> _Schemas | None:
    if get_origin(hint) is not Annotated:
        return _plain_schemas(hint)
    hint, *metadata = get_args(hint)
    fields = [entry for entry in metadata if not isinstance(entry, str)]
    if len(fields) > 1 or not all(map(only_describes, fields)):
        return None
    schemas = _plain_schemas(hint)
    if schemas is None or not fields:
        return schemas
    # With the keys in the order of the alphabet, as pydantic writes them.
    return _Schemas(schemas.core, dict(sorted({**schemas.json, "description": fields[0].description}.items())))


def only_describes(field: Any) -> bool:
    """Say whether it is a `Field(...)` that has a description and nothing else."""
    if not is_field(field) or not isinstance(field.description, str):
        return False
    from pydantic.fields import Field, FieldInfo  # loaded, since the field was made by it

    plain = Field(description=field.description)
    return type(field) is FieldInfo and all(
        getattr(field, name, None) == getattr(plain, name, None) for name in FieldInfo.__slots__
    )


def _plain_schemas(hint: Any) -> _Schemas | None:
    if hint is None or (type(hint) is type and hint in _SCALARS):
        core, json = _SCALARS[hint]
        return _Schemas(core, json.copy())  # which the caller may add to
    if hint is Any:
        return _Schemas(_ANY_SCHEMA, {})
    origin, parts = get_origin(hint) or hint, get_args(hint)
    if origin is list:
        items = _plain_schemas(*parts or (Any,))
        return items and _Schemas(core_schema.list_schema(items.core), {"items": items.json, "type": "array"})
    if origin is dict:
        key, value = parts or (Any, Any)
        keys, values = _plain_schemas(key), _plain_schemas(value)
        if key not in (str, Any) or keys is None or values is None:
            return None
        json = {"additionalProperties": values.json or True, "type": "object"}
        return _Schemas(core_schema.dict_schema(keys.core, values.core), json)
    return _schemas_of_choice(origin, parts)


def _schemas_of_choice(origin: object, parts: tuple[Any, ...]) -> _Schemas | None:
    if origin is Literal and all(type(value) is str for value in parts):
        expected: JSONSchema = {"const": parts[0]} if len(parts) == 1 else {"enum": list(parts)}
        return _Schemas(core_schema.literal_schema(list(parts)), {**expected, "type": "string"})
    if origin in (Union, types.UnionType) and len(parts) == 2 and types.NoneType in parts:
        inner = _plain_schemas(parts[0] if parts[1] is types.NoneType else parts[1])
        null: JSONSchema = {"type": "null"}
        return inner and _Schemas(core_schema.nullable_schema(inner.core), {"anyOf": [inner.json, null]})
    return None
