"""Code mode: a tool that runs a program whose functions are other tools."""

import builtins
import json
import logging
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import partial
from keyword import iskeyword
from typing import Any, Literal, Self

from anyio import create_task_group
from anyio.lowlevel import checkpoint

from agentrt._runtime.block import TextBlock, ToolResultState
from agentrt._runtime.options import check_seconds, check_whole
from agentrt._runtime.text import first_error, repr_of
from agentrt.errors import ConfigError, ToolConfigError, ToolError
from agentrt.tool.base import ToolBase, check_tool
from agentrt.tool.code.monty import MontySandbox
from agentrt.tool.code.sandbox import CodeCall, CodeProgram, CodeResult, CodeSandbox
from agentrt.tool.code.stubs import CodeFunction, describe_functions
from agentrt.tool.context import ToolContext
from agentrt.tool.table import ToolTable
from agentrt.tool.to_response import failure
from agentrt.tool.toolkit import Toolkit, ToolLike
from agentrt.types import OpenQuestion, ToolResponse

_logger = logging.getLogger("agentrt")
_PROGRAM_RULES = """\
Run a Python program that calls the functions below. The result is the text that it prints, and the value of its last \
expression: print or return only what you need. Await each call; `await asyncio.gather(...)` makes several at once. A \
call that is denied or fails raises ToolError. The program has no files, no network and no packages; of the standard \
library it has asyncio, collections, datetime, itertools, json, math, random and re. Classes cannot inherit."""
_STARTED, _SEED = "started", "seed"
_TAKEN_NAMES = {*dir(builtins), "ToolError"}
# Of the output, so that the note fits beside what is kept.
_NOTE_SIZE = 200


class _Parked(BaseException):
    """Calls of the program ask, so that it ends here until they are answered; not for the program's own handlers."""

    def __init__(self, questions: list[OpenQuestion]) -> None:
        super().__init__()
        self.questions = questions


class CodeTool(ToolBase):
    """A tool that runs a program of the model, whose functions are the given tools.

    Each call of such a function is a tool call, see `ToolContext.call`: it is decided, shown, saved and asked about as
    a call of the model is. Where one asks, the program ends, and when the answer is there it is run again from its
    start, with the results that it has. So its clock stands still, its random numbers are the same, and a `sleep` takes
    no time.

    A program may make `max_calls` calls, and work for `max_seconds`, its waits for calls not counted, with `max_memory`
    bytes. The result is what it printed and the value of its last expression, with a note if that is more than
    `max_output` characters. A program that fails gives its traceback, and one that reaches a limit the name of that
    limit; calls that it made before stay made.

    `sandbox` is "monty", which needs the extra `code`, or a `CodeSandbox`. Raises `ToolConfigError` for a tool whose
    name is not a Python name, and for a `CodeTool`; tools of a `Toolset` that have such names are left out.
    """

    is_resumable = True
    # A handle in a program is text of the model; the value takes its place in the calls of the program.
    keeps_handles = True
    # Each of its calls has a limit of its own, and the program has `max_seconds`.
    timeout = None

    def __init__(
        self,
        tools: Sequence[ToolLike],
        *,
        name: str = "run_code",
        description: str | None = None,
        sandbox: CodeSandbox | Literal["monty"] = "monty",
        max_calls: int = 100,
        max_seconds: float = 10.0,
        max_memory: int = 64_000_000,
        max_output: int = 20_000,
    ) -> None:
        self.name = name
        self.inner_toolkit = Toolkit(tools)
        self._introduction = _PROGRAM_RULES if description is None else description
        self._functions: tuple[ToolTable, dict[str, CodeFunction], str] | None = None
        option = f"CodeTool({{}}=...) of {name!r:.100}"
        try:
            self.max_calls = check_whole(option.format("max_calls"), max_calls, most=100_000)
            self.max_seconds = check_seconds(option.format("max_seconds"), max_seconds)
            self.max_memory = check_whole(option.format("max_memory"), max_memory, 1_000_000)
            self.max_output = check_whole(option.format("max_output"), max_output, 2 * _NOTE_SIZE)
        except ConfigError as error:
            raise ToolConfigError(str(error)) from None
        if sandbox == "monty":
            sandbox = MontySandbox()
        elif not callable(getattr(sandbox, "run", None)):
            raise ToolConfigError(f'CodeTool(sandbox=...) must be "monty" or a CodeSandbox, not {repr_of(sandbox)}')
        self.sandbox: CodeSandbox = sandbox
        for entry in self.inner_toolkit.table.entries.values():
            problem = self._problem_of(entry.tool)
            if problem is not None:
                raise ToolConfigError(f"CodeTool {name!r:.100} cannot have the tool {entry.tool.name!r}: {problem}")
        check_tool(self)

    @property
    def description(self) -> str:  # type: ignore[override]  # of tools that may change
        """The introduction, and a stub of each tool."""
        return self._described()[1]

    @property
    def is_read_only(self) -> bool:  # type: ignore[override]
        """Whether all of its tools are."""
        return all(tool.is_read_only for tool in self._tools())

    @property
    def is_concurrency_safe(self) -> bool:  # type: ignore[override]
        """Whether all of its tools are."""
        return all(tool.is_concurrency_safe for tool in self._tools())

    def bound_to(self, agent: Any) -> Self:
        """Return a copy with its tools as they are for that agent."""
        bindings = agent.live_conversation.bindings
        new = self.with_name(self.name)
        vars(new).update(inner_toolkit=self.inner_toolkit.bound_by(partial(bindings.tool, agent)), _functions=None)
        new.inner_toolkit.names()  # which binds its tools now, as those beside it are
        return new

    async def call(self, code: str, context: ToolContext) -> ToolResponse:
        """Run the program; enters it again from its start after its questions were answered."""
        toolkit: Toolkit = self.inner_toolkit
        toolkit.check_open()
        described = self.description
        await toolkit.refresh()
        functions, description = self._described()
        offering = getattr(context.agent, "toolkit", None)  # a custom agent may have none
        if description != described and isinstance(offering, Toolkit):
            offering.note_change()  # the next round offers this tool with the functions that it has now
        # Kept, since a fork of the conversation has another clock and another key, and is to take the same way.
        started = context.kept.setdefault(_STARTED, context.now())
        seed = context.kept.setdefault(_SEED, context.idempotency_key)
        program = CodeProgram(
            code,
            frozenset(functions),
            now=datetime.fromtimestamp(started / 1e9, UTC),
            seed=seed,
            max_calls=self.max_calls,
            max_seconds=self.max_seconds,
            max_memory=self.max_memory,
            max_output=self.max_output,
        )
        try:
            result = await self.sandbox.run(program, _Calls(functions, context).make)
        except _Parked as parked:
            return ToolResponse(waits=parked.questions)
        return self._response(result)

    def _response(self, result: CodeResult) -> ToolResponse:
        """Return the text of the result: the end of it, which says the most, is kept before what was printed."""
        room = self.max_output - _NOTE_SIZE
        if result.error is not None:
            ending = result.error
        elif result.value is None or isinstance(result.value, str):
            ending = result.value or ""
        else:
            try:
                ending = json.dumps(result.value, ensure_ascii=False)
            except (ValueError, RecursionError):  # an `int` of more digits than Python writes, or too many levels
                ending = f"(a value of the type {type(result.value).__name__} that is too large to show)"
        kept_ending, left_out = ending[:room], max(len(ending) - room, 0)
        printed = result.printed[: room - len(kept_ending)]
        left_out += result.left_out + len(result.printed) - len(printed)
        note = f"[cut: {left_out:,} characters are left out, since CodeTool(max_output={self.max_output})]"
        parts = [printed.removesuffix("\n"), note if left_out else "", kept_ending]
        text = "\n".join(part for part in parts if part)
        if result.error is not None:
            return failure(text)
        return ToolResponse([TextBlock(text or "The program printed nothing, and its last line has no value.")])

    def _tools(self) -> list[ToolBase]:
        """Return the tools that a program may call."""
        entries = self.inner_toolkit.table.entries.values()
        return [entry.tool for entry in entries if self._problem_of(entry.tool) is None and not entry.tool.is_hidden]

    def _problem_of(self, tool: ToolBase) -> str | None:
        """Say why a program cannot call the tool, `None` if it can."""
        if isinstance(tool, CodeTool):
            return "a program cannot run programs; give their tools to this one"
        if not tool.name.isidentifier() or iskeyword(tool.name):
            return "its name is not a Python name; write FunctionTool(function, name=...)"
        if tool.name in _TAKEN_NAMES or tool.name == self.name:
            return "its name has another meaning in a program; write FunctionTool(function, name=...)"
        return None

    def _described(self) -> tuple[dict[str, CodeFunction], str]:
        table = self.inner_toolkit.table
        if self._functions is None or self._functions[0] is not table:
            for entry in table.entries.values():
                problem = self._problem_of(entry.tool)
                if problem is not None:  # of a toolset, whose names are not the user's
                    _logger.warning("%s leaves out the tool %r: %s", self.name, entry.tool.name, problem)
            functions, stubs = describe_functions(self._tools())
            self._functions = table, functions, f"{self._introduction}\n\n{stubs}"
        return self._functions[1:]


class _Calls:
    """The calls of one run of a program, numbered in the order in which they are made."""

    def __init__(self, functions: dict[str, CodeFunction], context: ToolContext) -> None:
        self._functions = functions
        self._context = context
        self._number = 0

    async def make(self, calls: Sequence[CodeCall]) -> list[Any]:
        """Make the calls, and return their values; raises `_Parked` with all questions of those that ask."""
        answers: list[Any] = [None] * len(calls)
        questions: list[Sequence[OpenQuestion]] = [()] * len(calls)

        async def make_one(place: int, call: CodeCall, call_id: str) -> None:
            function = self._functions[call.name]
            try:
                arguments = function.arguments_of(call)
            except ToolError as error:
                answers[place] = error
                return
            response = await self._context.call(call.name, arguments, id=call_id)
            questions[place] = response.waits
            succeeded = response.state is ToolResultState.SUCCESS
            answers[place] = function.value_of(response.text) if succeeded else ToolError(response.text)

        try:
            async with create_task_group() as group:
                for place, call in enumerate(calls):
                    group.start_soon(make_one, place, call, str(self._number + place + 1))
                    await checkpoint()  # trio starts tasks in any order, and calls are decided as they come
        except BaseExceptionGroup as errors:
            # An error that must leave the reply, such as the request to end it, is known by its type.
            raise first_error(errors) from None
        self._number += len(calls)
        if any(questions):
            raise _Parked([question for of_call in questions for question in of_call])
        return answers
