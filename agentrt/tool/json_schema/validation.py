"""The keywords that look at a value itself: its type, size and content, and which properties and items it has.

They are the validation vocabulary of JSON Schema, with `format`. There is one function for each keyword, which builds
the check of that keyword.
"""

import math
from collections.abc import Callable, Sized
from fractions import Fraction
from operator import ge, gt, le, lt

from agentrt.text import short_repr
from agentrt.tool.json_schema.check import (
    Build,
    Check,
    Problem,
    ReferenceCache,
    SubschemaCompiler,
    as_json,
    is_integer,
    is_number,
    json_key,
    malformed,
    read_count,
    read_names,
    read_number,
    read_pattern,
    read_schemas,
)
from agentrt.tool.json_schema.formats import FORMATS
from agentrt.types import JSONSchema

__all__ = [
    "LIMITS",
    "build_const",
    "build_dependent_required",
    "build_enum",
    "build_format",
    "build_multiple_of",
    "build_pattern",
    "build_required",
    "build_type",
    "build_unique_items",
]

_MAX_ENUM_LISTED = 100  # in a message to the model; all values count

_TYPES: dict[str, Callable[[object], bool]] = {
    "object": lambda value: isinstance(value, dict),
    "array": lambda value: isinstance(value, list),
    "string": lambda value: isinstance(value, str),
    "boolean": lambda value: value.__class__ is bool,
    "null": lambda value: value is None,
    "integer": is_integer,
    "number": is_number,
}


def build_type(compiler: SubschemaCompiler, types: object, schema: JSONSchema, pointer: str) -> Check:
    names = list(types) if isinstance(types, list) and types else [types]
    if not all(isinstance(name, str) and name in _TYPES for name in names):
        raise malformed("type", pointer, f"one of {', '.join(_TYPES)}, or a list of them", types)
    text = f"should be of type {' or '.join(map(str, names))}"
    # Most schemas name one type: that one is tested without a loop.
    fits, *alternatives = (_TYPES[str(name)] for name in names)

    def check(value: object, cache: ReferenceCache | None) -> Problem | None:
        if fits(value) or (alternatives and any(fits_too(value) for fits_too in alternatives)):
            return None
        return Problem(text, value)

    return check


def build_enum(compiler: SubschemaCompiler, values: object, schema: JSONSchema, pointer: str) -> Check:
    if not isinstance(values, list):
        raise malformed("enum", pointer, "a list of values", values)
    more = f" and {len(values) - _MAX_ENUM_LISTED:,} more" if len(values) > _MAX_ENUM_LISTED else ""
    return _is_among(values, f"should be one of {', '.join(map(as_json, values[:_MAX_ENUM_LISTED]))}{more}")


def build_const(compiler: SubschemaCompiler, constant: object, schema: JSONSchema, pointer: str) -> Check:
    return _is_among([constant], f"should be {as_json(constant)}")


def _is_among(values: list[object], text: str) -> Check:
    keys = frozenset(map(json_key, values))  # so that a long list takes no longer than a short one

    def check(value: object, cache: ReferenceCache | None) -> Problem | None:
        return None if json_key(value) in keys else Problem(text, value)

    return check


def _number_limit(keyword: str, fits: Callable[[float, float], bool], words: str) -> Build:
    def build(compiler: SubschemaCompiler, setting: object, schema: JSONSchema, pointer: str) -> Check:
        limit = read_number(keyword, setting, pointer)
        text = f"should be {words} {short_repr(limit)}"

        def check(value: object, cache: ReferenceCache | None) -> Problem | None:
            if not isinstance(value, (int, float)) or value.__class__ is bool:  # `is_number`, without a call
                return None
            return None if fits(value, limit) else Problem(text, value)

        return check

    return build


def _size_limit(keyword: str, kind: type[Sized], fits: Callable[[int, int], bool], words: str) -> Build:
    def build(compiler: SubschemaCompiler, setting: object, schema: JSONSchema, pointer: str) -> Check:
        limit = read_count(keyword, setting, pointer)
        text = f"should have {words.format(short_repr(limit))}"

        def check(value: object, cache: ReferenceCache | None) -> Problem | None:
            return None if not isinstance(value, kind) or fits(len(value), limit) else Problem(text, value)

        return check

    return build


LIMITS: dict[str, Build] = {
    "minimum": _number_limit("minimum", ge, "at least"),
    "maximum": _number_limit("maximum", le, "at most"),
    "exclusiveMinimum": _number_limit("exclusiveMinimum", gt, "more than"),
    "exclusiveMaximum": _number_limit("exclusiveMaximum", lt, "less than"),
    "minLength": _size_limit("minLength", str, ge, "at least {} characters"),
    "maxLength": _size_limit("maxLength", str, le, "at most {} characters"),
    "minItems": _size_limit("minItems", list, ge, "at least {} items"),
    "maxItems": _size_limit("maxItems", list, le, "at most {} items"),
    "minProperties": _size_limit("minProperties", dict, ge, "at least {} properties"),
    "maxProperties": _size_limit("maxProperties", dict, le, "at most {} properties"),
}
"""The builders of the keywords that limit a number, or how much there is of something."""


def build_multiple_of(compiler: SubschemaCompiler, setting: object, schema: JSONSchema, pointer: str) -> Check:
    divisor = _exact_fraction(read_number("multipleOf", setting, pointer))
    if divisor <= 0:
        raise malformed("multipleOf", pointer, "more than 0", setting)
    text = f"should be a multiple of {short_repr(setting)}"

    def check(value: object, cache: ReferenceCache | None) -> Problem | None:
        if not is_number(value):
            return None
        is_finite = isinstance(value, int) or math.isfinite(value)  # which raises for an int larger than any float
        return None if is_finite and _exact_fraction(value) % divisor == 0 else Problem(text, value)

    return check


def _exact_fraction(number: int | float) -> Fraction:
    # As it is written: 0.1 is a tenth, whatever the nearest binary number is.
    return Fraction(repr(number)) if isinstance(number, float) else Fraction(number)


def build_pattern(compiler: SubschemaCompiler, pattern: object, schema: JSONSchema, pointer: str) -> Check:
    fits = read_pattern("pattern", pattern, pointer)
    return _string_check(fits, f"should match the pattern {pattern}")


def build_format(compiler: SubschemaCompiler, name: object, schema: JSONSchema, pointer: str) -> Check | None:
    if not isinstance(name, str):
        raise malformed("format", pointer, "the name of a format", name)
    fits = FORMATS.get(name)  # what is not known is ignored, as the specification has it
    return None if fits is None else _string_check(fits, f"should have the format {name}")


def _string_check(fits: Callable[[str], bool], text: str) -> Check:
    def check(value: object, cache: ReferenceCache | None) -> Problem | None:
        return None if not isinstance(value, str) or fits(value) else Problem(text, value)

    return check


def build_required(compiler: SubschemaCompiler, setting: object, schema: JSONSchema, pointer: str) -> Check:
    names = read_names("required", setting, pointer)

    def check(value: object, cache: ReferenceCache | None) -> Problem | None:
        if isinstance(value, dict):
            for name in names:
                if name not in value:
                    return Problem("is missing").add_part(name)
        return None

    return check


def build_dependent_required(compiler: SubschemaCompiler, setting: object, schema: JSONSchema, pointer: str) -> Check:
    lists = read_schemas("dependentRequired", setting, pointer)
    required_by = {name: read_names("dependentRequired", names, pointer) for name, names in lists.items()}

    def check(value: object, cache: ReferenceCache | None) -> Problem | None:
        if isinstance(value, dict):
            for name, required in required_by.items():
                missing = next((other for other in required if other not in value), None) if name in value else None
                if missing is not None:
                    return Problem(f"is missing, but {short_repr(name)} requires it").add_part(missing)
        return None

    return check


def build_unique_items(compiler: SubschemaCompiler, setting: object, schema: JSONSchema, pointer: str) -> Check | None:
    if not isinstance(setting, bool):
        raise malformed("uniqueItems", pointer, "true or false", setting)

    def check(value: object, cache: ReferenceCache | None) -> Problem | None:
        if isinstance(value, list) and len({json_key(item) for item in value}) < len(value):
            return Problem("should have each item only once", value)
        return None

    return check if setting else None
