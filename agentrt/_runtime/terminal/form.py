"""Asks the user for the fields of a pydantic model, one by one."""

import json
from collections.abc import Awaitable, Callable
from dataclasses import is_dataclass
from typing import Any, get_args, get_origin, get_type_hints, is_typeddict

from pydantic import BaseModel, PydanticUserError, Secret, SecretBytes, SecretStr, ValidationError
from pydantic.fields import FieldInfo
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaWarningKind
from pydantic_core import ErrorDetails, core_schema, from_json, to_json

from agentrt._runtime.text import one_line
from agentrt.errors import InvalidInputError
from agentrt.types import JSONSchema

_MAX_REFUSALS = 100  # per form: a user stops earlier, but an answering program would never stop
_MAX_PROMPT = 200  # characters of a type or default
# The model's author writes the other three, which may quote the input.
_SAFE_REASONS = frozenset(get_args(core_schema.ErrorType)) - {"value_error", "assertion_error", "union_tag_invalid"}
_TYPE_NAMES = {"boolean": "yes or no", "array": "JSON list", "object": "JSON object"}


class FormModel:
    """The model of a form: its fields, validation, and values.

    Raises `InvalidInputError` for anything but a model with fields.
    """

    def __init__(self, model: object) -> None:
        if not (isinstance(model, type) and issubclass(model, BaseModel)):
            raise InvalidInputError(f"structured_model must be a pydantic model class, not {model!r:.200}")
        if model.__pydantic_root_model__:
            raise InvalidInputError(
                f"structured_model {model.__name__} has no fields to ask for: put its root into a field of another "
                f"model"
            )
        self.name = model.__name__
        self.fields = model.model_fields
        self.secret = {name for name, field in self.fields.items() if _holds_secret(field.annotation)}
        self._model = model

    def json_schema(self) -> JSONSchema:
        """Return the schema of each field, by name; empty if JSON has no type for one of them."""
        try:
            return self._model.model_json_schema(by_alias=False, schema_generator=_QuietSchema)
        except PydanticUserError:  # the input may be valid for it anyway
            return {}

    def validate(self, answers: dict[str, Any]) -> BaseModel:
        """Return the model with these values; raises `ValidationError`."""
        return self._model.model_validate_json(to_json(answers), by_alias=True, by_name=True)

    def dump(self, filled: BaseModel) -> dict[str, Any]:
        """Return the values by their names in the model's JSON; secrets stay wrapped."""
        # Defaults may differ in type from their fields, but that warning concerns only the model's author.
        plain = filled.model_dump(mode="json", by_alias=True, exclude=self.secret, warnings=False)
        return plain | filled.model_dump(by_alias=True, include=self.secret, warnings=False)

    def field_of(self, problem: ErrorDetails) -> str | None:
        """Return the field of a problem, `None` for the whole."""
        # Values are given by the names of their fields, so errors use those.
        return next((name for name in self.fields if problem["loc"][:1] == (name,)), None)

    def describe(self, name: str | None, problem: ErrorDetails) -> str:
        """Describe the problem of an answer, without quoting secrets."""
        place = "" if name in self.secret else ".".join(map(str, problem["loc"][1:]))
        # A validator sees the secrets of other fields too, so its text is shown only if there are none.
        is_safe = not self.secret or problem["type"] in _SAFE_REASONS
        reason = problem["msg"] if is_safe else "this was not accepted"
        return f"{name or 'the whole'}{place and f' ({place})'}: {reason}"

    def problems(self, answers: dict[str, Any]) -> list[str]:
        """Describe the problems of all answers together; empty if they are valid."""
        try:
            self.validate(answers)
        except ValidationError as error:
            return [self.describe(self.field_of(problem), problem) for problem in _problems_of(error)]
        return []


class Form:
    """Asks for the fields of a model until all of them are valid together.

    `ask` is called with a prompt and whether the answer is a secret, `tell` with the problem of an answer.
    Raises `InvalidInputError` for anything but a model with fields.
    """

    def __init__(
        self, model: object, *, ask: Callable[[str, bool], Awaitable[str]], tell: Callable[[str], None]
    ) -> None:
        self._model = FormModel(model)
        self._fields, self._secret = self._model.fields, self._model.secret
        self._ask = ask
        self._tell = tell
        schemas = _schemas_of_fields(self._model.json_schema())
        self._prompts = {
            name: _prompt(name, field, schemas.get(name, {}), name in self._secret)
            for name, field in self._fields.items()
        }
        self._answers: dict[str, Any] = {}
        self._refused = 0

    async def fill(self) -> dict[str, Any]:
        """Return the values by their names in the model's JSON."""
        names = list(self._fields)
        while True:
            for name in names:
                await self._ask_for(name)
            try:
                # The whole again: validators of the model see all fields only now.
                return self._model.dump(self._model.validate(self._answers))
            except ValidationError as error:
                problems = _problems_of(error)
            for problem in problems:
                self._refuse(self._model.field_of(problem), [problem])
            refused = {self._model.field_of(problem) for problem in problems}
            names = [name for name in self._fields if name in refused or None in refused]

    async def _ask_for(self, name: str) -> None:
        self._answers.pop(name, None)
        secret = name in self._secret
        while True:
            text = await self._ask(self._prompts[name], secret)
            text = text if secret else text.strip()  # a secret may start or end with a space
            if not text and not self._fields[name].is_required():
                return
            value, problems = self._read(name, text) if text else (None, self._problems(name, None))
            if not problems:
                self._answers[name] = value
                return
            self._refuse(name, problems if text else [])

    def _read(self, name: str, text: str) -> tuple[Any, list[ErrorDetails]]:
        """Return the text itself if the field accepts it, else its value as JSON, and the problem of that."""
        problems = self._problems(name, text)
        if not problems:
            return text, []
        try:
            value = from_json(text, allow_inf_nan=False)
        except ValueError:
            return text, problems
        others = self._problems(name, value)
        return value, others if not others or isinstance(value, list | dict) else problems

    def _problems(self, name: str, value: object) -> list[ErrorDetails]:
        """Return the model's objection to the value, given the answers so far."""
        try:
            self._model.validate({**self._answers, name: value})
        except ValidationError as error:
            return [problem for problem in _problems_of(error) if self._model.field_of(problem) == name]
        except Exception:  # noqa: BLE001  # a validator of the whole model fails without the other fields; it runs at the end
            return []
        return []

    def _refuse(self, name: str | None, problems: list[ErrorDetails]) -> None:
        self._refused += 1
        if self._refused > _MAX_REFUSALS:
            raise InvalidInputError(f"the form {self._model.name} was abandoned after {_MAX_REFUSALS} refused answers")
        for problem in problems:
            self._tell(self._model.describe(name, problem))
        if not problems:
            self._tell(f"{name}: an answer is needed")


def _problems_of(error: ValidationError) -> list[ErrorDetails]:
    return error.errors(include_url=False, include_context=False, include_input=False)


def _holds_secret(annotation: Any, seen: frozenset[int] = frozenset()) -> bool:
    """Say whether a value of the type is a secret, or has one in it."""
    annotation = getattr(annotation, "__value__", annotation)  # of a type alias
    kind = get_origin(annotation) or annotation
    if isinstance(kind, type) and issubclass(kind, SecretStr | SecretBytes | Secret):
        return True
    if id(annotation) in seen:
        return False
    parts = [*get_args(annotation)]
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        parts += [field.annotation for field in kind.model_fields.values()]
    elif is_dataclass(kind) or is_typeddict(kind):
        parts += get_type_hints(kind).values()
    return any(_holds_secret(part, seen | {id(annotation)}) for part in parts)


class _QuietSchema(GenerateJsonSchema):
    def emit_warning(self, kind: JsonSchemaWarningKind, detail: str) -> None:
        pass  # it matters only to a program that reads the schema


def _schemas_of_fields(root: JSONSchema) -> dict[str, JSONSchema]:
    """Return the JSON schema of each field of a form, without references."""
    definitions = root.get("$defs", {})

    def resolve(schema: JSONSchema) -> JSONSchema:
        schema = definitions.get(str(schema.get("$ref")).removeprefix("#/$defs/"), schema)
        variants = schema.get("anyOf") or schema.get("oneOf")
        return {**schema, "anyOf": [*map(resolve, variants)]} if variants else schema

    return {name: resolve(schema) for name, schema in resolve(root).get("properties", {}).items()}


def _prompt(name: str, field: FieldInfo, schema: JSONSchema, is_secret: bool) -> str:
    """Return the prompt of a field: its name, its type in words, and the meaning of an empty line."""
    if field.is_required():
        default = ", may be left out" if {"type": "null"} in schema.get("anyOf", []) else ""
    elif field.default_factory is None and field.default is None:
        default = ", may be left out"
    elif field.default_factory is not None or is_secret:
        default = ", has a default"
    else:
        default = f", default {one_line(to_json(field.default, fallback=repr).decode(errors='replace'), _MAX_PROMPT)}"
    description = f" - {' '.join(field.description.split())}" if field.description else ""
    return f"{name} ({one_line(_describe_expected(schema), _MAX_PROMPT)}{default}){description}: "


def _describe_expected(schema: JSONSchema) -> str:
    if "const" in schema or "enum" in schema:
        return " or ".join(json.dumps(value, ensure_ascii=False) for value in schema.get("enum", [schema.get("const")]))
    variants = [variant for variant in schema.get("anyOf", []) if variant != {"type": "null"}]
    if variants:
        return " or ".join(dict.fromkeys(map(_describe_expected, variants)))
    kind = str(schema.get("type", "value"))
    if kind == "object" and schema.get("properties"):
        return f"JSON object with {', '.join(map(json.dumps, schema['properties']))}"
    return str(schema.get("format", "text")) if kind == "string" else _TYPE_NAMES.get(kind, kind)
