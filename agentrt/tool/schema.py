"""Checking a value against a JSON schema that somebody wrote by hand.

A small part of JSON Schema: the keywords in the table at the end of this file, and local `$ref`s. Other keywords are
passed over, `pattern` among them: Python's regular expressions can be made to run for hours.
"""

import json
import math
import reprlib
from collections.abc import Callable
from typing import Any

from agentrt.types import JSONSchema

__all__ = ["problem", "summary"]

_MAX_DEPTH = 100
_MAX_LISTED = 20


class _Where:
    """The place in the value, for messages, and the whole schema, for references."""

    __slots__ = ("depth", "path", "root")

    def __init__(self, root: Any, path: str = "", depth: int = 0) -> None:
        self.root, self.path, self.depth = root, path, depth

    def __str__(self) -> str:
        return f"argument {reprlib.repr(self.path)}" if self.path else "its input"

    def at(self, part: str | int) -> "_Where":
        return _Where(self.root, f"{self.path}.{part}" if self.path else str(part), self.depth + 1)

    def same(self) -> "_Where":
        return _Where(self.root, self.path, self.depth + 1)


def problem(value: Any, schema: JSONSchema) -> str | None:
    """Say what is wrong with a value, in words for the model; `None` when it fits the schema."""
    return _problem(value, schema, _Where(schema))


def _problem(value: Any, schema: Any, where: _Where) -> str | None:
    if where.depth > _MAX_DEPTH:
        return f"{where} is nested too deep to be checked"
    if not isinstance(schema, dict):
        return f"{where} is not allowed" if schema is False else None
    for keyword, wanted in schema.items():
        check = _CHECKS.get(keyword)
        found = check(value, wanted, schema, where) if check else None
        if found is not None:
            return found
    return None


def _type(value: Any, wanted: Any, schema: JSONSchema, where: _Where) -> str | None:
    names = wanted if isinstance(wanted, list) else [wanted]
    if any(_TYPES.get(name, _anything)(value) for name in names):
        return None
    return f"{where} should be of type {' or '.join(names)}, not {reprlib.repr(value)}"


def _enum(value: Any, wanted: Any, schema: JSONSchema, where: _Where) -> str | None:
    if any(_equal(value, each) for each in wanted):
        return None
    return f"{where} should be one of {', '.join(map(_json, wanted))}, not {reprlib.repr(value)}"


def _const(value: Any, wanted: Any, schema: JSONSchema, where: _Where) -> str | None:
    return None if _equal(value, wanted) else f"{where} should be {_json(wanted)}, not {reprlib.repr(value)}"


def _required(value: Any, wanted: Any, schema: JSONSchema, where: _Where) -> str | None:
    if not isinstance(value, dict):
        return None
    missing = [name for name in wanted if name not in value]
    return f"{where.at(missing[0])} is missing" if missing else None


def _properties(value: Any, wanted: Any, schema: JSONSchema, where: _Where) -> str | None:
    if not isinstance(value, dict):
        return None
    return _first(_problem(value[name], wanted[name], where.at(name)) for name in value if name in wanted)


def _additional(value: Any, wanted: Any, schema: JSONSchema, where: _Where) -> str | None:
    if not isinstance(value, dict):
        return None
    extra = [name for name in value if name not in schema.get("properties", ())]
    if extra and wanted is False:
        return f"{where.at(extra[0])} is unknown"
    return _first(_problem(value[name], wanted, where.at(name)) for name in extra)


def _items(value: Any, wanted: Any, schema: JSONSchema, where: _Where) -> str | None:
    if not isinstance(value, list):
        return None
    rest = value[len(schema.get("prefixItems", ())) :]
    return _first(_problem(each, wanted, where.at(place)) for place, each in enumerate(rest, len(value) - len(rest)))


def _prefix_items(value: Any, wanted: Any, schema: JSONSchema, where: _Where) -> str | None:
    if not isinstance(value, list):
        return None
    return _first(_problem(*pair, where.at(place)) for place, pair in enumerate(zip(value, wanted, strict=False)))


def _any_of(value: Any, wanted: Any, schema: JSONSchema, where: _Where) -> str | None:
    found = [_problem(value, each, where.same()) for each in wanted]
    return None if None in found else f"{where} fits none of what is allowed: {'; or '.join(map(str, found[:3]))}"


def _one_of(value: Any, wanted: Any, schema: JSONSchema, where: _Where) -> str | None:
    fitting = sum(_problem(value, each, where.same()) is None for each in wanted)
    if fitting > 1:
        return f"{where} fits {fitting} of the forms that exclude each other: {reprlib.repr(value)}"
    return None if fitting else _any_of(value, wanted, schema, where)


def _all_of(value: Any, wanted: Any, schema: JSONSchema, where: _Where) -> str | None:
    return _first(_problem(value, each, where.same()) for each in wanted)


def _ref(value: Any, wanted: Any, schema: JSONSchema, where: _Where) -> str | None:
    return _problem(value, _resolve(wanted, where.root), where.same())


def _resolve(reference: str, root: Any) -> Any:
    found = root
    for part in reference.removeprefix("#").split("/")[1:]:
        found = found.get(part.replace("~1", "/").replace("~0", "~"), {}) if isinstance(found, dict) else {}
    return found


def _limit(measure: Callable[[Any], Any], fits: Callable[[Any, Any], bool], words: str) -> "_Check":
    def check(value: Any, wanted: Any, schema: JSONSchema, where: _Where) -> str | None:
        size = measure(value)
        if size is None or fits(size, wanted):
            return None
        return f"{where} should {words.format(wanted)}, not {reprlib.repr(value)}"

    return check


def _number(value: Any) -> Any:
    return value if _is_number(value) else None


def _length(kind: type[Any]) -> Callable[[Any], int | None]:
    def measure(value: Any) -> int | None:
        return len(value) if isinstance(value, kind) else None

    return measure


def _first(found: Any) -> str | None:
    return next((each for each in found if each is not None), None)


def _equal(value: Any, wanted: Any) -> bool:
    # Python holds True equal to 1, JSON does not.
    return bool(value == wanted) and isinstance(value, bool) == isinstance(wanted, bool)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_integer(value: Any) -> bool:
    return _is_number(value) and math.isfinite(value) and value == int(value)


def _anything(value: Any) -> bool:
    return True


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def summary(schema: JSONSchema) -> str:
    """Return the parameters in one sentence: "It takes: city (string), days (integer, optional)."."""
    properties, required = schema.get("properties", {}), schema.get("required", ())
    if not properties:
        return "It takes no arguments."
    told = [
        f"{name} ({_kind(each)}{'' if name in required else ', optional'})"
        for name, each in list(properties.items())[:_MAX_LISTED]
    ]
    if len(properties) > _MAX_LISTED:
        told.append(f"and {len(properties) - _MAX_LISTED} more")
    return f"It takes: {', '.join(told)}."


def _kind(schema: Any) -> str:
    if not isinstance(schema, dict):
        return "anything"
    if "enum" in schema:
        return f"one of {', '.join(map(_json, schema['enum'][:_MAX_LISTED]))}"
    if "const" in schema:
        return _json(schema["const"])
    if "$ref" in schema:
        return str(schema["$ref"]).rsplit("/", 1)[-1]
    kinds = schema.get("anyOf") or schema.get("oneOf")
    if kinds:
        return " or ".join(_kind(each) for each in kinds)
    wanted = schema.get("type", "anything")
    return " or ".join(wanted) if isinstance(wanted, list) else str(wanted)


_TYPES: dict[str, Callable[[Any], bool]] = {
    "object": lambda value: isinstance(value, dict),
    "array": lambda value: isinstance(value, list),
    "string": lambda value: isinstance(value, str),
    "boolean": lambda value: isinstance(value, bool),
    "null": lambda value: value is None,
    "integer": _is_integer,
    "number": _is_number,
}

_Check = Callable[[Any, Any, JSONSchema, _Where], str | None]
_CHECKS: dict[str, _Check] = {
    "type": _type,
    "enum": _enum,
    "const": _const,
    "required": _required,
    "properties": _properties,
    "additionalProperties": _additional,
    "prefixItems": _prefix_items,
    "items": _items,
    "anyOf": _any_of,
    "oneOf": _one_of,
    "allOf": _all_of,
    "$ref": _ref,
    "minimum": _limit(_number, lambda size, wanted: size >= wanted, "be at least {}"),
    "maximum": _limit(_number, lambda size, wanted: size <= wanted, "be at most {}"),
    "exclusiveMinimum": _limit(_number, lambda size, wanted: size > wanted, "be more than {}"),
    "exclusiveMaximum": _limit(_number, lambda size, wanted: size < wanted, "be less than {}"),
    "minLength": _limit(_length(str), lambda size, wanted: size >= wanted, "have at least {} characters"),
    "maxLength": _limit(_length(str), lambda size, wanted: size <= wanted, "have at most {} characters"),
    "minItems": _limit(_length(list), lambda size, wanted: size >= wanted, "have at least {} items"),
    "maxItems": _limit(_length(list), lambda size, wanted: size <= wanted, "have at most {} items"),
}
