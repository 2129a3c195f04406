"""JSON schemas that somebody wrote: compiled once, when a tool is registered, and then asked about each value.

Draft 2020-12 with local references, and what earlier drafts wrote differently (`definitions`, `dependencies`, `items`
as a list). A keyword that cannot be checked is refused when the schema is compiled, and so is a malformed schema;
keywords that no draft knows are ignored. What each keyword means is in `keywords.py`.
"""

import json
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from typing import Any
from urllib.parse import unquote

from agentrt.tool.json_schema.keywords import (
    KEYWORDS,
    UNSUPPORTED,
    Check,
    Problem,
    Run,
    SchemaError,
    as_json,
    escape_pointer,
)
from agentrt.types import JSONSchema

__all__ = ["CompiledSchema", "SchemaError", "summary"]

_MAX_LISTED = 20


class CompiledSchema:
    """A JSON schema, ready to check values; raises `SchemaError` for one that is malformed or cannot be checked."""

    __slots__ = ("_check", "_has_references")

    def __init__(self, schema: JSONSchema) -> None:
        try:
            json.dumps(schema, allow_nan=False)
            compiler = Compiler(schema)
            self._check = compiler.subschema(schema, "#")
            compiler.refuse_cycles()
        except (TypeError, ValueError) as error:
            raise error if isinstance(error, SchemaError) else SchemaError(f"it has no JSON form: {error}") from None
        except RecursionError:
            raise SchemaError("it is nested too deep") from None
        self._has_references = compiler.has_references

    def problem(self, value: Any) -> str | None:
        """Say what is wrong with a value, in words for the model; `None` when it fits the schema."""
        run = Run() if self._has_references else None
        found = self._check(value, run) if self._check else None
        return None if found is None else found.describe()


class Compiler:
    """Turns each part of a schema into a check; a place is a JSON pointer such as "#/properties/city"."""

    def __init__(self, root: Any) -> None:
        self.has_references = False
        self._root = root
        self._anchors: dict[str, str] = {}
        self._checks: dict[str, Check | None] = {}
        self._begun: set[str] = set()
        # From each place to those that check the same value; a cycle of them would never end.
        self._same_value: dict[str, set[str]] = {}
        self._collect_anchors(root, "#")

    def subschema(self, schema: Any, place: str, *, same_value_as: str | None = None) -> Check | None:
        """Return the check of one part, `None` for one that everything fits."""
        if same_value_as is not None:
            self._same_value.setdefault(same_value_as, set()).add(place)
        if place not in self._begun:
            self._begun.add(place)
            self._checks[place] = self._compile(schema, place)
        return self._checks.get(place)

    def reference(self, reference: str, place: str) -> Check:
        """Return the check of the part that a `$ref` names; it may be the one that is being compiled."""
        self.has_references = True
        target = self._anchors.get(reference) or unquote(reference)
        if not target.startswith("#") or (target != "#" and not target.startswith("#/")):
            raise SchemaError(
                f'$ref at {place} must name a part of this schema, such as "#/$defs/City", not {reference!r:.200}'
            )
        found = self._root
        for part in target.split("/")[1:]:
            found = _part_of(found, part.replace("~1", "/").replace("~0", "~"), reference, place)
        self.subschema(found, target, same_value_as=place)
        checks = self._checks

        def check(value: Any, run: Run | None) -> Problem | None:
            known = checks[target]
            if known is None:
                return None
            return known(value, run) if run is None else run.look_up(target, known, value)

        return check

    def refuse_cycles(self) -> None:
        """Raise `SchemaError` for references that lead back to where they began, for the same value."""
        try:
            TopologicalSorter(self._same_value).prepare()
        except CycleError as error:
            raise SchemaError(f"its references form a cycle: {' -> '.join(error.args[1])}") from None

    def _compile(self, schema: Any, place: str) -> Check | None:
        if schema is True:
            return None
        if schema is False:
            return lambda value, run: Problem("is not allowed")
        if not isinstance(schema, dict):
            raise SchemaError(f"{place} must be a schema, which is an object, true or false, not {schema!r:.200}")
        if place != "#" and isinstance(schema.get("$id"), str):
            raise SchemaError(f"$id at {place} begins a schema of its own, which is not supported: put it into $defs")
        checks = list(self._checks_of(schema, place))
        return checks[0] if len(checks) == 1 else _run_all(checks) if checks else None

    def _checks_of(self, schema: JSONSchema, place: str) -> Iterator[Check]:
        for keyword in UNSUPPORTED:
            if schema.get(keyword, True) is not True:
                raise SchemaError(f"{keyword} at {place} is not supported: leave it out")
        for keyword, build in KEYWORDS.items():
            if keyword in schema:
                check = build(self, schema[keyword], schema, place)
                if check is not None:
                    yield check

    def _collect_anchors(self, schema: Any, place: str) -> None:
        if isinstance(schema, dict):
            if isinstance(schema.get("$anchor"), str):
                self._anchors[f"#{schema['$anchor']}"] = place
            for name, part in schema.items():
                if name not in ("enum", "const", "default", "examples"):
                    self._collect_anchors(part, f"{place}/{escape_pointer(name)}")
        elif isinstance(schema, list):
            for number, part in enumerate(schema):
                self._collect_anchors(part, f"{place}/{number}")


def _run_all(checks: list[Check]) -> Check:
    def check(value: Any, run: Run | None) -> Problem | None:
        for each in checks:
            found = each(value, run)
            if found is not None:
                return found
        return None

    return check


def _part_of(value: Any, name: str, reference: str, place: str) -> Any:
    try:
        return value[int(name)] if isinstance(value, list) else value[name]
    except (LookupError, TypeError, ValueError):
        raise SchemaError(f"$ref at {place} leads nowhere: {reference!r:.200}") from None


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
        return f"one of {', '.join(map(as_json, schema['enum'][:_MAX_LISTED]))}"
    if "const" in schema:
        return as_json(schema["const"])
    if "$ref" in schema:
        return str(schema["$ref"]).rsplit("/", 1)[-1]
    kinds = schema.get("anyOf") or schema.get("oneOf")
    if kinds:
        return " or ".join(_kind(each) for each in kinds)
    wanted = schema.get("type", "anything")
    return " or ".join(wanted) if isinstance(wanted, list) else str(wanted)
