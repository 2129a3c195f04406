"""A function as a tool."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal

import pydantic

from agentrt._runtime.representation import never_raises
from agentrt._runtime.text import repr_of
from agentrt.errors import ToolConfigError
from agentrt.tool.base import MAX_OUTPUT, ToolBase, check_tool
from agentrt.tool.invocation import CallPlan, make_call_plan
from agentrt.tool.signature.callables import bound_arguments, docstring_of, function_name, source_location
from agentrt.tool.signature.docstring import parse_docstring
from agentrt.types import JSONObject, JSONSchema, ToolFlow


class FunctionTool(ToolBase):
    """A typed function that a model may call; schema and validator are built here, once.

    Coroutine functions run in the caller's task, plain functions and generators in a worker thread, so the event loop
    keeps going. Generators stream what a tool may return (text, blocks and `ToolChunk`s: each only what is new), and so
    does a function that returns one. Bound methods, partials and objects with `__call__` are accepted as well. The
    model reads the name, the docstring up to its first section (`Args:`, `Returns:`, ...), and of each parameter what
    `Annotated[..., Field(description=...)]` or the docstring says.

    `preset_kwargs` are passed at each call and hidden from the model. The strings in them, also in lists and dicts, are
    masked in the messages of exceptions, if they have 8 characters or more. `json_schema` takes the place of what the
    hints say: the schema of the parameters, or the whole `{"type": "function", "function": {...}}`, whose name and
    description hold where no others are given. `is_concurrency_safe`, when not given, is true for async functions and
    false for plain ones. Raises `ToolConfigError` for what cannot be described to a model. With
    `idempotent` a call that was running when its process ended runs again, with the same
    `ToolContext.idempotency_key`. With `background` a call is let go at once where a runner runs the agent, and its
    result comes in a later reply.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        name: str | None = None,
        description: str | None = None,
        ask: bool = False,
        timeout: float | None = 300.0,
        is_concurrency_safe: bool | None = None,
        is_read_only: bool = False,
        is_resumable: bool = False,
        idempotent: bool = False,
        background: bool = False,
        preset_kwargs: Mapping[str, object] | None = None,
        json_schema: JSONSchema | None = None,
        max_output: int = MAX_OUTPUT,
        raise_tool_errors: bool = False,
        error_detail: Literal["message", "type"] = "message",
        flow: ToolFlow | None = None,
        keeps_handles: bool = False,
        changes_conversation: bool = False,
    ) -> None:
        if isinstance(json_schema, dict) and json_schema.get("type") == "function":
            name, description, json_schema = _split_function_schema(json_schema, name, description)
        _refuse_unusable(function, name)
        self.function = function
        self.name = name if name is not None else function_name(function)
        self.description = parse_docstring(docstring_of(function))[0] if description is None else description
        self.ask = ask
        self.timeout = timeout
        self.is_read_only = is_read_only
        self.is_resumable = is_resumable
        self.is_idempotent = idempotent
        self.is_background = background
        self.max_output = max_output
        self.raise_tool_errors = raise_tool_errors
        self.error_detail = error_detail
        self.flow = flow
        # A sub-agent that is a function says so itself.
        self.keeps_handles = keeps_handles or bool(getattr(function, "delegates", False))
        self.changes_conversation = changes_conversation
        # A copy: what the caller does to the original later must not reach the calls.
        self.preset_kwargs: JSONObject = dict(preset_kwargs or {})
        # Bound and preset arguments are most likely what an exception must not repeat: keys and passwords.
        hidden = {**bound_arguments(function), **self.preset_kwargs}
        self.secrets = list(_strings_in(hidden))
        self._json_schema = json_schema
        check_tool(self)
        # Made now and not on first use, so that a function that cannot be a tool is refused where it is registered.
        plan = self._plan = self._make_call_plan()
        self.input_schema = plan.schema
        self.is_concurrency_safe = not plan.in_thread if is_concurrency_safe is None else is_concurrency_safe

    def call(self, *args: Any, **arguments: Any) -> Any:
        """Call the function as it is, in this thread."""
        return self.function(*args, **arguments, **self.preset_kwargs)

    @never_raises
    def __repr__(self) -> str:
        return f"<FunctionTool {self.name} ({source_location(self.function)})>"

    def _make_call_plan(self) -> CallPlan:
        return make_call_plan(self.name, self.function, self.preset_kwargs, self._json_schema)


def _strings_in(value: object) -> Iterator[str]:
    """Yield the strings in a value, however deep in dicts and lists, and what pydantic's secrets hold."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, (Mapping, list, tuple)):
        for part in value.values() if isinstance(value, Mapping) else value:
            yield from _strings_in(part)
    elif isinstance(value, pydantic.SecretStr):
        yield value.get_secret_value()


def _split_function_schema(
    whole: JSONSchema, name: str | None, description: str | None
) -> tuple[str | None, str | None, JSONSchema]:
    """Return the name, the description and the parameters of a schema in the form in which models get tools."""
    function = whole.get("function", whole)
    if not isinstance(function, dict) or "parameters" not in function:
        raise ToolConfigError(
            f'a json_schema of type "function" must be {{"type": "function", "function": {{"name": ..., '
            f'"description": ..., "parameters": {{...}}}}}}, not {whole!r:.200}'
        )
    return (
        function.get("name") if name is None else name,
        function.get("description") if description is None else description,
        function["parameters"],
    )


def _refuse_unusable(function: object, name: str | None) -> None:
    if isinstance(function, type):
        raise ToolConfigError(
            f"the class {function.__name__} cannot be a tool: pass a function, or an instance, {function.__name__}(...)"
        )
    if not callable(function):
        raise ToolConfigError(f"{repr_of(function)} cannot be a tool: pass a function with type hints, or a ToolBase")
    if name is None and function_name(function) == "<lambda>":
        raise ToolConfigError(
            f"a lambda has no name by which a model could call it: write a function with `def`, or give name=... "
            f"({source_location(function)})"
        )
