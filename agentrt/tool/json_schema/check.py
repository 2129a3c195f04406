"""Checks: what every keyword of a JSON schema is compiled into, and the errors of schemas and of values.

A check gets a value and returns the problem that it found, if any. Values are compared as JSON compares them: 1 is 1.0,
and neither is `true`.
"""

import json
import math
from collections.abc import Callable, Hashable, Iterable
from typing import Protocol, TypeGuard

from agentrt.text import short_repr
from agentrt.tool.json_schema.formats import PatternError, compile_pattern
from agentrt.types import JSONSchema

__all__ = [
    "Build",
    "Check",
    "Problem",
    "ReferenceCache",
    "SchemaError",
    "SubschemaCompiler",
    "as_json",
    "combine_checks",
    "escape_pointer",
    "is_integer",
    "is_number",
    "json_key",
    "malformed",
    "read_count",
    "read_names",
    "read_number",
    "read_pattern",
    "read_schemas",
]

_MAX_HASHED = 2**32


class SchemaError(ValueError):
    """A schema that is malformed, or that cannot be checked; the message says where, and what is wrong."""


class Problem:
    """What is wrong with a value, and where in it; put into words only when it is needed."""

    # Lazily, since `anyOf` and `oneOf` discard most of the problems that they find.

    __slots__ = ("_causes", "_path", "_text", "_value")

    _NOTHING = object()

    def __init__(self, text: str, value: object = _NOTHING, causes: "Iterable[Problem]" = ()) -> None:
        self._text, self._value, self._causes = text, value, causes
        self._path: list[str | int] = []

    def add_part(self, part: str | int) -> "Problem":
        """Return the problem of a part as a problem of the value that the part belongs to."""
        problem = Problem(self._text, self._value, self._causes)  # a copy: another part may have this same problem
        problem._path = [*self._path, part]
        return problem

    def describe(self, prefix: tuple[str | int, ...] = (), depth: int = 3) -> str:
        """Return the problem in words for the model, with those that caused it down to some depth."""
        path = (*prefix, *reversed(self._path))
        subject = f"argument {short_repr('.'.join(map(str, path)))}" if path else "its input"
        value = "" if self._value is Problem._NOTHING else f", not {short_repr(self._value)}"
        causes = "; or ".join(cause.describe(path, depth - 1) for cause in self._causes) if depth else ""
        return f"{subject} {self._text}{value}{': ' if causes else ''}{causes}"


class ReferenceCache:
    """What each `$ref` found in each part of one value, while that value is checked.

    Without it, a schema that refers to itself twice would take time without end.
    """

    __slots__ = ("_problems",)

    def __init__(self) -> None:
        self._problems: dict[tuple[str, int], Problem | None] = {}

    def look_up(self, target: str, check: "Check", value: object) -> Problem | None:
        """Return what the check of the target finds wrong with the part; the check runs once for each part."""
        key = target, id(value)  # ids are unique here, since the parts live as long as the value
        if key not in self._problems:
            self._problems[key] = check(value, self)
        return self._problems[key]


Check = Callable[[object, ReferenceCache | None], Problem | None]


class SubschemaCompiler(Protocol):
    """What the builder of a keyword needs of the compiler; a pointer is a JSON pointer such as "#/properties/city"."""

    def subschema(self, schema: object, pointer: str, *, same_value_as: str | None = None) -> Check | None:
        """Return the check of one part, `None` for one that everything fits."""
        ...

    def reference(self, reference: str, pointer: str) -> Check:
        """Return the check of the part that a `$ref` names."""
        ...


Build = Callable[[SubschemaCompiler, object, JSONSchema, str], Check | None]
"""Builds the check of one keyword, from the keyword's value, the schema around it and the schema's pointer.

Raises `SchemaError` for a value that is malformed, and returns `None` where there is nothing to check.
"""


def combine_checks(checks: list[Check]) -> Check | None:
    """Return one check that runs these in order, up to the first problem."""
    if len(checks) < 2:
        return checks[0] if checks else None

    def check_all(value: object, cache: ReferenceCache | None) -> Problem | None:
        for check in checks:
            problem = check(value, cache)
            if problem is not None:
                return problem
        return None

    return check_all


def escape_pointer(name: str) -> str:
    """Return a name as it is written in a JSON pointer."""
    return name.replace("~", "~0").replace("/", "~1")


def is_number(value: object) -> TypeGuard[int | float]:
    """Say whether JSON knows the value as a number."""
    return isinstance(value, (int, float)) and value.__class__ is not bool


def is_integer(value: object) -> TypeGuard[int | float]:
    """Say whether JSON Schema knows the value as an integer: 1.0 is one."""
    return (isinstance(value, int) and value.__class__ is not bool) or (isinstance(value, float) and value.is_integer())


def json_key(value: object) -> Hashable:
    """Return a hashable key that two values share exactly if they are equal as JSON."""
    if value.__class__ is bool:  # in Python, True equals 1
        return ("bool", value)
    if isinstance(value, list):
        return ("list", *map(json_key, value))  # a tuple that begins with its kind: [] is not {}
    if isinstance(value, dict):
        return ("dict", frozenset((name, json_key(part)) for name, part in value.items()))
    if value.__class__ is not str and is_integer(value) and abs(value) > _MAX_HASHED:
        return ("number", hex(int(value)))  # numbers can be chosen so that they all have one hash, strings cannot
    return value


def as_json(value: object) -> str:
    """Return a value as the schema has it."""
    return json.dumps(value, ensure_ascii=False)


def malformed(keyword: str, pointer: str, expected: str, value: object) -> SchemaError:
    """Return the error for a keyword whose value is not what it must be."""
    return SchemaError(f"{keyword} at {pointer} must be {expected}, not {short_repr(value)}")


def read_number(keyword: str, value: object, pointer: str) -> int | float:
    """Return the value of a keyword that must be a number."""
    if not is_number(value) or (isinstance(value, float) and not math.isfinite(value)):
        raise malformed(keyword, pointer, "a number", value)
    return value


def read_count(keyword: str, value: object, pointer: str) -> int:
    """Return the value of a keyword that counts something."""
    if not is_integer(value) or value < 0:
        raise malformed(keyword, pointer, "a whole number of at least 0", value)
    return int(value)


def read_names(keyword: str, value: object, pointer: str) -> list[str]:
    """Return the value of a keyword that lists names of properties."""
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise malformed(keyword, pointer, "a list of names", value)
    return value


def read_schemas(keyword: str, value: object, pointer: str) -> dict[str, object]:
    """Return the value of a keyword that holds schemas by name."""
    if not isinstance(value, dict) or not all(isinstance(name, str) for name in value):
        raise malformed(keyword, pointer, "an object of schemas", value)
    return value


def read_pattern(keyword: str, value: object, pointer: str) -> Callable[[str], bool]:
    """Return a function that says whether a string matches the regular expression that the keyword holds."""
    if not isinstance(value, str):
        raise malformed(keyword, pointer, "a regular expression", value)
    try:
        return compile_pattern(value)
    except PatternError as error:
        raise SchemaError(f"{keyword} {value!r:.200} at {pointer} cannot be checked ({error}): leave it out") from None
