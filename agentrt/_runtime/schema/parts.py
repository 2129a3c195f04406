"""The parts of a schema: their references, and the total work of a check.

A check holds the interpreter and cannot be stopped, so its work is limited beforehand. The engine caches the outcome
of a recursive part for each part of a value. It checks all others as often as references lead there, and two
references side by side, twenty levels deep, are a million.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple
from urllib.parse import unquote

from pydantic_core import to_json

from agentrt.types import JSONSchema

MAX_PARTS = 5_000
_MAX_VISITS = 50_000
# In checks of one number: a tenth of a microsecond.
_SLOW_KEYWORDS = {"multipleOf": 10, "uniqueItems": 10}

SINGLES = {
    "additionalItems",
    "additionalProperties",
    "contains",
    "contentSchema",
    "else",
    "if",
    "items",
    "not",
    "propertyNames",
    "then",
    "unevaluatedItems",
    "unevaluatedProperties",
}
"""The keywords that hold one schema."""

LISTS = {"allOf", "anyOf", "items", "oneOf", "prefixItems"}
"""The keywords that hold a list of schemas."""

MAPS = {"$defs", "definitions", "dependencies", "dependentSchemas", "patternProperties", "properties"}
"""The keywords that hold schemas by name."""

_ONE_OF_THEM = ("properties", "prefixItems", "items")  # a part of a value has one name, or one number
_NOT_APPLIED = ("$defs", "definitions", "contentSchema")


class SchemaError(ValueError):
    """A malformed or uncheckable schema; the message names the place and the problem."""


class SchemaPart(NamedTuple):
    """A part of a schema, and the JSON pointer that leads to it, such as "#/properties/city"."""

    schema: Any
    pointer: str


def escape_pointer(name: str | int) -> str:
    return str(name).replace("~", "~0").replace("/", "~1")


def schemas_inside(schema: JSONSchema, pointer: str) -> Iterator[tuple[str, SchemaPart]]:
    """Yield the direct subschemas of a schema, each with its keyword."""
    for keyword, setting in schema.items():
        if keyword in MAPS and isinstance(setting, dict):
            for name, part in setting.items():
                if not isinstance(part, list):  # of names: `dependencies` has both
                    yield keyword, SchemaPart(part, f"{pointer}/{keyword}/{escape_pointer(name)}")
        elif keyword in LISTS and isinstance(setting, list):
            for number, part in enumerate(setting):
                yield keyword, SchemaPart(part, f"{pointer}/{keyword}/{number}")
        elif keyword in SINGLES:
            yield keyword, SchemaPart(setting, f"{pointer}/{keyword}")


class Parts:
    """The parts of a schema, by the references that lead to them."""

    def __init__(self, root: JSONSchema) -> None:
        self._root = root
        self._anchors: dict[str, SchemaPart] = {}
        self._counts: dict[int, tuple[int, frozenset[int]]] = {}
        self._cut: dict[int, SchemaPart] = {}
        self._path: set[int] = set()
        self._visits = 0
        references: list[tuple[str, str]] = []
        self._collect(SchemaPart(root, "#"), references)
        for reference, pointer in references:
            self.find(reference, pointer)

    def find(self, reference: str, pointer: str) -> SchemaPart:
        """Return the part that a `$ref` names; raises `SchemaError`."""
        if reference in self._anchors:
            return self._anchors[reference]
        if reference != "#" and not reference.startswith("#/"):
            raise SchemaError(
                f'$ref at {pointer} must name a part of this schema, such as "#/$defs/City", not {reference!r:.200}'
            )
        part: Any = self._root
        target = unquote(reference)
        for name in target.split("/")[1:]:
            name = name.replace("~1", "/").replace("~0", "~")
            try:
                part = part[int(name)] if isinstance(part, list) else part[name]
            except (LookupError, TypeError, ValueError):
                raise SchemaError(f"$ref at {pointer} leads nowhere: {reference!r:.200}") from None
        return SchemaPart(part, target)

    def count(self) -> int:
        """Return the maximum number of parts that check one part of a value; raises `SchemaError` for too many."""
        total = self._count(SchemaPart(self._root, "#"))[0]
        if total <= MAX_PARTS:
            # The engine checks these once for each part of a value, however often they are referenced.
            total += sum(self._count(part)[0] for part in list(self._cut.values()))
            return total
        raise SchemaError(f"its references apply its parts too often: {total:,} times, and at most {MAX_PARTS:,}")

    def _collect(self, part: SchemaPart, references: list[tuple[str, str]]) -> None:
        schema, pointer = part
        if not isinstance(schema, dict):
            return
        if isinstance(schema.get("$ref"), str):
            references.append((schema["$ref"], pointer))
        for keyword in ("$anchor", "$dynamicAnchor", "$id", "id"):
            name = schema.get(keyword)
            if isinstance(name, str) and (keyword.endswith("nchor") or name.startswith("#")):
                self._anchors.setdefault(f"#{name.removeprefix('#')}", part)
        for _, inner in schemas_inside(schema, pointer):
            self._collect(inner, references)

    def _count(self, part: SchemaPart) -> tuple[int, frozenset[int]]:
        """Return the number of parts, and the ids of the enclosing parts that were not followed again."""
        schema, pointer = part
        if not isinstance(schema, dict):
            return 1, frozenset()
        key = id(schema)
        if key in self._path:
            self._cut[key] = part
            return 1, frozenset((key,))
        # A count along another path is valid here if no further part would be followed.
        known = self._counts.get(key)
        if known is not None and known[1] <= self._path:
            return known
        self._visits += 1
        if self._visits > _MAX_VISITS:
            raise SchemaError("its references apply its parts too often: leave some of them out")
        self._path.add(key)
        total, largest, cuts = _own_work(schema), 0, set[int]()
        for keyword, inner in self._applied(schema, pointer):
            count, cut = self._count(inner)
            cuts |= cut
            if keyword in _ONE_OF_THEM:
                largest = max(largest, count)
            else:
                total += count
        self._path.remove(key)
        # The rest is known only after the parts are checked again.
        times = 2 if "unevaluatedProperties" in schema or "unevaluatedItems" in schema else 1
        self._counts[key] = known = (total + largest) * times, frozenset(cuts - {key})
        return known

    def _applied(self, schema: JSONSchema, pointer: str) -> Iterator[tuple[str, SchemaPart]]:
        for keyword, inner in schemas_inside(schema, pointer):
            if keyword not in _NOT_APPLIED:
                yield keyword, inner
        if isinstance(schema.get("$ref"), str):
            yield "$ref", self.find(schema["$ref"], pointer)


def _own_work(schema: JSONSchema) -> int:
    work = 1 + sum(cost for keyword, cost in _SLOW_KEYWORDS.items() if schema.get(keyword))
    required = schema.get("required")
    if isinstance(required, list):
        work += len(required)
    values = schema.get("enum")
    for value in [schema.get("const"), *(values if isinstance(values, list) else ())]:
        if isinstance(value, (list, dict)):  # compared one after the other; all else is looked up
            work += len(to_json(value))
    return work
