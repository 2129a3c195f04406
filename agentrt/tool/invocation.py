"""How to call a tool, worked out once for the tool and not at each call."""

import inspect
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from opcode import opmap
from typing import Any, TypeVar

from anyio import CapacityLimiter, fail_after, to_thread
from anyio.lowlevel import RunVar

from agentrt._runtime.schema.parts import SchemaError
from agentrt._runtime.schema.validator import Validator
from agentrt.errors import ToolConfigError
from agentrt.tool.arguments import Parse, parser_by_schema
from agentrt.tool.signature.callables import underlying
from agentrt.tool.signature.parameters import Signature
from agentrt.tool.signature.reader import context_parameter, defaults_of, read_signature
from agentrt.types import JSONObject, JSONSchema

CLEANUP_SECONDS = 5.0
"""How long a tool may clean up when it is stopped."""

_MAX_THREADS = 40
_EXHAUSTED = object()
_ToolOutput = TypeVar("_ToolOutput")
_ToolFunction = Callable[..., Any]
_threads: RunVar[CapacityLimiter] = RunVar("agentrt_tool_threads")


@dataclass(slots=True, repr=False, eq=False)
class CallPlan:
    """How to call a tool.

    `run(**arguments)` gives something to await, or, when `is_streaming`, an async generator. `in_thread` says that the
    work cannot be stopped after its start, `can_wait` that a deadline could ever be noticed. `defaults` are those of
    the arguments, in their JSON form, and `aliases` the names that the model sees where the parameters have others.
    """

    run: _ToolFunction
    schema: JSONSchema
    parse: Parse
    context_name: str | None
    defaults: JSONObject
    aliases: dict[str, str]
    is_streaming: bool
    in_thread: bool
    can_wait: bool


def make_call_plan(name: str, function: _ToolFunction, preset: JSONObject, schema: JSONSchema | None) -> CallPlan:
    """Work out how to call the `function` of the tool `name`; raises `ToolConfigError` for what cannot be a tool.

    A `schema` given by hand is what the model sees and what is checked; type hints, when all are there, then still
    convert. `preset` is passed at each call and hidden from the model.
    """
    if schema is None:
        signature = read_signature(function, preset)
    else:
        signature = _signature_by_schema(name, function, preset, schema)
    run, is_streaming, in_thread = _choose_runner(function)
    return CallPlan(
        run=partial(run, **preset) if preset else run,
        schema=signature.schema,
        parse=signature.parse,
        context_name=signature.context_name,
        defaults=signature.defaults,
        aliases=signature.aliases,
        is_streaming=is_streaming,
        in_thread=in_thread,
        can_wait=_can_wait(function),
    )


def _signature_by_schema(name: str, function: _ToolFunction, preset: JSONObject, schema: Any) -> Signature:
    if not isinstance(schema, dict) or schema.get("type", "object") != "object":
        remedy = ": write its model_json_schema()" if hasattr(schema, "model_json_schema") else ""
        raise ToolConfigError(
            f'the schema of {name} must be a JSON schema of an object, e.g. {{"type": "object", "properties": {{}}}}, '
            f"not {schema!r:.500}{remedy}"
        )
    convert: Parse | None = None
    aliases: dict[str, str] = {}
    context_name = context_parameter(function, preset)
    with suppress(ToolConfigError):  # the schema was given because the signature says too little
        typed = read_signature(function, preset, has_schema=True)
        convert, aliases = typed.parse, typed.aliases
    hidden = frozenset(preset) | ({context_name} if context_name else set())
    visible: JSONSchema = schema
    try:
        if hidden:
            Validator(schema)  # the whole schema first, so that the pointers in an error are those of the user
            properties = {name: part for name, part in schema.get("properties", {}).items() if name not in hidden}
            visible = {**schema, "properties": properties}
            if "required" in schema:
                visible["required"] = [name for name in schema["required"] if name not in hidden]
        parse = parser_by_schema(visible, hidden, convert)
    except SchemaError as error:
        raise ToolConfigError(f"the schema of {name} cannot be used: {error}") from error
    # Where the function has no default, that of the schema counts: whatever does the work, say a server, fills it in.
    parts = visible.get("properties", {}).items()
    defaults = {name: part["default"] for name, part in parts if isinstance(part, dict) and "default" in part}
    return Signature(visible, parse, context_name, defaults | defaults_of(function, hidden), aliases)


def _choose_runner(function: _ToolFunction) -> tuple[_ToolFunction, bool, bool]:
    """Return what to call, whether it streams, and whether it works in a thread."""
    direct = underlying(function)
    if inspect.iscoroutinefunction(direct):
        return function, False, False
    if inspect.isasyncgenfunction(direct):
        return function, True, False
    # A decorator that is a plain function returns what the function that it wraps returns, so that one decides.
    plain = inspect.unwrap(direct)
    if inspect.isasyncgenfunction(plain):  # under a decorator that is a plain function
        return function, True, False
    if inspect.iscoroutinefunction(plain):

        async def run_in_task(**arguments: object) -> object:
            value = function(**arguments)
            return await value if inspect.isawaitable(value) else value

        return run_in_task, False, False
    if inspect.isgeneratorfunction(plain):
        return lambda **arguments: step_in_thread(function(**arguments)), True, True

    async def run_in_thread(**arguments: object) -> object:
        # In a list, since trio refuses a coroutine as the result of a thread.
        value = (await call_in_thread(lambda: [function(**arguments)]))[0]
        return await value if inspect.isawaitable(value) else value

    return run_in_thread, False, True


def _can_wait(function: _ToolFunction) -> bool:
    """Say whether a call could ever be suspended: an async function without `await` runs through in one go."""
    direct = underlying(function)
    code = getattr(direct, "__code__", None)
    is_async = inspect.iscoroutinefunction(direct) or inspect.isasyncgenfunction(direct)
    if not (is_async and inspect.iscode(code)):
        return True
    # Every `await` compiles to a SEND, and opcodes are at even offsets. Where Python has no such opcode, assume a wait.
    return "SEND" not in opmap or opmap["SEND"] in code.co_code[::2]


async def step_in_thread(items: Generator[object]) -> AsyncGenerator[object, None]:
    """Yield what a plain generator yields, each step of it in a worker thread."""
    try:
        while (item := await call_in_thread(next, items, _EXHAUSTED)) is not _EXHAUSTED:
            yield item
    finally:
        # A generator that is still running does so in an abandoned thread, which drops it when it is done.
        if inspect.getgeneratorstate(items) == inspect.GEN_SUSPENDED:
            # Closed where its steps ran, since its clean-up may block; a cancellation does not prevent it.
            with fail_after(CLEANUP_SECONDS, shield=True):
                await call_in_thread(items.close)


def call_in_thread(function: Callable[..., _ToolOutput], *arguments: object) -> Awaitable[_ToolOutput]:
    # The limiter is the tools' own, so that those which hang do not take the threads that the program needs for files.
    try:
        limiter = _threads.get()
    except LookupError:
        limiter = CapacityLimiter(_MAX_THREADS)
        _threads.set(limiter)
    return to_thread.run_sync(function, *arguments, abandon_on_cancel=True, limiter=limiter)
