"""Answers that must have a form: the model gives them through a tool that exists for one reply only."""

from contextlib import suppress
from copy import deepcopy
from typing import Any

from pydantic import BaseModel, PydanticUserError, ValidationError
from pydantic_core import from_json, to_json

from agentrt.conversation.conversation import ReplyingAgent
from agentrt.conversation.step import STRUCTURED_OUTPUT
from agentrt.errors import InvalidInputError, ToolError, UsageError
from agentrt.state import ReplyContext, StructuredTask
from agentrt.tool import ToolBase, Toolkit
from agentrt.tool.json_schema.compiler import CompiledSchema, SchemaError
from agentrt.types import JSONSchema

__all__ = ["require_structured_output", "toolkit_for_reply", "validate_schema"]

_MOST_ERRORS = 5


def validate_schema(structured_schema: Any) -> None:
    """Raise `InvalidInputError` for what describes no form."""
    if structured_schema is not None:
        _schema_of(structured_schema)


def require_structured_output(agent: ReplyingAgent, context: ReplyContext, structured_schema: Any) -> None:
    """Have the reply end with an answer of that form, `None` for any."""
    if structured_schema is None:
        return
    context.structured = StructuredTask(_schema_of(structured_schema))
    form = structured_schema if _is_model(structured_schema) else None
    agent.run.toolkit = agent.run.progress.lasting_toolkit = _extended(
        agent.toolkit, _StructuredOutput(context.structured, form)
    )


def toolkit_for_reply(agent: ReplyingAgent, context: ReplyContext) -> Toolkit:
    """Return the tools of a reply that is taken up again; of the form, its JSON schema is what is left."""
    task = context.structured
    return agent.toolkit if task is None else _extended(agent.toolkit, _StructuredOutput(task, None))


def _extended(toolkit: Toolkit, tool: ToolBase) -> Toolkit:
    if toolkit.get(STRUCTURED_OUTPUT) is not None:
        raise UsageError(
            f"structured_schema needs the name {STRUCTURED_OUTPUT!r} for a tool of its own, but the toolkit has a tool "
            f"of that name: give that one another name"
        )
    return toolkit.with_tools([tool])


def _is_model(value: Any) -> bool:
    return isinstance(value, type) and issubclass(value, BaseModel)


def _schema_of(structured_schema: Any) -> JSONSchema:
    """Return the JSON schema of the form, as a copy."""
    try:
        schema = structured_schema.model_json_schema() if _is_model(structured_schema) else structured_schema
        copy = from_json(to_json(schema)) if isinstance(schema, dict) else None
    except (PydanticUserError, ValueError) as error:  # a field or value that JSON cannot hold
        why = str(error).partition("\n")[0]
        raise InvalidInputError(f"structured_schema {structured_schema!r:.200} has no JSON schema: {why}") from error
    if copy is None or copy.get("type", "object") != "object" or not isinstance(copy.get("properties", {}), dict):
        raise InvalidInputError(
            f"structured_schema must be a pydantic model class or a JSON schema of an object, such as "
            f'{{"type": "object", "properties": {{"answer": {{"type": "string"}}}}}}, not {structured_schema!r:.200}; '
            f"a list or a number goes into a property"
        )
    return _require_checkable(copy, structured_schema)


def _require_checkable(schema: JSONSchema, structured_schema: Any) -> JSONSchema:
    """Return a schema whose every keyword can be checked; raises `InvalidInputError` for one that cannot be used."""
    if _is_model(structured_schema):
        with suppress(SchemaError):
            CompiledSchema(schema)
            return schema
        schema = _drop_patterns(schema)  # they may be written for Python's engine, and the class checks them itself
    try:
        CompiledSchema(schema)
    except SchemaError as error:
        raise InvalidInputError(f"structured_schema {structured_schema!r:.200} cannot be used: {error}") from error
    return schema


def _drop_patterns(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_drop_patterns(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    kept = {name: part for name, part in schema.items() if name != "pattern" or not isinstance(part, str)}
    return {name: _drop_patterns(part) for name, part in kept.items()}


class _StructuredOutput(ToolBase):
    """Give the final answer, in the form that was asked for."""

    name = STRUCTURED_OUTPUT
    is_concurrency_safe = False
    is_read_only = True

    def __init__(self, task: StructuredTask, form: type[BaseModel] | None) -> None:
        self.input_schema = task.schema
        self._task = task
        self._form = form

    async def call(self, /, **answer: Any) -> str:  # the form may have a property `self`
        self._task.output = self._checked(answer)
        return "The answer was taken."

    def _checked(self, answer: dict[str, Any]) -> dict[str, Any]:
        if self._form is None:
            filled: dict[str, Any] = _with_defaults(answer, self._task.schema, self._task.schema)
            return filled
        try:
            return self._form.model_validate_json(to_json(answer)).model_dump(mode="json", by_alias=True)
        except ValidationError as error:
            problems = error.errors(include_url=False, include_context=False, include_input=False)[:_MOST_ERRORS]
            told = "; ".join(f"{'.'.join(map(str, each['loc'])) or 'the answer'}: {each['msg']}" for each in problems)
            raise ToolError(f"the answer does not fit: {told}") from None


def _with_defaults(value: Any, schema: Any, root: JSONSchema) -> Any:
    """Return the value with what its JSON schema says of the properties that it lacks."""
    schema = _resolved(schema, root)
    if isinstance(value, list):
        return [_with_defaults(each, schema.get("items", {}), root) for each in value]
    properties = schema.get("properties", {})
    if not isinstance(value, dict) or not isinstance(properties, dict):
        return value
    filled = {name: _with_defaults(each, properties.get(name, {}), root) for name, each in value.items()}
    for name, each in properties.items():
        if name not in filled and isinstance(each, dict) and "default" in each:
            filled[name] = deepcopy(each["default"])
    return filled


def _resolved(schema: Any, root: JSONSchema) -> dict[str, Any]:
    if isinstance(schema, dict):
        variants = [each for each in schema.get("anyOf") or [] if each != {"type": "null"}]
        if len(variants) == 1:  # what may be left out
            schema = variants[0]
    reference = schema.get("$ref") if isinstance(schema, dict) else None
    if isinstance(reference, str) and reference.startswith("#/$defs/"):
        schema = root.get("$defs", {}).get(reference.removeprefix("#/$defs/"), {})
    return schema if isinstance(schema, dict) else {}
