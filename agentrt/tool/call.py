"""Running one tool call whose arguments have been checked."""

import asyncio
import logging
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Generator
from contextlib import suppress
from dataclasses import dataclass, field

from anyio import CancelScope, current_time, get_cancelled_exc_class, move_on_after
from pydantic_core import to_jsonable_python

from agentrt._runtime.block import ToolCallBlock, ToolResultState
from agentrt.errors import ToolError
from agentrt.tool.arguments import parse_arguments
from agentrt.tool.base import ToolBase
from agentrt.tool.context import ToolContext
from agentrt.tool.invocation import CLEANUP_SECONDS, CallPlan, step_in_thread
from agentrt.tool.stream_output import StreamOutput
from agentrt.tool.to_response import failure, failure_text, frames_for_log, to_response
from agentrt.types import JSONObject, ToolChunk, ToolResponse

_logger = logging.getLogger("agentrt")

_NO_MORE_OUTPUT = object()
_TIMED_OUT = object()
_WHOLE_RESULTS = (str, ToolResponse)
_CROSSED_SCOPES = (
    "it yielded inside a cancel scope or task group that it had opened (`move_on_after`, `create_task_group`, ...); "
    "close that before each `yield`, or collect the output and return it"
)

ToolResult = ToolChunk | ToolResponse
_StreamEnding = tuple[str, ToolResultState]
_SUCCESSFUL_ENDING: _StreamEnding = ("", ToolResultState.SUCCESS)


@dataclass(slots=True, repr=False, eq=False)
class PreparedCall:
    """A tool call that may be run: the tool is there, and its arguments fit.

    `name` and `input` are what was checked, even if `tool_call` is changed later. `written_input` is what the model
    wrote, where that has handles and `input` the values in their place.
    """

    tool: ToolBase
    plan: CallPlan
    tool_call: ToolCallBlock
    name: str
    input: str
    arguments: JSONObject
    _is_used: bool = field(default=False, init=False, repr=False)
    _written: str | None = field(default=None, init=False, repr=False)

    @property
    def is_streaming(self) -> bool:
        """Whether the output comes in pieces; if not, `respond` is the shorter way."""
        return self.plan.is_streaming

    def is_for(self, tool_call: ToolCallBlock) -> bool:
        """Say whether this is the very call that was checked."""
        return tool_call.input == self.written_input and tool_call.name == self.name

    @property
    def written_input(self) -> str:
        """The arguments as the model wrote them."""
        return self.input if self._written is None else self._written

    @written_input.setter
    def written_input(self, text: str) -> None:
        self._written = text

    @property
    def is_released(self) -> bool:
        """Whether values have taken the place of handles in the arguments."""
        return self._written is not None and self._written != self.input

    def effective_input(self) -> JSONObject:
        """Return the arguments that the tool will get, in their JSON form: converted, and with its defaults filled in.

        They have the names that the model sees. One that has no JSON form stands as the model wrote it.
        """
        effective = dict(self.plan.defaults)
        for name, value in self.arguments.items():
            # One by one, so that an argument without a JSON form does not take the others with it.
            try:
                effective[name] = to_jsonable_python(value)
            except ValueError:
                effective[name] = parse_arguments(self.input)[self.plan.aliases.get(name, name)]
        aliases = self.plan.aliases
        return {aliases.get(name, name): value for name, value in effective.items()} if aliases else effective

    def keywords(self, context: ToolContext | None) -> JSONObject:
        """Return what to call the tool with; each run has arguments of its own, which it may change."""
        # A second run, such as a retry, parses again: the first may have changed the arguments that it got.
        arguments = self.plan.parse(self.input) if self._is_used else self.arguments
        self._is_used = True
        name = self.plan.context_name
        if name is None:
            return arguments
        return {**arguments, name: context or ToolContext(self.tool_call)}


def run_call(prepared: PreparedCall, context: ToolContext | None = None) -> AsyncGenerator[ToolResult, None]:
    """Run the call: yields each piece of output as it comes, then one `ToolResponse` with all of it.

    The tool's deadline, its exceptions and its mistakes become results; cancellation always propagates. The tool's own
    generator is closed in the same task, before the `ToolResponse` is yielded or when this generator is closed.
    """
    return (
        _read_stream(_ToolStream(prepared, context))
        if prepared.plan.is_streaming
        else _respond_as_stream(prepared, context)
    )


async def _respond_as_stream(prepared: PreparedCall, context: ToolContext | None) -> AsyncGenerator[ToolResult, None]:
    result = await respond(prepared, context)
    if isinstance(result, ToolResponse):
        yield result
        return
    try:
        async for item in result:
            yield item
    finally:
        await result.aclose()


async def _read_stream(stream: "_ToolStream") -> AsyncGenerator[ToolResult, None]:
    try:
        while stream.ending is None:
            chunk = await stream.step()
            if chunk is not None:
                yield chunk
    finally:
        await stream.close()
    last = stream.output.end(*stream.ending)
    if last is not None:
        yield last
    yield stream.response()


async def respond(
    prepared: PreparedCall, context: ToolContext | None = None
) -> ToolResponse | AsyncGenerator[ToolResult, None]:
    """Run a call whose function has no `yield`: like `run_call`, with less work.

    If the function returns a generator, the stream of its output is returned, as `run_call` yields it.
    """
    tool, plan = prepared.tool, prepared.plan
    deadline = None
    value: object = _TIMED_OUT
    try:
        # A scope costs more than a quick tool does, and a tool that never waits would not notice it.
        if tool.timeout is None or not plan.can_wait:
            value = await plan.run(**prepared.keywords(context))
        else:
            deadline = current_time() + tool.timeout
            with CancelScope(deadline=deadline):  # it swallows only the cancellation that is its own
                value = await plan.run(**prepared.keywords(context))
    except (Exception, SystemExit) as error:  # noqa: BLE001  # the boundary where a tool's failure becomes a result
        return failure(*_failure_of(prepared, error))
    except get_cancelled_exc_class():
        if is_real_cancellation():
            raise
        return failure(_inner_cancellation(prepared))
    if value is _TIMED_OUT:
        return failure(*_timeout(prepared, plan.in_thread))
    # By class first: nearly every tool returns one of these, and `isinstance` asks an abstract class.
    if value.__class__ not in _WHOLE_RESULTS and isinstance(value, (AsyncGenerator, Generator)):
        return _read_stream(_ToolStream(prepared, context, value, deadline))
    try:
        return to_response(tool, value)
    except ToolError as error:
        return failure(str(error))


class _ToolStream:
    """A tool's generator while it runs; `ending` is set once there is no more to come.

    A function without a `yield` of its own has `returned` the generator; a plain generator works in a thread. There is
    one deadline for all steps, but its scope is entered for one step at a time: none is open across a `yield`.
    """

    __slots__ = (
        "_can_wait",
        "_context",
        "_crossed",
        "_deadline",
        "_in_thread",
        "_items",
        "_prepared",
        "ending",
        "output",
    )

    def __init__(
        self,
        prepared: PreparedCall,
        context: ToolContext | None,
        returned: AsyncGenerator[object, None] | Generator[object] | None = None,
        deadline: float | None = None,
    ) -> None:
        plan = prepared.plan
        self.output = StreamOutput(prepared.tool)
        self.ending: _StreamEnding | None = None
        self._prepared = prepared
        self._context = context
        self._deadline = deadline
        self._items: AsyncIterator[object] | None = None
        self._can_wait, self._in_thread = plan.can_wait, plan.in_thread
        if returned is not None:
            self._can_wait, self._in_thread = True, isinstance(returned, Generator)
            self._items = step_in_thread(returned) if isinstance(returned, Generator) else returned
        self._crossed: CancelScope | None = None

    async def step(self) -> ToolChunk | None:
        """Let the tool work until its next item; returns what to show of it, if anything."""
        try:
            item = await self._next()
        except (Exception, SystemExit) as error:  # noqa: BLE001  # the boundary where a tool's failure becomes a result
            self.ending = _failure_of(self._prepared, error)
            return None
        except get_cancelled_exc_class():
            if is_real_cancellation():
                raise
            self.ending = _inner_cancellation(self._prepared), ToolResultState.ERROR
            return None
        if item is _NO_MORE_OUTPUT or item is _TIMED_OUT:
            self.ending = _SUCCESSFUL_ENDING if item is _NO_MORE_OUTPUT else _timeout(self._prepared, self._in_thread)
            return None
        try:
            return self.output.add(item)
        except ToolError as error:
            self.ending = str(error), ToolResultState.ERROR
            return None

    async def _next(self) -> object:
        timeout = self._prepared.tool.timeout
        if self._deadline is None and timeout is not None:
            self._deadline = current_time() + timeout
        if self._items is None:
            self._items = self._prepared.plan.run(**self._prepared.keywords(self._context))
        if self._deadline is None:
            return await anext(self._items, _NO_MORE_OUTPUT)
        if current_time() >= self._deadline:  # a tool that never waits would never notice
            return _TIMED_OUT
        if not self._can_wait:
            return await anext(self._items, _NO_MORE_OUTPUT)
        return await self._next_in_time(self._items, self._deadline)

    async def _next_in_time(self, items: AsyncIterator[object], deadline: float) -> object:
        item = _TIMED_OUT
        scope = CancelScope(deadline=deadline)
        try:
            with scope:
                item = await anext(items, _NO_MORE_OUTPUT)
        except RuntimeError as error:
            if item is _TIMED_OUT:
                raise
            # The item came, but our scope could not be left: a scope of the tool is still open inside it.
            self._crossed = scope
            raise ToolError(_CROSSED_SCOPES) from error
        return item

    async def close(self) -> None:
        """Close the tool's generator; a clean-up that fails or hangs is only logged, since the output has been seen."""
        aclose = getattr(self._items, "aclose", None)
        if aclose is None or getattr(self._items, "ag_frame", aclose) is None:  # not started, or exhausted
            return
        try:
            if self._crossed is None:
                await self._close_in_time(aclose)
            else:
                await self._close_crossed(aclose, self._crossed)
        except BaseExceptionGroup as group:  # a task group in the tool wraps the GeneratorExit that closes it
            if group.split((Exception, GeneratorExit))[1] is not None:
                raise
            self._warn("failed")
        except Exception:  # noqa: BLE001  # as above
            self._warn("failed")

    async def _close_in_time(self, aclose: Callable[[], Awaitable[None]]) -> None:
        with move_on_after(CLEANUP_SECONDS) as scope:
            await aclose()
        if scope.cancelled_caught:
            self._warn(f"was stopped after {CLEANUP_SECONDS:g} seconds")

    async def _close_crossed(self, aclose: Callable[[], Awaitable[None]], scope: CancelScope) -> None:
        # The tool's scope closes first, and then ours can: after that the task's scopes are in order again.
        try:
            await aclose()
        finally:
            with suppress(RuntimeError):  # trio has already discarded ours
                scope.__exit__(None, None, None)

    def _warn(self, what: str) -> None:
        error = sys.exc_info()[1]
        frames = ""
        if isinstance(error, Exception):
            prepared = self._prepared
            frames = f":\n{frames_for_log(prepared.tool, error, is_released=prepared.is_released)}"
        _logger.warning("the clean-up of tool %r %s%s", self._prepared.name, what, frames)

    def response(self) -> ToolResponse:
        try:
            return self.output.response()
        except ToolError as error:
            return failure(str(error))


def is_real_cancellation() -> bool:
    """Say whether the call itself is being cancelled: on asyncio a tool may only have awaited a cancelled task."""
    try:
        task = asyncio.current_task()
    except RuntimeError:  # on trio, where a tool cannot await a task
        return True
    return task is None or task.cancelling() > 0


def _inner_cancellation(prepared: PreparedCall) -> str:
    return f"{prepared.name} failed: something that it waited for was cancelled"


def _timeout(prepared: PreparedCall, in_thread: bool) -> _StreamEnding:
    reason = f"it took longer than {prepared.tool.timeout:g} seconds"
    if in_thread:
        text = f"{prepared.name} was abandoned: {reason}; its thread cannot be stopped, so it may still take effect"
        return text, ToolResultState.UNKNOWN
    return f"{prepared.name} was stopped: {reason}", ToolResultState.TIMEOUT


def _failure_of(prepared: PreparedCall, error: BaseException) -> _StreamEnding:
    if prepared.tool.raise_tool_errors:
        raise error
    return failure_text(prepared.tool, error, is_released=prepared.is_released), ToolResultState.ERROR
