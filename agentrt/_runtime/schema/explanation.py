"""Explains to a model why a value does not fit a schema.

For a choice, the engine reports the errors of each alternative, and of their alternatives in turn, which is endless if
a choice contains itself. So it is asked about one part at a time, in which the inner parts only say yes or no.
"""

import json
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from agentrt._runtime.schema.engine import SchemaEngine
from agentrt._runtime.schema.parts import LISTS, MAPS, SINGLES, Parts, SchemaPart, escape_pointer
from agentrt._runtime.text import short_repr
from agentrt.types import JSONSchema

if TYPE_CHECKING:
    import jsonschema_rs

PATTERN = "x-agentrt-pattern"
"""The keyword for the original text of a pattern that was taken apart."""

_SCHEMA_ADDRESS = "urn:agentrt:schema"
_Path = tuple[str | int, ...]
_MAX_CAUSES = 3  # per message: a model need not read why each of twenty alternatives fails
_CAUSES_INSIDE = 3  # levels of causes of causes
_MAX_STEPS = 100
_MAX_ENUM_LISTED = 100
_MAX_LISTED_CHARACTERS = 5_000  # characters of them

# The type and missing parts come first, then the value itself, then its parts.
_FIRST = ("type", "enum", "const")
_DECIDES = ("contains", "if", "not")  # the engine only needs to know whether these fit

_WISHES = {
    "exclusiveMaximum": "should be less than {}",
    "exclusiveMinimum": "should be more than {}",
    "format": "should have the format {}",
    "maxItems": "should have at most {} items",
    "maxLength": "should have at most {} characters",
    "maxProperties": "should have at most {} properties",
    "maximum": "should be at most {}",
    "minItems": "should have at least {} items",
    "minLength": "should have at least {} characters",
    "minProperties": "should have at least {} properties",
    "minimum": "should be at least {}",
    "multipleOf": "should be a multiple of {}",
    "pattern": "should match the pattern {}",
    "uniqueItems": "should have each item only once",
}
"""The requirement of each keyword that depends only on the value itself."""


class Explanation:
    """Finds the first problem of a value that does not fit."""

    def __init__(self, root: Any, parts: Parts, engine: SchemaEngine) -> None:
        self._root, self._parts, self._engine = root, parts, engine

    def explain(self, value: object) -> str:
        """Return the problem of the value."""
        registry = self._engine.registry(_SCHEMA_ADDRESS, self._root)
        return _ProblemSearch(self._parts, self._engine, registry).problem(
            SchemaPart(self._root, "#"), value, (), _CAUSES_INSIDE
        )


class _ProblemSearch:
    def __init__(self, parts: Parts, engine: SchemaEngine, registry: "jsonschema_rs.Registry") -> None:
        self._parts, self._engine, self._registry = parts, engine, registry
        self._steps = 0

    def problem(self, part: SchemaPart, value: Any, path: _Path, causes: int) -> str:
        schema, pointer = part
        self._steps += 1
        if schema is False:
            return f"{_subject(path)} is not allowed"
        if isinstance(schema, dict) and self._steps <= _MAX_STEPS:
            if PATTERN in schema:
                return f"{_subject(path)} should match the pattern {schema[PATTERN]:.200}, not {short_repr(value)}"
            if self._engine.ignores_beside_ref and "$ref" in schema:
                schema = {"$ref": schema["$ref"]}
            for question in self._questions(schema, pointer):
                error = self._error(question, value)
                if error is not None:
                    return self._describe(error, SchemaPart(schema, pointer), value, path, causes)
        return f"{_subject(path)} has a part that is not allowed: {short_repr(value)}"

    def _questions(self, schema: JSONSchema, pointer: str) -> list[JSONSchema]:
        """Return the keywords as separate schemas, in the order of the checks."""
        first: JSONSchema = {}
        own: JSONSchema = {}
        inside: JSONSchema = {}
        for keyword, setting in schema.items():
            place = f"{pointer}/{keyword}"
            if keyword in _FIRST:
                first[keyword] = setting
            elif keyword in MAPS:
                inside[keyword] = {
                    name: inner if isinstance(inner, list) else _yes_or_no(inner, f"{place}/{escape_pointer(name)}")
                    for name, inner in setting.items()
                }
            elif keyword in LISTS and isinstance(setting, list):
                inside[keyword] = [_yes_or_no(inner, f"{place}/{number}") for number, inner in enumerate(setting)]
            elif keyword in _DECIDES:
                inside[keyword] = _reference(place)
            elif keyword in SINGLES and not keyword.startswith("unevaluated"):  # alone, it would not see the others
                inside[keyword] = _yes_or_no(setting, place)
            elif keyword in ("minContains", "maxContains"):
                inside[keyword] = setting
            elif keyword in _WISHES or keyword in ("required", "dependentRequired"):
                own[keyword] = setting
        for keyword in ("$defs", "definitions"):
            inside.pop(keyword, None)
        if isinstance(schema.get("$ref"), str):
            target = self._parts.find(schema["$ref"], pointer)
            inside["allOf"] = [*inside.get("allOf", []), _yes_or_no(target.schema, target.pointer)]
        return [question for question in (first, own, inside) if question]

    def _error(self, question: JSONSchema, value: Any) -> "jsonschema_rs.ValidationError | None":
        from jsonschema_rs import ValidationError

        try:
            self._engine.compile(question, self._registry).validate(value)
        except ValidationError as error:
            # Its frames would hold it in a circle, and with it the compiled schema, until the garbage is collected.
            return error.with_traceback(None)
        return None

    def _describe(
        self, error: "jsonschema_rs.ValidationError", part: SchemaPart, value: Any, path: _Path, causes: int
    ) -> str:
        keyword, where = error.kind.name, error.schema_path
        for name in error.instance_path:
            value = value[name]
        path = (*path, *error.instance_path)
        if keyword == "not" and len(where) > 1:  # a part inside says no
            return self.problem(self._inner(part, where[:-1]), value, path, causes)
        if keyword in ("anyOf", "oneOf"):
            return self._describe_choice(error, part, value, path, causes)
        details = error.kind.as_dict()
        if keyword == "propertyNames":
            name = next(name for name in value if not self._fits(f"{part.pointer}/propertyNames", name))
            cause = self.problem(self._inner(part, [keyword]), name, (*path, name), causes)
            return f"{_subject((*path, name))} has a name that does not fit: {cause}"
        if keyword == "required":
            return self._describe_missing(details["property"], part.schema, str(where[0]), value, path)
        if keyword == "additionalProperties":
            return f"{_subject((*path, details['unexpected'][0]))} is unknown"
        if keyword == "additionalItems":
            return f"{_subject((*path, details['limit']))} is not allowed"
        if keyword == "contains":
            return f"{_subject(path)} {self._describe_count(part, value)}"
        return f"{_subject(path)} {_describe_value(keyword, details, part.schema, short_repr(value))}"

    def _describe_choice(
        self, error: "jsonschema_rs.ValidationError", part: SchemaPart, value: Any, path: _Path, causes: int
    ) -> str:
        subject, keyword = _subject(path), error.kind.name
        fitting = error.kind.as_dict()["context"].count([])
        if fitting:
            return f"{subject} should fit exactly one of the allowed forms, but fits {fitting}: {short_repr(value)}"
        numbers = range(min(len(part.schema[keyword]), _MAX_CAUSES)) if causes else ()
        reasons = [self.problem(self._inner(part, [keyword, number]), value, path, causes - 1) for number in numbers]
        return f"{subject} fits none of the allowed forms{': ' if reasons else ''}{'; or '.join(reasons)}"

    def _describe_missing(self, missing: str, schema: JSONSchema, keyword: str, value: Any, path: _Path) -> str:
        subject = _subject((*path, missing))
        if keyword == "required":
            return f"{subject} is missing"
        requires = (name for name, names in schema[keyword].items() if name in value and missing in names)
        return f"{subject} is missing, but {short_repr(next(requires))} requires it"

    def _describe_count(self, part: SchemaPart, value: list[Any]) -> str:
        schema: JSONSchema = part.schema
        contained = self._engine.compile(_reference(f"{part.pointer}/contains"), self._registry)
        count = sum(map(contained.is_valid, value))
        fewest = schema.get("minContains", 1)
        if count < fewest:
            return f"should have at least {fewest} items of the required kind, but has {count}"
        return f"should have at most {schema['maxContains']} items of the limited kind, but has {count}"

    def _fits(self, pointer: str, value: object) -> bool:
        return self._engine.compile(_reference(pointer), self._registry).is_valid(value)

    def _inner(self, part: SchemaPart, where: list[str | int]) -> SchemaPart:
        schema, pointer = part
        if where[0] == "allOf" and where[1] == len(schema.get("allOf", ())):  # the place of the reference
            return self._parts.find(schema["$ref"], pointer)
        for name in where:
            schema = schema[name]
        return SchemaPart(schema, "/".join((pointer, *map(escape_pointer, where))))


def _subject(path: _Path) -> str:
    return f"argument {short_repr('.'.join(map(str, path)))}" if path else "its input"


def _reference(pointer: str) -> JSONSchema:
    return {"$ref": _SCHEMA_ADDRESS + quote(pointer, safe="#/~")}


def _yes_or_no(schema: Any, pointer: str) -> Any:
    # `not` has no causes.
    return {"not": {"not": _reference(pointer)}} if isinstance(schema, dict) else schema


def _describe_value(keyword: str, details: dict[str, Any], schema: JSONSchema, shown: str) -> str:
    if keyword in _WISHES:
        limit = next(iter(details.values()), "")
        return f"{_WISHES[keyword].format(limit[:200] if isinstance(limit, str) else short_repr(limit))}, not {shown}"
    if keyword == "type":
        types = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
        return f"should be of type {' or '.join(types)}, not {shown}"
    if keyword in ("const", "enum"):
        values = [schema["const"]] if keyword == "const" else schema["enum"]
        listed = ", ".join(json.dumps(value, ensure_ascii=False) for value in values[:_MAX_ENUM_LISTED])
        listed = listed if len(listed) <= _MAX_LISTED_CHARACTERS else f"{listed[:_MAX_LISTED_CHARACTERS]}..."
        more = f" and {len(values) - _MAX_ENUM_LISTED:,} more" if len(values) > _MAX_ENUM_LISTED else ""
        return f"should be {'' if keyword == 'const' else 'one of '}{listed}{more}, not {shown}"
    if keyword == "falseSchema":
        return "is not allowed"
    return f"has a form that is not allowed: {shown}"
