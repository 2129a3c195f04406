"""The form of a reply's answer: a type or a JSON schema, the object that the model fills in, and the caller's result.

Models and the APIs of providers fill in objects only: for any other type, such as `list[X]` or `int`,
the model fills in an object with one property, and the caller gets the value of that property.
"""

from collections.abc import Iterable
from contextlib import suppress
from copy import deepcopy
from typing import Any, get_origin

import pydantic
from pydantic_core import ValidationError, from_json, to_json

from agentrt._runtime.schema.parts import SchemaError
from agentrt._runtime.schema.validator import Validator
from agentrt._runtime.text import repr_of
from agentrt.errors import InvalidInputError
from agentrt.state.state import WRAPPER, StructuredTask
from agentrt.types import JSONObject, JSONSchema

_MAX_ERRORS = 5
_NAMES_OF_TYPES = ("__supertype__", "__value__")  # of a NewType, and of a `type` statement
_SCHEMA_EXAMPLE = '{"type": "object", "properties": {"answer": {"type": "string"}}}'
# Every schema that restricts an object has one of them.
_OBJECT_KEYWORDS = {
    "$ref",
    "additionalProperties",
    "allOf",
    "anyOf",
    "enum",
    "oneOf",
    "patternProperties",
    "properties",
    "required",
    "type",
}


class AnswerForm:
    """The form of one reply's answer; raises `InvalidInputError` for an invalid source.

    `source` is the given type or schema, and `schema` the JSON schema of the object that the model fills in:
    a copy. `is_wrapped` says that the answer is the one property of that object.
    """

    __slots__ = ("_adapter", "_latest", "is_wrapped", "schema", "source")

    def __init__(self, source: Any) -> None:
        self.source = source
        self.is_wrapped = False
        self._adapter: pydantic.TypeAdapter[Any] | None = None
        self._latest: tuple[bytes, Any] | None = None  # the last answer, as JSON and as an instance
        # A `str` would pass for a forward reference, and an instance of a model for the schema of its class.
        is_type = isinstance(source, type) or get_origin(source) is not None
        if not is_type and not isinstance(source, dict) and not any(hasattr(source, name) for name in _NAMES_OF_TYPES):
            raise InvalidInputError(
                f"structured_schema must be a type, such as a pydantic model class, a dataclass or list[str], or a "
                f"JSON schema of an object, such as {_SCHEMA_EXAMPLE}, not {repr_of(source)}"
            )
        try:
            if not isinstance(source, dict):
                self._adapter = pydantic.TypeAdapter(source)
                _refuse_iterators(self._adapter.core_schema)
            schema = source if self._adapter is None else self._adapter.json_schema()
            self.schema: JSONSchema = from_json(to_json(schema))  # a copy: the user may change it during the reply
        except (pydantic.PydanticUserError, ValueError, TypeError) as error:  # a field or value that JSON cannot hold
            raise InvalidInputError(_describe_useless(source, error)) from error
        if self._adapter is not None:
            self.schema, self.is_wrapped = _object_schema(self.schema)
        elif self.schema and not self.schema.keys() & _OBJECT_KEYWORDS:
            raise InvalidInputError(
                f"structured_schema {repr_of(source)} is not a JSON schema, since it has neither 'type' nor "
                f"'properties': write {_SCHEMA_EXAMPLE}, or give a class, such as a pydantic model, a dataclass or a "
                f"TypedDict"
            )
        elif self.schema.get("type", "object") != "object" or not isinstance(self.schema.get("properties", {}), dict):
            raise InvalidInputError(
                f"structured_schema must be the JSON schema of an object, such as {_SCHEMA_EXAMPLE}, not "
                f"{repr_of(source)}: a list or a number goes into a property, or give a type, such as list[str]"
            )
        self._check_schema()

    @property
    def has_type(self) -> bool:
        """Whether the caller gets an instance of a type, not JSON."""
        return self._adapter is not None

    @property
    def path(self) -> tuple[str, ...]:
        """The path of the answer in the model's object."""
        return (WRAPPER,) if self.is_wrapped else ()

    def is_form_of(self, task: StructuredTask) -> bool:
        """Say whether a saved reply has this form."""
        return self.schema == task.schema and self.is_wrapped == task.is_wrapped

    def fill_in(self, answer: JSONObject) -> JSONObject:
        """Return the model's object, as JSON with its defaults.

        The input fits the schema. Raises `ValidationError` if the type refuses it.
        """
        filled_in: JSONObject
        if self._adapter is None:
            filled_in = add_defaults(answer, self.schema, self.schema)
            return filled_in
        # As JSON: a strict class accepts a date from JSON text, but not from a Python str.
        value = self._adapter.validate_json(to_json(answer[WRAPPER] if self.is_wrapped else answer))
        output = self._dump(value)
        self._latest = to_json(output), value
        filled_in = {WRAPPER: output} if self.is_wrapped else output
        return filled_in

    def load(self, output: Any) -> Any:
        """Return the caller's result for an answer in JSON; raises `ValidationError` if it does not fit."""
        if self._adapter is None:
            return output
        # The validated instance, since a type need not accept its own dump.
        text = to_json(output)
        if self._latest is not None and self._latest[0] == text:
            return self._latest[1]
        return self._adapter.validate_json(text)

    def load_partial(self, text: bytes) -> Any:
        """Return the caller's result for an answer in JSON that is not complete; raises `ValidationError` for a misfit.

        Its last item may be missing, and its last `str` may be cut.
        """
        if self._adapter is None:
            return from_json(text)
        return self._adapter.validate_json(text, experimental_allow_partial="trailing-strings")

    def take(self, output: Any) -> Any:
        """Return a layer's answer, an instance or JSON, as JSON.

        Raises a `ValueError` if it does not fit.
        """
        if self._adapter is None:
            return output
        plain = from_json(to_json(output))
        # JSON stays JSON: a strict class accepts a date from JSON text, but not from a Python str.
        value = self.load(output) if plain == output else self._adapter.validate_python(output)
        plain = plain if plain == output else self._dump(value)
        self._latest = to_json(plain), value
        return plain

    def _dump(self, value: Any) -> Any:
        assert self._adapter is not None
        return from_json(self._adapter.dump_json(value, by_alias=True))

    def _check_schema(self) -> None:
        if self._adapter is not None:
            with suppress(SchemaError):  # nearly always it compiles unchanged
                Validator(self.schema)
                return
            self.schema = _drop_patterns(self.schema)  # they may be for Python's engine, and the type checks them
        try:
            Validator(self.schema)
        except SchemaError as error:
            raise InvalidInputError(f"structured_schema {self.source!r:.200} cannot be used: {error}") from error


def _describe_useless(source: object, error: Exception) -> str:
    """Return the error text for a type or dict without a JSON schema."""
    if isinstance(source, dict):
        why = f"it is not JSON; write {_SCHEMA_EXAMPLE}, or give a class"
    elif isinstance(error, pydantic.PydanticSchemaGenerationError):
        why = "it holds a class without typed fields; make that a pydantic model, a dataclass or a TypedDict"
    elif isinstance(error, pydantic.PydanticUserError) and error.code in (
        "class-not-fully-defined",
        "undefined-annotation",
    ):
        why = "it holds a name that cannot be looked up; define it at the top of the module, before its use"
    else:
        why = str(error).partition("\n")[0]
    return f"structured_schema {repr_of(source)} has no JSON schema: {why}"


def describe_misfit(error: ValidationError, path: Iterable[str] = ()) -> str:
    """Describe the problems without the values, which may be long, and which the model has just written."""
    problems = error.errors(include_url=False, include_context=False, include_input=False)[:_MAX_ERRORS]
    return "; ".join(
        f"{'.'.join(map(str, [*path, *problem['loc']])) or 'the answer'}: {problem['msg']}" for problem in problems
    )


def _refuse_iterators(schema: object) -> None:
    """Raise `TypeError` for a type whose values can be read only once: making JSON would use them up."""
    if isinstance(schema, dict):
        if schema.get("type") == "generator":
            raise TypeError("an iterator can be read only once: write list[X] in place of Iterable[X] or Generator[X]")
        schema = list(schema.values())
    if isinstance(schema, list):
        for part in schema:
            _refuse_iterators(part)


def _object_schema(schema: JSONSchema) -> tuple[JSONSchema, bool]:
    """Return the schema of a type as that of an object, and whether that object wraps the type."""
    definitions = schema.get("$defs", {})
    reference = schema.get("$ref")
    if isinstance(reference, str):  # of a recursive type: providers require the root's type at the root
        schema = {**definitions[reference.removeprefix("#/$defs/")], "$defs": definitions}
    if schema.get("type") == "object":
        return schema, False
    # Definitions stay at the root, the target of references.
    inner = {name: part for name, part in schema.items() if name != "$defs"}
    wrapped: JSONSchema = {"type": "object", "properties": {WRAPPER: inner}, "required": [WRAPPER]}
    return (wrapped | {"$defs": definitions} if definitions else wrapped), True


def _drop_patterns(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_drop_patterns(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        name: _drop_patterns(part)
        for name, part in schema.items()
        if name != "pattern" or not isinstance(part, str)  # a property may have this name too
    }


def add_defaults(value: Any, schema: object, root: JSONSchema) -> Any:
    """Return the value with the defaults of its JSON schema for missing properties."""
    if isinstance(schema, dict):
        variants = [variant for variant in schema.get("anyOf") or [] if variant != {"type": "null"}]
        if len(variants) == 1:  # an optional value
            schema = variants[0]
    reference = schema.get("$ref") if isinstance(schema, dict) else None
    if isinstance(reference, str) and reference.startswith("#/$defs/"):
        schema = root.get("$defs", {}).get(reference.removeprefix("#/$defs/"), {})
    resolved: JSONSchema = schema if isinstance(schema, dict) else {}
    if isinstance(value, list):
        return [add_defaults(item, resolved.get("items", {}), root) for item in value]
    properties = resolved.get("properties", {})
    if not isinstance(value, dict) or not isinstance(properties, dict):
        return value
    complete = {name: add_defaults(item, properties.get(name, {}), root) for name, item in value.items()}
    for name, part in properties.items():
        if name not in complete and isinstance(part, dict) and "default" in part:
            complete[name] = deepcopy(part["default"])
    return complete
