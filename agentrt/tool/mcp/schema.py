"""Schemas from servers: whether one can be used, and whether a value fits it.

The validator is that of `jsonschema`, which knows all drafts. Two things are ours: patterns run in an engine that takes
linear time, and the time of one check is limited, since even a small schema can take very long to check.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from hashlib import sha256
from time import thread_time
from typing import Any

from jsonschema import SchemaError, ValidationError
from jsonschema.exceptions import best_match
from jsonschema.validators import Draft202012Validator, extend, validator_for
from referencing import Registry
from referencing.exceptions import Unresolvable
from referencing.jsonschema import DRAFT202012

from agentrt.text import short_repr
from agentrt.tool.json_schema.formats import PatternError, compile_pattern
from agentrt.tool.mcp.text import clean_text, has_hidden_characters
from agentrt.types import JSONObject, JSONSchema

__all__ = ["ForeignSchema", "SchemaRefused", "clean_schema", "fingerprint_of"]

_MAX_SCHEMA = 100_000
_MAX_CHECK_SECONDS = 1.0
_MAX_PROBLEM = 500
_SHOWN_TO_MODELS = ("description", "title", "$comment")


class SchemaRefused(ValueError):
    """A schema that cannot be used; the message says why."""


class _CheckTimeout(Exception):
    pass


class ForeignSchema:
    """A schema, ready to check values; raises `SchemaRefused` for one that cannot be used."""

    def __init__(self, schema: object) -> None:
        if not isinstance(schema, dict):
            raise SchemaRefused(f"its schema is {short_repr(schema)}, not a JSON object")
        # First, since all that follows walks through it, and each request to a model has it.
        size = len(json.dumps(schema))
        if size > _MAX_SCHEMA:
            raise SchemaRefused(f"its schema has {size:,} bytes, and at most {_MAX_SCHEMA:,} are allowed")
        try:
            # The metaschema allows these, and we do not: references to elsewhere, and patterns that cannot be run.
            self._check_parts(schema)
            # By the draft that the schema names; servers that name none mean the newest.
            base = validator_for(schema, default=Draft202012Validator)
            base.check_schema(schema)
            # An empty registry, so that nothing is fetched.
            self._validator = extend(base, self._keywords(base.VALIDATORS))(schema, registry=Registry())
        except SchemaError as error:
            raise SchemaRefused(f"its schema is not a JSON schema: {error.message[:_MAX_PROBLEM]}") from None
        except RecursionError:
            raise SchemaRefused("its schema is nested too deep") from None
        except (TypeError, ValueError, AttributeError) as error:  # for a `$schema` that is a number, say
            if isinstance(error, SchemaRefused):
                raise
            raise SchemaRefused(f"its schema is not a JSON schema ({type(error).__name__})") from None
        # The check of a schema that refers to itself for the same value never ends, whatever the value is.
        problem = self._find_problem({})
        if problem is not None and problem.startswith(_UNUSABLE):
            raise SchemaRefused(f"its schema {problem.removeprefix(_UNUSABLE)}")

    def problem(self, value: object) -> str | None:
        """Say what is wrong with a value, in words for the model; `None` when it fits the schema."""
        problem = self._find_problem(value)
        return problem if problem is None else problem.replace(_UNUSABLE, "it cannot be checked: its schema ", 1)

    def _find_problem(self, value: object) -> str | None:
        self._deadline = thread_time() + _MAX_CHECK_SECONDS
        try:
            error = best_match(self._validator.iter_errors(value))
        except (RecursionError, _CheckTimeout):
            return f"{_UNUSABLE}refers to itself without end, or takes too long to check"
        except Unresolvable as unresolvable:
            return f"{_UNUSABLE}refers to {short_repr(str(unresolvable.ref))}, which it does not contain"
        except PatternError as pattern:
            return f"{_UNUSABLE}has a pattern that cannot be checked: {pattern}"
        except ArithmeticError:
            return "it has a number that is too large"
        if error is None:
            return None
        where = ".".join(map(str, error.absolute_path))
        message = error.message if len(error.message) <= _MAX_PROBLEM else f"{error.message[:_MAX_PROBLEM]}..."
        return f"argument {short_repr(where)}: {message}" if where else message

    def _keywords(self, keywords: Mapping[str, Callable[..., Any]]) -> dict[str, Callable[..., Any]]:
        """Return a check for each keyword, which keeps to the time limit; patterns run in an engine of linear time."""
        ours: dict[str, Callable[..., Any]] = {
            "pattern": _check_pattern,
            "patternProperties": self._check_pattern_properties,
            "additionalProperties": self._check_additional_properties,
            "uniqueItems": _check_unique_items,
        }
        return {name: partial(self._check, function) for name, function in {**keywords, **ours}.items()}

    def _check(self, function: Callable[..., Any], *arguments: Any) -> Any:
        # For each keyword of each part, since references multiply: two side by side, ten levels deep, are a thousand.
        self._check_time()
        return function(*arguments)

    def _check_time(self) -> None:
        # The processor time of this thread, which does not depend on how busy the machine is.
        if thread_time() > self._deadline:
            raise _CheckTimeout

    def _check_pattern_properties(
        self, validator: Any, patterns: JSONObject, instance: object, _: Any
    ) -> Iterator[ValidationError]:
        if not isinstance(instance, dict):
            return
        for pattern, part in patterns.items():
            fits = compile_pattern(pattern)
            self._check_time()
            for name, value in instance.items():
                if fits(name):
                    yield from validator.descend(value, part, path=name, schema_path=pattern)

    def _check_additional_properties(
        self, validator: Any, part: Any, instance: object, schema: JSONObject
    ) -> Iterator[ValidationError]:
        if not isinstance(instance, dict):
            return
        known = schema.get("properties", {})
        patterns = [compile_pattern(pattern) for pattern in schema.get("patternProperties", {})]
        for name in instance:
            self._check_time()
            if name in known or any(fits(name) for fits in patterns):
                continue
            if part is False:
                yield ValidationError(f"argument {short_repr(name)} is unknown")
            elif isinstance(part, dict):
                yield from validator.descend(instance[name], part, path=name)

    def _check_parts(self, schema: JSONSchema) -> None:
        resolver = Registry().with_resource("", DRAFT202012.create_resource(schema)).resolver()
        for part in _subschemas(schema):
            reference = part.get("$ref")
            if isinstance(reference, str):
                # Nothing is fetched: a server could make us ask any host for anything.
                if not reference.startswith("#"):
                    raise SchemaRefused(f"its schema refers to {short_repr(reference)}, outside of itself")
                try:
                    resolver.lookup(reference)
                except Unresolvable:
                    raise SchemaRefused(
                        f"its schema refers to {short_repr(reference)}, which it does not contain"
                    ) from None
            patterns = part.get("patternProperties")
            for pattern in [part.get("pattern"), *(patterns if isinstance(patterns, dict) else ())]:
                if isinstance(pattern, str):
                    try:
                        compile_pattern(pattern)
                    except PatternError as error:
                        raise SchemaRefused(f"its schema has a pattern that cannot be checked: {error}") from None
            if "patternProperties" in part and not {"unevaluatedProperties"}.isdisjoint(part):
                raise SchemaRefused("its schema has patternProperties beside unevaluatedProperties")


_UNUSABLE = "unusable: "


def clean_schema(schema: JSONSchema, max_text: int) -> JSONSchema:
    """Return the schema with descriptions of at most `max_text` characters, and without hidden characters in them.

    Raises `SchemaRefused` for hidden characters anywhere else, such as in the names of properties.
    """
    return {key: _clean(key, value, max_text) for key, value in schema.items()}


def _clean(key: str, value: Any, max_text: int) -> Any:
    # The name of a property is read by the model, and sent back as it is.
    if has_hidden_characters(key):
        raise SchemaRefused("its schema has hidden characters in a name")
    if isinstance(value, dict):
        return {name: _clean(name, part, max_text) for name, part in value.items()}
    if isinstance(value, list):
        return [_clean("", part, max_text) for part in value]
    if isinstance(value, str):
        if key in _SHOWN_TO_MODELS:
            return clean_text(value, max_text)
        if has_hidden_characters(value):
            raise SchemaRefused("its schema has hidden characters in a value")
    return value


def fingerprint_of(name: str, description: str | None, schema: object) -> str:
    """Return a digest of a tool as its server describes it."""
    # Made before anything is cleaned, so that hidden characters count as well.
    text = json.dumps([name, description, schema], sort_keys=True)
    return sha256(text.encode()).hexdigest()


def _subschemas(part: object) -> Iterator[JSONObject]:
    if isinstance(part, dict):
        yield part
        for inner in part.values():
            yield from _subschemas(inner)
    elif isinstance(part, list):
        for inner in part:
            yield from _subschemas(inner)


def _check_pattern(_: Any, pattern: str, instance: object, __: Any) -> Iterator[ValidationError]:
    if isinstance(instance, str) and not compile_pattern(pattern)(instance):
        yield ValidationError(f"{short_repr(instance)} does not match {pattern!r}")


def _check_unique_items(_: Any, is_on: object, instance: object, __: Any) -> Iterator[ValidationError]:
    # The check of the validator compares each item with each other.
    items = instance if is_on is True and isinstance(instance, list) else []
    if len({json.dumps(item, sort_keys=True) for item in items}) < len(items):
        yield ValidationError("it has an item twice, and its items must be unique")
