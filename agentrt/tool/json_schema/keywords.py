"""What each keyword of a JSON schema demands of a value: one function for each, which builds the check of that keyword.

A builder refuses what is malformed. A check gets the value and the counter of the run; it returns the problem that it
found, if any. Values are compared as JSON compares them: 1 is 1.0, and neither is `true`.
"""

import json
import math
from collections.abc import Callable, Iterable
from fractions import Fraction
from operator import ge, gt, le, lt
from typing import Any, Protocol

from agentrt.text import short_repr
from agentrt.tool.json_schema.formats import FORMATS, PatternError, compile_pattern
from agentrt.types import JSONSchema

__all__ = ["KEYWORDS", "UNSUPPORTED", "Build", "Check", "Problem", "Run", "SchemaError", "as_json", "escape_pointer"]


UNSUPPORTED = ("$dynamicRef", "$recursiveRef", "unevaluatedProperties", "unevaluatedItems")
"""Keywords of the drafts that are not supported."""


class SchemaError(ValueError):
    """A schema that is malformed, or that cannot be checked; the text says where, and what is wrong."""


class Problem:
    """What is wrong with a value, and where in it; put into words only when it is told."""

    __slots__ = ("_others", "_path", "_text", "_value")

    _NOTHING = object()

    def __init__(self, text: str, value: Any = _NOTHING, others: "Iterable[Problem]" = ()) -> None:
        self._text, self._value, self._others = text, value, others
        self._path: list[str | int] = []

    def add_part(self, part: str | int) -> "Problem":
        """Return the problem of a part as a problem of the value that the part belongs to."""
        problem = Problem(self._text, self._value, self._others)  # another part may have the same one
        problem._path = [*self._path, part]
        return problem

    def describe(self, before: tuple[str | int, ...] = (), depth: int = 3) -> str:
        """Return the problem in words for the model, with those that led to it down to some depth."""
        path = (*before, *reversed(self._path))
        subject = f"argument {short_repr('.'.join(map(str, path)))}" if path else "its input"
        value = "" if self._value is Problem._NOTHING else f", not {short_repr(self._value)}"
        others = "; or ".join(other.describe(path, depth - 1) for other in self._others) if depth else ""
        return f"{subject} {self._text}{value}{': ' if others else ''}{others}"


class Run:
    """What is remembered while one value is checked: what came of each part of it that a reference was followed to.

    Without that, a schema that refers to itself twice would take time without end.
    """

    __slots__ = ("_found",)

    def __init__(self) -> None:
        self._found: dict[tuple[str, int], Problem | None] = {}

    def look_up(self, target: str, check: "Check", value: Any) -> Problem | None:
        """Return what the check of the target finds wrong with the part, which is asked once."""
        key = target, id(value)  # the parts live as long as the value
        if key not in self._found:
            self._found[key] = check(value, self)
        return self._found[key]


Check = Callable[[Any, Run | None], Problem | None]


class _Compiler(Protocol):
    def subschema(self, schema: Any, place: str, *, same_value_as: str | None = None) -> Check | None: ...
    def reference(self, reference: str, place: str) -> Check: ...


Build = Callable[[_Compiler, Any, JSONSchema, str], Check | None]


_MAX_HASHED = 2**32
_MAX_LISTED = 100


def escape_pointer(name: str) -> str:
    """Return a name as it stands in a JSON pointer."""
    return name.replace("~", "~0").replace("/", "~1")


def key_of(value: Any) -> Any:
    """Return a hashable key that two values share exactly if they are equal as JSON."""
    if value.__class__ is bool:
        return ("bool", value)
    if isinstance(value, list):
        return ("list", *map(key_of, value))
    if isinstance(value, dict):
        return ("dict", frozenset((name, key_of(part)) for name, part in value.items()))
    if value.__class__ is not str and _is_integer(value) and abs(value) > _MAX_HASHED:
        return ("number", hex(int(value)))  # numbers can be chosen so that they all have one hash, text cannot
    return value


# What may stand in a schema


def _malformed(keyword: str, place: str, wanted: str, value: Any) -> SchemaError:
    return SchemaError(f"{keyword} at {place} must be {wanted}, not {short_repr(value)}")


def _read_number(keyword: str, value: Any, place: str) -> Any:
    if not _is_number(value) or (isinstance(value, float) and not math.isfinite(value)):
        raise _malformed(keyword, place, "a number", value)
    return value


def _read_count(keyword: str, value: Any, place: str) -> int:
    if not _is_integer(value) or value < 0:
        raise _malformed(keyword, place, "a whole number of at least 0", value)
    return int(value)


def _name_list(keyword: str, value: Any, place: str) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise _malformed(keyword, place, "a list of names", value)
    return value


def _schemas(keyword: str, value: Any, place: str) -> dict[str, Any]:
    if not isinstance(value, dict) or not all(isinstance(name, str) for name in value):
        raise _malformed(keyword, place, "an object of schemas", value)
    return value


def _schema_list(
    keyword: str, compiler: _Compiler, value: Any, place: str, *, same_value: bool = True
) -> list[Check | None]:
    if not isinstance(value, list) or not value:
        raise _malformed(keyword, place, "a list of schemas", value)
    origin = place if same_value else None
    return [
        compiler.subschema(schema, f"{place}/{keyword}/{number}", same_value_as=origin)
        for number, schema in enumerate(value)
    ]


def _pattern(keyword: str, value: Any, place: str) -> Callable[[str], bool]:
    if not isinstance(value, str):
        raise _malformed(keyword, place, "a regular expression", value)
    try:
        return compile_pattern(value)
    except PatternError as error:
        raise SchemaError(f"{keyword} {value!r:.200} at {place} cannot be checked ({error}): leave it out") from None


# Any value


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and value.__class__ is not bool


def _is_integer(value: Any) -> bool:
    return (isinstance(value, int) and value.__class__ is not bool) or (isinstance(value, float) and value.is_integer())


_TYPES: dict[str, Callable[[Any], bool]] = {
    "object": lambda value: isinstance(value, dict),
    "array": lambda value: isinstance(value, list),
    "string": lambda value: isinstance(value, str),
    "boolean": lambda value: value.__class__ is bool,
    "null": lambda value: value is None,
    "integer": _is_integer,
    "number": _is_number,
}


def _type(compiler: _Compiler, wanted: Any, schema: JSONSchema, place: str) -> Check:
    names = wanted if isinstance(wanted, list) and wanted else [wanted]
    if not all(isinstance(name, str) and name in _TYPES for name in names):
        raise _malformed("type", place, f"one of {', '.join(_TYPES)}, or a list of them", wanted)
    text = f"should be of type {' or '.join(names)}"
    fits, *others = (_TYPES[name] for name in names)

    def check(value: Any, run: Run | None) -> Problem | None:
        if fits(value) or (others and any(other(value) for other in others)):
            return None
        return Problem(text, value)

    return check


def _enum(compiler: _Compiler, wanted: Any, schema: JSONSchema, place: str) -> Check:
    if not isinstance(wanted, list):
        raise _malformed("enum", place, "a list of values", wanted)
    more = f" and {len(wanted) - _MAX_LISTED:,} more" if len(wanted) > _MAX_LISTED else ""
    return _one_of_values(wanted, f"should be one of {', '.join(map(as_json, wanted[:_MAX_LISTED]))}{more}")


def _const(compiler: _Compiler, wanted: Any, schema: JSONSchema, place: str) -> Check:
    return _one_of_values([wanted], f"should be {as_json(wanted)}")


def _one_of_values(values: list[Any], text: str) -> Check:
    keys = frozenset(map(key_of, values))

    def check(value: Any, run: Run | None) -> Problem | None:
        return None if key_of(value) in keys else Problem(text, value)

    return check


def as_json(value: Any) -> str:
    """Return a value as the schema has it."""
    return json.dumps(value, ensure_ascii=False)


# Numbers, text, and how much there is of something


def _limit(
    keyword: str,
    kind: type | tuple[type, ...],
    measure: Callable[[Any], Any] | None,
    fits: Callable[[Any, Any], bool],
    words: str,
) -> Build:
    """Return the builder of a limit, of the value itself where nothing is measured."""
    read = _read_number if measure is None else _read_count

    def build(compiler: _Compiler, wanted: Any, schema: JSONSchema, place: str) -> Check:
        limit = read(keyword, wanted, place)
        text = f"should {words.format(short_repr(limit))}"

        def check(value: Any, run: Run | None) -> Problem | None:
            if not isinstance(value, kind) or value.__class__ is bool:
                return None
            return None if fits(value if measure is None else measure(value), limit) else Problem(text, value)

        return check

    return build


def _multiple_of(compiler: _Compiler, wanted: Any, schema: JSONSchema, place: str) -> Check:
    step = _fraction(_read_number("multipleOf", wanted, place))
    if step <= 0:
        raise _malformed("multipleOf", place, "more than 0", wanted)
    text = f"should be a multiple of {short_repr(wanted)}"

    def check(value: Any, run: Run | None) -> Problem | None:
        if not _is_number(value):
            return None
        is_finite = isinstance(value, int) or math.isfinite(value)  # which raises for an int larger than any float
        return None if is_finite and _fraction(value) % step == 0 else Problem(text, value)

    return check


def _fraction(value: Any) -> Fraction:
    # As it is written: 0.1 is a tenth, whatever the nearest binary number is.
    return Fraction(repr(value)) if isinstance(value, float) else Fraction(value)


def _pattern_of_text(compiler: _Compiler, wanted: Any, schema: JSONSchema, place: str) -> Check:
    fits = _pattern("pattern", wanted, place)
    text = f"should match the pattern {wanted}"

    def check(value: Any, run: Run | None) -> Problem | None:
        return None if not isinstance(value, str) or fits(value) else Problem(text, value)

    return check


def _format(compiler: _Compiler, wanted: Any, schema: JSONSchema, place: str) -> Check | None:
    if not isinstance(wanted, str):
        raise _malformed("format", place, "the name of a format", wanted)
    fits = FORMATS.get(wanted)
    if fits is None:
        return None
    text = f"should have the format {wanted}"

    def check(value: Any, run: Run | None) -> Problem | None:
        return None if not isinstance(value, str) or fits(value) else Problem(text, value)

    return check


# Objects


def _required(compiler: _Compiler, wanted: Any, schema: JSONSchema, place: str) -> Check:
    names = _name_list("required", wanted, place)

    def check(value: Any, run: Run | None) -> Problem | None:
        if isinstance(value, dict):
            for name in names:
                if name not in value:
                    return Problem("is missing").add_part(name)
        return None

    return check


def _properties(compiler: _Compiler, wanted: Any, schema: JSONSchema, place: str) -> Check:
    parts = _schemas("properties", wanted, place)
    found = {
        name: compiler.subschema(part, f"{place}/properties/{escape_pointer(name)}") for name, part in parts.items()
    }
    checks = {name: check for name, check in found.items() if check is not None}

    def check(value: Any, run: Run | None) -> Problem | None:
        if isinstance(value, dict):
            for name, part in value.items():
                known = checks.get(name)
                problem = known(part, run) if known is not None else None
                if problem is not None:
                    return problem.add_part(name)
        return None

    return check


def _pattern_properties(compiler: _Compiler, wanted: Any, schema: JSONSchema, place: str) -> Check:
    parts = _schemas("patternProperties", wanted, place)
    checks = [
        (
            _pattern("patternProperties", name, place),
            compiler.subschema(part, f"{place}/patternProperties/{escape_pointer(name)}"),
        )
        for name, part in parts.items()
    ]

    def check(value: Any, run: Run | None) -> Problem | None:
        if isinstance(value, dict):
            for name, part in value.items():
                for fits, known in checks:
                    problem = known(part, run) if known is not None and fits(name) else None
                    if problem is not None:
                        return problem.add_part(name)
        return None

    return check


def _additional_properties(compiler: _Compiler, wanted: Any, schema: JSONSchema, place: str) -> Check | None:
    known = _schemas("properties", schema.get("properties", {}), place)
    patterns = [
        _pattern("patternProperties", name, place)
        for name in _schemas("patternProperties", schema.get("patternProperties", {}), place)
    ]
    rest = compiler.subschema(wanted, f"{place}/additionalProperties")
    if rest is None:
        return None

    def check(value: Any, run: Run | None) -> Problem | None:
        if isinstance(value, dict):
            for name, part in value.items():
                if name in known or any(fits(name) for fits in patterns):
                    continue
                problem = Problem("is unknown") if wanted is False else rest(part, run)
                if problem is not None:
                    return problem.add_part(name)
        return None

    return check


def _property_names(compiler: _Compiler, wanted: Any, schema: JSONSchema, place: str) -> Check | None:
    known = compiler.subschema(wanted, f"{place}/propertyNames")
    if known is None:
        return None

    def check(value: Any, run: Run | None) -> Problem | None:
        if isinstance(value, dict):
            for name in value:
                problem = known(name, run)
                if problem is not None:
                    return Problem("has a name that does not fit", others=[problem]).add_part(name)
        return None

    return check


def _dependent_required(compiler: _Compiler, wanted: Any, schema: JSONSchema, place: str) -> Check:
    parts = _schemas("dependentRequired", wanted, place)
    dependent = {name: _name_list("dependentRequired", names, place) for name, names in parts.items()}

    def check(value: Any, run: Run | None) -> Problem | None:
        if isinstance(value, dict):
            for name, others in dependent.items():
                missing = next((other for other in others if other not in value), None) if name in value else None
                if missing is not None:
                    return Problem(f"is missing, which goes with {short_repr(name)}").add_part(missing)
        return None

    return check


def _dependent_schemas(compiler: _Compiler, wanted: Any, schema: JSONSchema, place: str) -> Check:
    parts = _schemas("dependentSchemas", wanted, place)
    checks = {
        name: compiler.subschema(part, f"{place}/dependentSchemas/{escape_pointer(name)}", same_value_as=place)
        for name, part in parts.items()
    }

    def check(value: Any, run: Run | None) -> Problem | None:
        if isinstance(value, dict):
            for name, known in checks.items():
                problem = known(value, run) if known is not None and name in value else None
                if problem is not None:
                    return problem
        return None

    return check


def _dependencies(compiler: _Compiler, wanted: Any, schema: JSONSchema, place: str) -> Check:
    """Draft 7 had one keyword for what are two today."""
    parts = _schemas("dependencies", wanted, place)
    names = {name: part for name, part in parts.items() if isinstance(part, list)}
    schemas = {name: part for name, part in parts.items() if name not in names}
    required = _dependent_required(compiler, names, schema, place)
    others = _dependent_schemas(compiler, schemas, schema, place)

    def check(value: Any, run: Run | None) -> Problem | None:
        return required(value, run) or others(value, run)

    return check


# Lists


def _items(compiler: _Compiler, wanted: Any, schema: JSONSchema, place: str) -> Check | None:
    if isinstance(wanted, list):  # before draft 2020-12 the name of `prefixItems`
        rest = (
            _rest(compiler, schema["additionalItems"], f"{place}/additionalItems", len(wanted))
            if "additionalItems" in schema
            else None
        )
        first = _prefix(_schema_list("items", compiler, wanted, place, same_value=False)) if wanted else None
        both = [check for check in (first, rest) if check is not None]
        return (lambda value, run: next(filter(None, (check(value, run) for check in both)), None)) if both else None
    prefix = schema.get("prefixItems")
    return _rest(compiler, wanted, f"{place}/items", len(prefix) if isinstance(prefix, list) else 0)


def _prefix_items(compiler: _Compiler, wanted: Any, schema: JSONSchema, place: str) -> Check:
    return _prefix(_schema_list("prefixItems", compiler, wanted, place, same_value=False))


def _prefix(checks: list[Check | None]) -> Check:
    def check(value: Any, run: Run | None) -> Problem | None:
        if isinstance(value, list):
            for number, (part, known) in enumerate(zip(value, checks, strict=False)):
                problem = known(part, run) if known is not None else None
                if problem is not None:
                    return problem.add_part(number)
        return None

    return check


def _rest(compiler: _Compiler, wanted: Any, place: str, start: int) -> Check | None:
    known = compiler.subschema(wanted, place)
    if known is None:
        return None

    def check(value: Any, run: Run | None) -> Problem | None:
        if isinstance(value, list):
            for number in range(start, len(value)):
                problem = known(value[number], run)
                if problem is not None:
                    return problem.add_part(number)
        return None

    return check


def _contains(compiler: _Compiler, wanted: Any, schema: JSONSchema, place: str) -> Check:
    known = compiler.subschema(wanted, f"{place}/contains")
    least = _read_count("minContains", schema.get("minContains", 1), place)
    most = _read_count("maxContains", schema["maxContains"], place) if "maxContains" in schema else math.inf

    def check(value: Any, run: Run | None) -> Problem | None:
        if not isinstance(value, list):
            return None
        found = len(value) if known is None else sum(known(part, run) is None for part in value)
        if found < least:
            return Problem(f"should hold at least {least} items of the kind that is asked for, and holds {found}")
        if found > most:
            return Problem(f"should hold at most {most} items of the kind that is limited, and holds {found}")
        return None

    return check


def _unique_items(compiler: _Compiler, wanted: Any, schema: JSONSchema, place: str) -> Check | None:
    if not isinstance(wanted, bool):
        raise _malformed("uniqueItems", place, "true or false", wanted)

    def check(value: Any, run: Run | None) -> Problem | None:
        if isinstance(value, list) and len({key_of(part) for part in value}) < len(value):
            return Problem("should hold each item once", value)
        return None

    return check if wanted else None


# Schemas of the same value


def _any_of(compiler: _Compiler, wanted: Any, schema: JSONSchema, place: str) -> Check | None:
    checks = _schema_list("anyOf", compiler, wanted, place)
    known = [check for check in checks if check is not None]
    return _fits_one(known) if len(known) == len(checks) else None


def _fits_one(checks: list[Check]) -> Check:
    def check(value: Any, run: Run | None) -> Problem | None:
        problems: list[Problem] = []
        for known in checks:
            problem = known(value, run)
            if problem is None:
                return None
            problems.append(problem)
        return Problem("fits none of what is allowed", others=problems[:3])

    return check


def _one_of(compiler: _Compiler, wanted: Any, schema: JSONSchema, place: str) -> Check:
    checks = _schema_list("oneOf", compiler, wanted, place)

    def check(value: Any, run: Run | None) -> Problem | None:
        problems = [known(value, run) if known is not None else None for known in checks]
        fitting = problems.count(None)
        if fitting == 1:
            return None
        if fitting:
            return Problem(f"fits {fitting} of the forms that exclude each other: {short_repr(value)}")
        return Problem("fits none of what is allowed", others=[problem for problem in problems[:3] if problem])

    return check


def _all_of(compiler: _Compiler, wanted: Any, schema: JSONSchema, place: str) -> Check:
    checks = [check for check in _schema_list("allOf", compiler, wanted, place) if check is not None]

    def check(value: Any, run: Run | None) -> Problem | None:
        for known in checks:
            problem = known(value, run)
            if problem is not None:
                return problem
        return None

    return check


def _not(compiler: _Compiler, wanted: Any, schema: JSONSchema, place: str) -> Check:
    known = compiler.subschema(wanted, f"{place}/not", same_value_as=place)

    def check(value: Any, run: Run | None) -> Problem | None:
        fits = known is None or known(value, run) is None
        return Problem(f"is what it may not be: {short_repr(value)}") if fits else None

    return check


def _if(compiler: _Compiler, wanted: Any, schema: JSONSchema, place: str) -> Check:
    condition, then, otherwise = (
        compiler.subschema(schema.get(keyword, True), f"{place}/{keyword}", same_value_as=place)
        for keyword in ("if", "then", "else")
    )

    def check(value: Any, run: Run | None) -> Problem | None:
        known = then if condition is None or condition(value, run) is None else otherwise
        return None if known is None else known(value, run)

    return check


def _ref(compiler: _Compiler, wanted: Any, schema: JSONSchema, place: str) -> Check:
    if not isinstance(wanted, str):
        raise _malformed("$ref", place, "text", wanted)
    return compiler.reference(wanted, place)


def _definitions(keyword: str) -> Build:
    def build(compiler: _Compiler, wanted: Any, schema: JSONSchema, place: str) -> None:
        for name, part in _schemas(keyword, wanted, place).items():
            compiler.subschema(part, f"{place}/{keyword}/{escape_pointer(name)}")

    return build


_BUILDERS: dict[str, Build] = {
    "type": _type,
    "enum": _enum,
    "const": _const,
    "required": _required,
    "properties": _properties,
    "patternProperties": _pattern_properties,
    "additionalProperties": _additional_properties,
    "propertyNames": _property_names,
    "dependentRequired": _dependent_required,
    "dependentSchemas": _dependent_schemas,
    "dependencies": _dependencies,
    "prefixItems": _prefix_items,
    "items": _items,
    "contains": _contains,
    "uniqueItems": _unique_items,
    "pattern": _pattern_of_text,
    "format": _format,
    "multipleOf": _multiple_of,
    "$ref": _ref,
    "allOf": _all_of,
    "anyOf": _any_of,
    "oneOf": _one_of,
    "not": _not,
    "if": _if,
    "$defs": _definitions("$defs"),
    "definitions": _definitions("definitions"),
}
_NUMBER = (int, float)
_LIMITS: dict[str, tuple[Any, Callable[[Any], Any] | None, Callable[[Any, Any], bool], str]] = {
    "minimum": (_NUMBER, None, ge, "be at least {}"),
    "maximum": (_NUMBER, None, le, "be at most {}"),
    "exclusiveMinimum": (_NUMBER, None, gt, "be more than {}"),
    "exclusiveMaximum": (_NUMBER, None, lt, "be less than {}"),
    "minLength": (str, len, ge, "have at least {} characters"),
    "maxLength": (str, len, le, "have at most {} characters"),
    "minItems": (list, len, ge, "have at least {} items"),
    "maxItems": (list, len, le, "have at most {} items"),
    "minProperties": (dict, len, ge, "have at least {} properties"),
    "maxProperties": (dict, len, le, "have at most {} properties"),
}

KEYWORDS: dict[str, Build] = _BUILDERS | {keyword: _limit(keyword, *limit) for keyword, limit in _LIMITS.items()}
"""The builder of each keyword that is honoured, in the order in which the checks run."""
