"""What is worked out once about a tool, so that no call has to."""

import inspect
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from opcode import opmap
from typing import Any, TypeVar

from anyio import CapacityLimiter, fail_after, to_thread
from anyio.lowlevel import RunVar

from agentrt.errors import ToolConfigError
from agentrt.tool.arguments import Parse, by_schema
from agentrt.tool.json_schema.compiler import CompiledSchema, SchemaError
from agentrt.tool.signature import Signature, context_parameter, defaults_of, read_signature, underlying
from agentrt.types import JSONSchema

__all__ = ["CLEANUP_SECONDS", "CallPlan", "make_call_plan", "step_in_thread"]

CLEANUP_SECONDS = 5.0
"""How long a tool may clean up when it is stopped."""

_MAX_THREADS = 40
_END = object()
_T = TypeVar("_T")
_threads: RunVar[CapacityLimiter] = RunVar("agentrt_tool_threads")


@dataclass(slots=True)
class CallPlan:
    """How to call a tool.

    `run(**arguments)` gives something to await, or, when `is_streaming`, an async generator. `in_thread` says that the
    work cannot be stopped once begun, `can_wait` that a deadline could ever be noticed. `defaults` are those of the
    arguments, in their JSON form, and `aliases` the names that the model sees where the parameters have others.
    """

    run: Callable[..., Any]
    schema: JSONSchema
    parse: Parse
    context_name: str | None
    defaults: dict[str, Any]
    aliases: dict[str, str]
    is_streaming: bool
    in_thread: bool
    can_wait: bool


def make_call_plan(
    name: str, function: Callable[..., Any], preset: dict[str, Any], schema: JSONSchema | None
) -> CallPlan:
    """Work out how to call the `function` of the tool `name`; raises `ToolConfigError` for what cannot be a tool.

    A `schema` given by hand is what the model sees and what is checked; type hints, when all are there, then still
    convert. `preset` is passed at each call and hidden from the model.
    """
    if schema is None:
        signature = read_signature(function, preset)
    else:
        _check_schema(name, schema)
        signature = _by_hand(name, function, preset, schema)
    run, is_streaming, in_thread = _runner(function)
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


def _check_schema(name: str, schema: Any) -> None:
    """Raise `ToolConfigError` for what is not a JSON schema of an object."""
    if not isinstance(schema, dict) or schema.get("type", "object") != "object":
        raise ToolConfigError(
            f'the schema of {name} must be a JSON schema of an object, e.g. {{"type": "object", "properties": {{}}}}, '
            f"not {schema!r:.500}"
        )


def _by_hand(name: str, function: Any, preset: dict[str, Any], schema: JSONSchema) -> Signature:
    convert: Parse | None = None
    aliases: dict[str, str] = {}
    context_name = context_parameter(function, preset)
    with suppress(ToolConfigError):  # the schema was given because the signature says too little
        typed = read_signature(function, preset, by_hand=True)
        convert, aliases = typed.parse, typed.aliases
    hidden = frozenset(preset) | ({context_name} if context_name else set())
    try:
        if hidden:
            CompiledSchema(schema)  # before anything is taken out of it
        visible = _without(schema, hidden)
        parse = by_schema(visible, hidden, convert)
    except SchemaError as error:
        raise ToolConfigError(f"the schema of {name} cannot be used: {error}") from error
    # Where the function has none, whoever does the work fills in what the schema says: a server, or somebody outside.
    defaults = _defaults_in(visible) | defaults_of(function, hidden)
    return Signature(visible, parse, context_name, defaults, aliases)


def _defaults_in(schema: JSONSchema) -> dict[str, Any]:
    parts = schema.get("properties", {}).items()
    return {name: part["default"] for name, part in parts if isinstance(part, dict) and "default" in part}


def _without(schema: JSONSchema, hidden: frozenset[str]) -> JSONSchema:
    if not hidden:
        return schema
    properties = {name: each for name, each in schema.get("properties", {}).items() if name not in hidden}
    visible = {**schema, "properties": properties}
    if "required" in schema:
        visible["required"] = [name for name in schema["required"] if name not in hidden]
    return visible


def _runner(function: Any) -> tuple[Callable[..., Any], bool, bool]:
    """Return what to call, whether it streams, and whether it works in a thread."""
    direct = underlying(function)
    if inspect.iscoroutinefunction(direct):
        return function, False, False
    if inspect.isasyncgenfunction(direct):
        return function, True, False
    plain = inspect.unwrap(direct)
    if inspect.isasyncgenfunction(plain):  # under a decorator that is a plain function
        return function, True, False
    if inspect.iscoroutinefunction(plain):
        return partial(_awaited, function), False, False
    if inspect.isgeneratorfunction(plain):
        return partial(_step_by_step, function), True, True
    return partial(_threaded, function), False, True


def _can_wait(function: Any) -> bool:
    """Say whether a call could ever be suspended: an async function without `await` runs through in one go."""
    direct = underlying(function)
    is_async = inspect.iscoroutinefunction(direct) or inspect.isasyncgenfunction(direct)
    if not (is_async and inspect.iscode(getattr(direct, "__code__", None))):
        return True
    return "SEND" not in opmap or opmap["SEND"] in direct.__code__.co_code[::2]


async def _awaited(function: Callable[..., Any], /, **arguments: Any) -> Any:
    value = function(**arguments)
    return await value if inspect.isawaitable(value) else value


async def _threaded(function: Callable[..., Any], /, **arguments: Any) -> Any:
    # In a box, for trio does not let a coroutine out of a thread.
    value = (await _in_thread(lambda: [function(**arguments)]))[0]
    return await value if inspect.isawaitable(value) else value


def _step_by_step(function: Callable[..., Generator[Any]], /, **arguments: Any) -> AsyncGenerator[Any, None]:
    return step_in_thread(function(**arguments))


async def step_in_thread(items: Generator[Any]) -> AsyncGenerator[Any, None]:
    """Yield what a plain generator yields, each step of it in a worker thread."""
    try:
        while (item := await _in_thread(next, items, _END)) is not _END:
            yield item
    finally:
        # One that still runs does so in a thread that was left to itself, which lets go of it.
        if inspect.getgeneratorstate(items) == inspect.GEN_SUSPENDED:
            await _close_in_thread(items)


async def _close_in_thread(items: Generator[Any]) -> None:
    """Clean up a plain generator where its steps ran, since that may wait; a cancellation does not prevent it."""
    with fail_after(CLEANUP_SECONDS, shield=True):
        await _in_thread(items.close)


def _in_thread(function: Callable[..., _T], *arguments: Any) -> Awaitable[_T]:
    return to_thread.run_sync(function, *arguments, abandon_on_cancel=True, limiter=_limiter())


def _limiter() -> CapacityLimiter:
    # Of its own, so that tools which hang do not take the threads that the program needs for its files.
    try:
        return _threads.get()
    except LookupError:
        limiter = CapacityLimiter(_MAX_THREADS)
        _threads.set(limiter)
        return limiter
