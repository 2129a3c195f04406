"""Answers of a given structure: the model gives them through a tool that exists for one reply only."""

from contextlib import suppress
from copy import deepcopy
from typing import Any, TypeGuard

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

_MAX_ERRORS = 5
_TAKEN = "The answer was taken."


def validate_schema(structured_schema: object) -> None:
    """Raise `InvalidInputError` for a value that does not describe a structure; `None` describes any."""
    if structured_schema is not None:
        _json_schema(structured_schema)


def require_structured_output(agent: ReplyingAgent, context: ReplyContext, structured_schema: object) -> None:
    """Make the reply end with an answer of that structure, `None` for any."""
    if structured_schema is None:
        return
    context.structured = StructuredTask(_json_schema(structured_schema))
    model_class = structured_schema if _is_model_class(structured_schema) else None
    agent.run.toolkit = agent.run.progress.lasting_toolkit = _add_answer_tool(
        agent.toolkit, _StructuredOutput(context.structured, model_class)
    )


def toolkit_for_reply(agent: ReplyingAgent, context: ReplyContext) -> Toolkit:
    """Return the tools of a reply that is resumed; of a pydantic class, its JSON schema is what was saved."""
    task = context.structured
    return agent.toolkit if task is None else _add_answer_tool(agent.toolkit, _StructuredOutput(task, None))


def _add_answer_tool(toolkit: Toolkit, tool: ToolBase) -> Toolkit:
    if toolkit.get(STRUCTURED_OUTPUT) is not None:
        raise UsageError(
            f"structured_schema needs the name {STRUCTURED_OUTPUT!r} for a tool of its own, but the toolkit has a tool "
            f"of that name: rename that tool"
        )
    return toolkit.with_tools([tool])


def _is_model_class(value: object) -> TypeGuard[type[BaseModel]]:
    return isinstance(value, type) and issubclass(value, BaseModel)


def _json_schema(structured_schema: object) -> JSONSchema:
    """Return a copy of the JSON schema; raises `InvalidInputError` for one that cannot be used or checked."""
    is_model_class = _is_model_class(structured_schema)
    try:
        value = structured_schema.model_json_schema() if _is_model_class(structured_schema) else structured_schema
        schema: JSONSchema | None = from_json(to_json(value)) if isinstance(value, dict) else None
    except (PydanticUserError, ValueError) as error:  # a field or value that JSON cannot hold
        why = str(error).partition("\n")[0]
        raise InvalidInputError(f"structured_schema {structured_schema!r:.200} has no JSON schema: {why}") from error
    if schema is None or schema.get("type", "object") != "object" or not isinstance(schema.get("properties", {}), dict):
        raise InvalidInputError(
            f"structured_schema must be a pydantic model class or a JSON schema of an object, such as "
            f'{{"type": "object", "properties": {{"answer": {{"type": "string"}}}}}}, not {structured_schema!r:.200}; '
            f"a list or a number goes into a property"
        )
    if is_model_class:
        with suppress(SchemaError):  # nearly always it compiles as it is
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
    return {
        name: _drop_patterns(part)
        for name, part in schema.items()
        if name != "pattern" or not isinstance(part, str)  # a property may be named so as well
    }


class _StructuredOutput(ToolBase):
    """Give the final answer, in the form that was asked for."""

    name = STRUCTURED_OUTPUT
    is_concurrency_safe = False
    is_read_only = True

    def __init__(self, task: StructuredTask, model_class: type[BaseModel] | None) -> None:
        self.input_schema = task.schema
        self._task = task
        self._model_class = model_class

    async def call(self, /, **answer: Any) -> str:  # the structure may have a property `self`
        # What comes in fits the schema: that is checked for every tool.
        if self._model_class is None:
            self._task.output = _add_defaults(answer, self._task.schema, self._task.schema)
            return _TAKEN
        try:
            # As JSON: a strict class takes a date from JSON text, but not from a Python str.
            output = self._model_class.model_validate_json(to_json(answer))
        except ValidationError as error:
            # Without the input, which may be long, and which the model has just written.
            problems = error.errors(include_url=False, include_context=False, include_input=False)[:_MAX_ERRORS]
            text = "; ".join(
                f"{'.'.join(map(str, problem['loc'])) or 'the answer'}: {problem['msg']}" for problem in problems
            )
            raise ToolError(f"the answer does not fit: {text}") from None
        self._task.output = output.model_dump(mode="json", by_alias=True)
        return _TAKEN


def _add_defaults(value: Any, schema: object, root: JSONSchema) -> Any:
    """Return the value with what its JSON schema says of the properties that it lacks."""
    resolved = _resolve_schema(schema, root)
    if isinstance(value, list):
        return [_add_defaults(item, resolved.get("items", {}), root) for item in value]
    properties = resolved.get("properties", {})
    if not isinstance(value, dict) or not isinstance(properties, dict):
        return value
    complete = {name: _add_defaults(item, properties.get(name, {}), root) for name, item in value.items()}
    for name, part in properties.items():
        if name not in complete and isinstance(part, dict) and "default" in part:
            complete[name] = deepcopy(part["default"])
    return complete


def _resolve_schema(schema: object, root: JSONSchema) -> JSONSchema:
    """Return the schema behind a reference, or that of the value where `null` is allowed as well."""
    if isinstance(schema, dict):
        variants = [variant for variant in schema.get("anyOf") or [] if variant != {"type": "null"}]
        if len(variants) == 1:  # an optional value
            schema = variants[0]
    reference = schema.get("$ref") if isinstance(schema, dict) else None
    if isinstance(reference, str) and reference.startswith("#/$defs/"):
        schema = root.get("$defs", {}).get(reference.removeprefix("#/$defs/"), {})
    return schema if isinstance(schema, dict) else {}
