"""The prompt for a field of a form: its name, what it takes in words, and what an empty line means."""

import json
from collections.abc import Set

from pydantic import BaseModel, PydanticUserError
from pydantic.fields import FieldInfo
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaWarningKind
from pydantic_core import to_json

from agentrt.types import JSONSchema

__all__ = ["form_prompts"]

_MAX_PROMPT = 200  # characters of a type or default
_MAX_PROMPT_DEPTH = 2  # of lists within lists that a prompt describes
_NULL = {"type": "null"}
_PROMPT_TYPES = {"boolean": "yes or no"}


def form_prompts(model: type[BaseModel], secret: Set[str]) -> dict[str, str]:
    """Return a prompt for each field of a model; the defaults of those with secrets in them are not shown."""
    try:
        root = model.model_json_schema(by_alias=False, schema_generator=_QuietSchema)
    except PydanticUserError:  # a field that JSON has no type for; what is typed may be valid for it all the same
        root = {}
    types = _TypeNames(root)
    schemas = types.resolve(root).get("properties", {})
    prompts = {}
    for name, field in model.model_fields.items():
        schema = schemas.get(name, {})
        description = f" - {' '.join(field.description.split())}" if field.description else ""
        default = _describe_default(field, schema, name in secret)
        prompts[name] = f"{name} ({_shorten_prompt(types.name(schema))}{default}){description}: "
    return prompts


def _describe_default(field: FieldInfo, schema: JSONSchema, is_secret: bool) -> str:
    if field.is_required():
        return ", may be left out" if _NULL in schema.get("anyOf", []) else ""
    if field.default_factory is not None or (field.default is not None and is_secret):
        return ", has a default"
    if field.default is None:
        return ", may be left out"
    return f", default {_shorten_prompt(to_json(field.default, fallback=repr).decode(errors='replace'))}"


def _shorten_prompt(text: str) -> str:
    return text if len(text) <= _MAX_PROMPT else text[:_MAX_PROMPT] + "..."


class _QuietSchema(GenerateJsonSchema):
    def emit_warning(self, kind: JsonSchemaWarningKind, detail: str) -> None:
        pass  # what it says matters to a program that reads the schema


class _TypeNames:
    """Says in words what a JSON schema takes; `root` holds the definitions that schemas refer to."""

    def __init__(self, root: JSONSchema) -> None:
        self._definitions = root.get("$defs", {})

    def resolve(self, schema: object) -> JSONSchema:
        """Return the schema that a reference leads to."""
        reference = schema.get("$ref") if isinstance(schema, dict) else None
        if isinstance(reference, str):
            schema = self._definitions.get(reference.removeprefix("#/$defs/"), {})
        return schema if isinstance(schema, dict) else {}

    def name(self, schema: object, depth: int = 0) -> str:
        """Return what the schema takes; `depth` lists are around it."""
        schema = self.resolve(schema)
        if "const" in schema or "enum" in schema:
            return " or ".join(map(_json_text, schema.get("enum", [schema.get("const")])))
        variants = [variant for variant in schema.get("anyOf") or schema.get("oneOf") or [] if variant != _NULL]
        if variants:
            return " or ".join(dict.fromkeys(self.name(variant, depth) for variant in variants))
        prefix = "" if depth else "JSON "
        match schema.get("type"):
            case "array":
                has_items = "items" in schema and depth < _MAX_PROMPT_DEPTH
                return f"{prefix}list of {self.name(schema['items'], depth + 1)}" if has_items else f"{prefix}list"
            case "object":
                names = ", ".join(map(_json_text, schema.get("properties") or ()))
                return f"{prefix}object with {names}" if names else f"{prefix}object"
            case "string":
                return str(schema.get("format", "text"))
            case str() as kind:
                return _PROMPT_TYPES.get(kind, kind)
        return "value"


def _json_text(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
