"""What is asked for a field of a form: its name, what it takes in words, and what an empty line means."""

import json
from collections.abc import Callable, Set
from typing import Any

from pydantic import BaseModel, PydanticUserError
from pydantic.fields import FieldInfo
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import to_json

__all__ = ["form_prompts"]

_MOST_SHOWN = 200  # characters of a type or default
_DEEPEST = 2  # lists within lists that a prompt speaks of
_NULL = {"type": "null"}


def form_prompts(model: type[BaseModel], secret: Set[str]) -> dict[str, str]:
    """Return a prompt for each field of a model; the defaults of those with secrets in them are not shown."""
    root = _schema_of(model)
    schemas = _resolved(root, root).get("properties", {})
    return {
        name: f"{name} ({_cut(_kind(schemas.get(name, {}), root))}"
        f"{_when_empty(field, schemas.get(name, {}), name in secret)}){_description(field)}: "
        for name, field in model.model_fields.items()
    }


def _description(field: FieldInfo) -> str:
    return f" - {' '.join(field.description.split())}" if field.description else ""


def _when_empty(field: FieldInfo, schema: Any, secret: bool) -> str:
    if field.is_required():
        return ", may be left out" if _NULL in schema.get("anyOf", []) else ""
    if field.default_factory is not None or (field.default is not None and secret):
        return ", has a default"
    if field.default is None:
        return ", may be left out"
    return f", default {_cut(to_json(field.default, fallback=repr).decode(errors='replace'))}"


class _QuietSchema(GenerateJsonSchema):
    def emit_warning(self, kind: Any, detail: str) -> None:
        pass  # what it says matters to a program that reads the schema


def _schema_of(model: type[BaseModel]) -> dict[str, Any]:
    try:
        return model.model_json_schema(by_alias=False, schema_generator=_QuietSchema)
    except PydanticUserError:  # a field that JSON has no type for; what is typed may be valid for it all the same
        return {}


def _kind(schema: Any, root: dict[str, Any], depth: int = 0) -> str:
    """Return what a schema takes, in words."""
    schema = _resolved(schema, root)
    if "const" in schema or "enum" in schema:
        return " or ".join(_json(each) for each in schema.get("enum", [schema.get("const")]))
    variants = [each for each in schema.get("anyOf") or schema.get("oneOf") or [] if each != _NULL]
    if variants:
        return " or ".join(dict.fromkeys(_kind(each, root, depth) for each in variants))
    return _KINDS.get(schema.get("type"), _simple)(schema, root, depth)


def _resolved(schema: Any, root: dict[str, Any]) -> dict[str, Any]:
    reference = schema.get("$ref") if isinstance(schema, dict) else None
    if isinstance(reference, str):
        schema = root.get("$defs", {}).get(reference.removeprefix("#/$defs/"), {})
    return schema if isinstance(schema, dict) else {}


def _simple(schema: dict[str, Any], root: dict[str, Any], depth: int) -> str:
    named = {"boolean": "yes or no", "string": schema.get("format", "text")}
    kind = schema.get("type")
    return str(named.get(kind, kind)) if isinstance(kind, str) else "value"


def _list(schema: dict[str, Any], root: dict[str, Any], depth: int) -> str:
    items = f" of {_kind(schema['items'], root, depth + 1)}" if "items" in schema and depth < _DEEPEST else ""
    return f"{'' if depth else 'JSON '}list{items}"


def _object(schema: dict[str, Any], root: dict[str, Any], depth: int) -> str:
    names = " with " + ", ".join(map(_json, schema["properties"])) if schema.get("properties") else ""
    return f"{'' if depth else 'JSON '}object{names}"


_KINDS: dict[Any, Callable[[dict[str, Any], dict[str, Any], int], str]] = {"array": _list, "object": _object}


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _cut(text: str) -> str:
    return text if len(text) <= _MOST_SHOWN else text[:_MOST_SHOWN] + "..."
