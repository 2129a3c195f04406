"""JSON schemas that a user wrote: compiled once, when a tool is registered, and then applied to each value.

Draft 2020-12 with local references, and what earlier drafts wrote differently (`definitions`, `dependencies`, `items`
as a list). A keyword that cannot be checked is refused when the schema is compiled, and so is a malformed schema;
keywords that no draft knows are ignored. What each keyword means is in `validation.py` and `applicators.py`.
"""

import json
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from urllib.parse import unquote

from agentrt.tool.json_schema.check import (
    Check,
    Problem,
    ReferenceCache,
    SchemaError,
    as_json,
    combine_checks,
    escape_pointer,
)
from agentrt.tool.json_schema.keywords import KEYWORDS, UNSUPPORTED
from agentrt.types import JSONSchema

__all__ = ["CompiledSchema", "SchemaError", "describe_parameters"]

_MAX_DESCRIBED = 20
_MAX_DEFINITIONS = 5


class CompiledSchema:
    """A JSON schema, ready to check values; raises `SchemaError` for one that is malformed or cannot be checked."""

    __slots__ = ("_check", "_has_references")

    def __init__(self, schema: JSONSchema) -> None:
        try:
            json.dumps(schema, allow_nan=False)  # a model gets it as JSON; this finds a cycle of Python objects, too
            compiler = Compiler(schema)
            self._check = compiler.subschema(schema, "#")
            compiler.refuse_cycles()
        except (TypeError, ValueError) as error:
            raise error if isinstance(error, SchemaError) else SchemaError(f"it has no JSON form: {error}") from None
        except RecursionError:  # by then, Python has unwound to here, and there is room again
            raise SchemaError("it is nested too deep") from None
        self._has_references = compiler.has_references

    def problem(self, value: object) -> str | None:
        """Say what is wrong with a value, in words for the model; `None` when it fits the schema."""
        # Without references no part is looked at twice, so there is nothing to remember.
        cache = ReferenceCache() if self._has_references else None
        problem = self._check(value, cache) if self._check else None
        return None if problem is None else problem.describe()


class Compiler:
    """Turns each part of a schema into a check; parts are named by JSON pointers such as "#/properties/city"."""

    def __init__(self, root: object) -> None:
        self.has_references = False
        self._root = root
        self._anchors: dict[str, str] = {}
        self._checks: dict[str, Check | None] = {}
        self._begun: set[str] = set()
        # From each part to those that check the same value; a cycle of them would never end.
        self._same_value: dict[str, set[str]] = {}
        self._collect_anchors(root, "#")

    def subschema(self, schema: object, pointer: str, *, same_value_as: str | None = None) -> Check | None:
        """Return the check of one part, `None` for one that everything fits."""
        if same_value_as is not None:
            self._same_value.setdefault(same_value_as, set()).add(pointer)
        # Begun, and not only done: a part that refers to one around it would otherwise be compiled without end.
        if pointer not in self._begun:
            self._begun.add(pointer)
            self._checks[pointer] = self._compile(schema, pointer)
        return self._checks.get(pointer)

    def reference(self, reference: str, pointer: str) -> Check:
        """Return the check of the part that a `$ref` names; it may be the one that is being compiled."""
        self.has_references = True
        target = self._anchors.get(reference) or unquote(reference)
        if not target.startswith("#") or (target != "#" and not target.startswith("#/")):
            raise SchemaError(
                f'$ref at {pointer} must name a part of this schema, such as "#/$defs/City", not {reference!r:.200}'
            )
        self.subschema(self._part_at(target, reference, pointer), target, same_value_as=pointer)
        checks = self._checks

        def check(value: object, cache: ReferenceCache | None) -> Problem | None:
            check_target = checks[target]  # looked up now, since it may not have been compiled before
            if check_target is None:
                return None
            return check_target(value, cache) if cache is None else cache.look_up(target, check_target, value)

        return check

    def _part_at(self, target: str, reference: str, pointer: str) -> object:
        part = self._root
        for name in target.split("/")[1:]:
            name = name.replace("~1", "/").replace("~0", "~")
            try:
                part = part[int(name)] if isinstance(part, list) else part[name]  # type: ignore[index]
            except (LookupError, TypeError, ValueError):
                raise SchemaError(f"$ref at {pointer} leads nowhere: {reference!r:.200}") from None
        return part

    def refuse_cycles(self) -> None:
        """Raise `SchemaError` for references that lead back to where they began, for the same value."""
        try:
            TopologicalSorter(self._same_value).prepare()
        except CycleError as error:
            raise SchemaError(f"its references form a cycle: {' -> '.join(error.args[1])}") from None

    def _compile(self, schema: object, pointer: str) -> Check | None:
        if schema is True:
            return None
        if schema is False:
            return lambda value, cache: Problem("is not allowed")
        if not isinstance(schema, dict):
            raise SchemaError(f"{pointer} must be a schema, which is an object, true or false, not {schema!r:.200}")
        if pointer != "#" and isinstance(schema.get("$id"), str):
            raise SchemaError(f"$id at {pointer} begins a schema of its own, which is not supported: put it into $defs")
        return combine_checks(list(self._checks_of(schema, pointer)))

    def _checks_of(self, schema: JSONSchema, pointer: str) -> Iterator[Check]:
        for keyword in UNSUPPORTED:
            if schema.get(keyword, True) is not True:
                raise SchemaError(f"{keyword} at {pointer} is not supported: leave it out")
        for keyword, build in KEYWORDS.items():
            if keyword in schema:
                check = build(self, schema[keyword], schema, pointer)
                if check is not None:
                    yield check

    def _collect_anchors(self, schema: object, pointer: str) -> None:
        if isinstance(schema, dict):
            if isinstance(schema.get("$anchor"), str):
                self._anchors[f"#{schema['$anchor']}"] = pointer
            for name, part in schema.items():
                if name not in ("enum", "const", "default", "examples"):  # what these hold is data, not schemas
                    self._collect_anchors(part, f"{pointer}/{escape_pointer(name)}")
        elif isinstance(schema, list):
            for number, part in enumerate(schema):
                self._collect_anchors(part, f"{pointer}/{number}")


def describe_parameters(schema: JSONSchema) -> str:
    """Return the parameters in words: "It takes: city (string), days (integer, optional)."

    What these refer to follows, as in "It takes: people (array of Person). Person: name (string).".
    """
    if not schema.get("properties"):
        return "It takes no arguments."
    sentences = [f"It takes: {_describe_properties(schema)}."]
    definitions = schema.get("$defs", {})
    described: list[str] = []
    unread = [schema]
    while unread and len(described) < _MAX_DEFINITIONS:
        for name in _names_referred_to(unread.pop(0)):
            definition = definitions.get(name)
            if name not in described and isinstance(definition, dict) and definition.get("properties"):
                described.append(name)
                unread.append(definition)
                sentences.append(f"{name}: {_describe_properties(definition)}.")
    return " ".join(sentences)


def _describe_properties(schema: JSONSchema) -> str:
    properties, required = schema["properties"], schema.get("required", ())
    parameters = [
        f"{name} ({_describe_type(part)}{'' if name in required else ', optional'})"
        for name, part in list(properties.items())[:_MAX_DESCRIBED]
    ]
    if len(properties) > _MAX_DESCRIBED:
        parameters.append(f"and {len(properties) - _MAX_DESCRIBED} more")
    return ", ".join(parameters)


def _names_referred_to(schema: JSONSchema) -> list[str]:
    """Return the names of the definitions that the description of these properties mentions."""
    names: list[str] = []
    parts = list(schema["properties"].values())[:_MAX_DESCRIBED]
    for part in parts:
        if isinstance(part, dict):
            parts += [part.get("items"), *(part.get("anyOf") or part.get("oneOf") or ())]
            if "$ref" in part:
                names.append(_name_of_reference(part["$ref"]))
    return names


def _name_of_reference(reference: object) -> str:
    return str(reference).rsplit("/", 1)[-1]


def _describe_type(schema: object) -> str:
    if not isinstance(schema, dict):
        return "anything"
    if "enum" in schema:
        return f"one of {', '.join(map(as_json, schema['enum'][:_MAX_DESCRIBED]))}"
    if "const" in schema:
        return as_json(schema["const"])
    if "$ref" in schema:
        return _name_of_reference(schema["$ref"])
    alternatives = schema.get("anyOf") or schema.get("oneOf")
    if alternatives:
        return " or ".join(_describe_type(alternative) for alternative in alternatives)
    types = schema.get("type", "anything")
    if types == "array" and isinstance(schema.get("items"), dict):
        return f"array of {_describe_type(schema['items'])}"
    return " or ".join(types) if isinstance(types, list) else str(types)
