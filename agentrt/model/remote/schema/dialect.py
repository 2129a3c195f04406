"""The JSON schemas that a provider can enforce: unsupported keywords become descriptions, or are refused."""

import json
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter

from agentrt.types import JSONSchema

TEXT_FORMATS = frozenset({"date", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "time", "uuid"})
"""The formats of text that every dialect knows."""
_JSON_TYPES = {"array", "boolean", "integer", "null", "number", "object", "string"}
# Keywords that do not restrict values.
_DROPPED = {"$comment", "deprecated", "discriminator", "examples", "readOnly", "title", "writeOnly"}
# Restrictions beyond the type. If a dialect lacks one, the model reads it as a description,
# and the answer is validated against the whole schema anyway.
_CHECKS = {"exclusiveMaximum", "exclusiveMinimum", "format", "maximum", "maxItems", "maxLength", "minimum", "minItems"}
_CHECKS |= {"minLength", "multipleOf", "pattern", "uniqueItems"}


@dataclass(frozen=True, slots=True)
class SchemaDialect:
    """The JSON schemas that a provider can enforce.

    `checks` are its keywords beyond types, enums and references, and `formats` the formats of text.
    `all_required`: each property must be given. `recursive`: a type may hold itself.
    """

    checks: frozenset[str]
    formats: frozenset[str]
    all_required: bool
    recursive: bool

    def translate(self, schema: JSONSchema) -> JSONSchema | None:
        """Return the schema in this dialect, `None` if it cannot be expressed.

        It may be narrower than the given one, and wider only where the difference is a check of a single value.
        """
        try:
            translated = self._translate(schema)
            if translated.get("type") != "object":
                return None
            if not self.recursive:
                definitions = schema.get("$defs", {})
                [*TopologicalSorter({name: _references(part) for name, part in definitions.items()}).static_order()]
        except (_NoWordsError, CycleError, RecursionError):
            return None
        return translated

    def _translate(self, schema: object) -> JSONSchema:
        if not isinstance(schema, dict):
            raise _NoWordsError
        words: JSONSchema = {}
        notes: list[str] = []
        for name, value in schema.items():
            if name in _CHECKS:
                if name in self.checks or (name == "format" and value in self.formats):
                    words[name] = value
                else:
                    notes.append(f"{name}: {json.dumps(value)}")
            elif name == "default":
                notes.append(f"default: {json.dumps(value)}")
            elif name not in _DROPPED:
                translated = self._translate_keyword(name, value)
                if words.keys() & translated.keys():  # a value must fit both, as with `anyOf` beside `oneOf`
                    raise _NoWordsError
                words |= translated
        if not words.keys() & {"type", "anyOf", "enum", "$ref"}:
            raise _NoWordsError  # any value is allowed
        if words.get("type") == "object":
            words |= self._closed_object(schema)  # narrower where the schema allows further properties, never wider
        if words.get("type") == "array" and "items" not in words:
            raise _NoWordsError
        description = schema.get("description", "")
        words["description"] = "; ".join(filter(None, [description, *notes]))
        if not words["description"]:
            del words["description"]
        if "$ref" in words and len(words) > 1:  # which allows no other keywords beside it
            words = {"anyOf": [{"$ref": words.pop("$ref")}], **words}
        return words

    def _translate_keyword(self, name: str, value: object) -> JSONSchema:
        match name, value:
            case "type", str() if value in _JSON_TYPES:
                return {"type": value}
            case "type", list() if all(kind in _JSON_TYPES - {"array", "object"} for kind in value):
                return {"type": value}
            case ("description", str()) | ("required", list()) | ("additionalProperties", False):
                return {}  # handled at the end
            case "properties", dict():
                return {"properties": {key: self._translate(part) for key, part in value.items()}}
            case "$defs", dict():
                return {"$defs": {key: self._translate(part) for key, part in value.items()}}
            case "items", _:
                return {"items": self._translate(value)}
            case (("anyOf" | "oneOf"), list()):  # if several fit, the whole schema decides
                return {"anyOf": [self._translate(part) for part in value]}
            case "$ref", str() if value.startswith("#/$defs/"):
                return {"$ref": value}
            case "enum", list() if all(part is None or isinstance(part, (str, int, float)) for part in value):
                return {"enum": value}
            case "const", (str() | int() | float() | None):
                return {"enum": [value]}
        raise _NoWordsError

    def _closed_object(self, schema: JSONSchema) -> JSONSchema:
        names, required = list(schema.get("properties", {})), schema.get("required", [])
        # It may have any properties; closed, only {} would be left, as would values without a schema.
        if not names or any(name not in names for name in required):
            raise _NoWordsError
        return {"required": names if self.all_required else required, "additionalProperties": False}


class _NoWordsError(Exception):
    """A dialect cannot express a part of a schema."""


def _references(schema: object) -> set[str]:
    """Return the names of the definitions that a schema refers to."""
    if isinstance(schema, list):
        return {name for part in schema for name in _references(part)}
    if not isinstance(schema, dict):
        return set()
    reference = schema.get("$ref")
    direct = {reference.removeprefix("#/$defs/")} if isinstance(reference, str) else set()
    return direct | {name for part in schema.values() for name in _references(part)}
