"""The sandbox that `CodeTool` uses unless it is given another: Monty, an interpreter of Python without a host."""

import os
import re
import signal
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from threading import Lock
from typing import Any

from anyio import move_on_after
from pydantic_core import to_jsonable_python

from agentrt._runtime.options import import_extra
from agentrt.errors import ToolError
from agentrt.tool.code.sandbox import CallTools, CodeCall, CodeProgram, CodeResult, limit_error
from agentrt.tool.invocation import CLEANUP_SECONDS, call_in_thread

# Beside its calls, a program may ask for files, the environment and names that do not exist, and is refused.
_FREE_REQUESTS = 1_000
_FILE_IN_TRACEBACK = re.compile(r'File "<python-input-\d+>", ')
# Monty has no classes that inherit, so no exception of ours: this one is raised by it for nothing else of use.
_DECLARE_TOOL_ERROR = "ToolError = RuntimeError"


class MontySandbox:
    """Runs each program in a process of its own, whose interpreter has no files, no network and no environment."""

    def __init__(self) -> None:
        _import_monty()  # so that a missing extra is an error where the tool is made

    async def run(self, program: CodeProgram, call_tools: CallTools) -> CodeResult:
        """Run the program to its end; whatever ends this call ends the process."""
        worker = Worker(_import_monty(), program)
        try:
            await call_in_thread(worker.open)
            step = await call_in_thread(worker.start)
            while not isinstance(step, CodeResult):
                step = await call_in_thread(worker.resume, await call_tools(step))
            return step
        finally:
            worker.stop()
            with move_on_after(CLEANUP_SECONDS, shield=True):
                await call_in_thread(worker.close)


class Worker:
    """A process, and the program in it; its methods block, and are called in threads, one at a time."""

    def __init__(self, monty: Any, program: CodeProgram) -> None:
        self._monty = monty
        self._program = program
        self._lock = Lock()
        self._is_stopped = False
        self._stack = ExitStack()
        self._session: Any = None
        self._process_id: int | None = None
        self._snapshot: Any = None
        self._calls: dict[int, CodeCall] = {}
        self._calls_made = 0
        self._tool_errors: set[str] = set()
        self._printed: list[str] = []
        self._room = program.max_output
        self._left_out = 0

    def open(self) -> None:
        """Start the process, of which no other program was or will be run."""
        program = self._program
        with self._lock:
            pool = self._stack.enter_context(self._monty.Monty(min_processes=0, max_checkouts_per_worker=1))
            self._session = self._stack.enter_context(
                pool.checkout(
                    limits={
                        "max_feed_duration_secs": program.max_seconds,
                        "max_memory": program.max_memory,
                        # A call takes up to three: to look its name up, to make it, and to wait for it.
                        "max_suspensions": _FREE_REQUESTS + 3 * program.max_calls,
                    },
                    # It sees no host: the program is run again at each entry, and must take the same way.
                    os_policy={"datetime": program.now, "random_start": {"seed": program.seed}, "sleep": "zero"},
                )
            )
            self._process_id = self._session.worker_pid
            self._session.feed_run(_DECLARE_TOOL_ERROR)

    def start(self) -> list[CodeCall] | CodeResult:
        """Run the program up to the calls that it waits for, or to its end."""
        return self._run(lambda: self._session.feed_start(self._program.code, print_callback=self._keep_printed))

    def resume(self, answers: Sequence[Any]) -> list[CodeCall] | CodeResult:
        """Give the program the answers to the calls that it waited for, all at once, and run it on."""
        self._calls_made += len(answers)
        self._tool_errors.update(str(answer) for answer in answers if isinstance(answer, ToolError))
        results = {
            call_id: {"exception": RuntimeError(str(answer))}
            if isinstance(answer, ToolError)
            else {"return_value": answer}
            for call_id, answer in zip(_pending_ids(self._snapshot), answers, strict=True)
        }
        return self._run(lambda: self._snapshot.resume(results))

    def stop(self) -> None:
        """Stop a program that still runs, because its reply was cancelled; this one does not block."""
        # Nothing but the end of its process stops a program that computes, and closing would wait for its own limit.
        # While a step holds the lock, the process is a child that nobody has waited for, so the id is still its own.
        self._is_stopped = True  # for a step whose thread has not started
        if self._lock.locked() and self._process_id is not None:
            with suppress(ProcessLookupError):
                os.kill(self._process_id, signal.SIGTERM)

    def close(self) -> None:
        """End the process, in which no program runs by now."""
        with self._lock:
            self._stack.close()

    def _run(self, advance: Callable[[], Any]) -> list[CodeCall] | CodeResult:
        monty = self._monty
        with self._lock:
            if self._is_stopped:
                return self._result()  # which nobody awaits any more
            try:
                snapshot = advance()
                while isinstance(snapshot, (monty.FunctionSnapshot, monty.NameLookupSnapshot)):
                    snapshot = self._answer(snapshot)
                if isinstance(snapshot, monty.FutureSnapshot):
                    self._snapshot = snapshot
                    return [self._calls[call_id] for call_id in _pending_ids(snapshot)]
                return snapshot if isinstance(snapshot, CodeResult) else self._end_of(snapshot)
            except monty.MontyError as error:
                return self._result(error=self._describe(error))

    def _answer(self, snapshot: Any) -> Any:
        """Answer a request of the program that takes no tool; a call is noted here, and made when it is waited for.

        Returns the next request, or the result for a call beyond the limit.
        """
        monty, functions = self._monty, self._program.functions
        if isinstance(snapshot, monty.NameLookupSnapshot):
            name = snapshot.variable_name
            return snapshot.resume(value=_function_called(name)) if name in functions else snapshot.resume()
        if snapshot.is_os_function:
            return snapshot.resume_not_handled()
        name = snapshot.function_name
        if name not in functions:
            return snapshot.resume({"exception": NameError(f"name {name!r} is not defined")})
        try:
            args = tuple(_jsonable(monty, value) for value in snapshot.args)
            kwargs = {key: _jsonable(monty, value) for key, value in snapshot.kwargs.items()}
        except (TypeError, ValueError, RecursionError):
            problem = f"an argument of {name}() is not made of str, int, float, bool, None, list and dict"
            return snapshot.resume({"exception": TypeError(problem)})
        limit = self._program.max_calls
        if len(self._calls) == limit:
            more = "" if self._calls_made == limit else ", with more to make than are allowed"
            return self._result(
                error=limit_error(f"after {_number_of(self._calls_made, 'call')}{more}", f"max_calls={limit}")
            )
        self._calls[snapshot.call_id] = CodeCall(name, args, kwargs)
        return snapshot.resume({"future": ...})

    def _end_of(self, snapshot: Any) -> CodeResult:
        try:
            value = _jsonable(self._monty, snapshot.output, strict=False)
        except (TypeError, ValueError, RecursionError):  # bytes that are not text, or too deeply nested lists
            value = "(the value of the last expression has no JSON form)"
        unmade = list(self._calls.values())[self._calls_made :]
        for name in dict.fromkeys(call.name for call in unmade):  # Python warns as well, and a model forgets it
            self._keep_printed("", f"RuntimeWarning: {name}() was not awaited, and so not called\n")
        return self._result(value)

    def _keep_printed(self, _: str, text: str) -> None:
        kept = text[: self._room]
        self._room -= len(kept)
        self._left_out += len(text) - len(kept)
        if kept:
            self._printed.append(kept)

    def _result(self, value: Any = None, error: str | None = None) -> CodeResult:
        return CodeResult("".join(self._printed), value, error, self._left_out)

    def _describe(self, error: Any) -> str:
        """Return the words for an error of the program: the limit that it reached, or its traceback."""
        program, text = self._program, str(error)
        if isinstance(error, self._monty.MontyCrashedError):
            if error.timed_out:
                return limit_error(
                    f"after {_number_of(program.max_seconds, 'second')}", f"max_seconds={program.max_seconds:g}"
                )
            return "stopped: the sandbox failed. Calls that the program made before stay made."
        kind = type(error.exception())
        if kind is TimeoutError and "time limit exceeded" in text:
            return limit_error(
                f"after {_number_of(program.max_seconds, 'second')}", f"max_seconds={program.max_seconds:g}"
            )
        if kind is MemoryError and "memory limit" in text:
            return limit_error(f"at {program.max_memory:,} bytes of memory", f"max_memory={program.max_memory}")
        if kind is RuntimeError and "suspension limit" in text:
            return (
                f"stopped after {_FREE_REQUESTS:,} attempts to use files, the environment or names that do not exist. "
                f"Calls that it made before stay made."
            )
        traceback = _FILE_IN_TRACEBACK.sub("", error.display("traceback"))
        message = error.display("msg")
        if kind is RuntimeError and message in self._tool_errors:
            return f"{traceback.removesuffix(f'RuntimeError: {message}')}ToolError: {message}"
        return traceback


def _import_monty() -> Any:
    return import_extra("CodeTool", "code", "pydantic_monty")


def _number_of(number: float, thing: str) -> str:
    return f"{number:,g} {thing}{'' if number == 1 else 's'}"


def _pending_ids(snapshot: Any) -> list[int]:
    # Monty gives them in any order, and a second run must make the same calls in the same order.
    return sorted(snapshot.pending_call_ids)


def _function_called(name: str) -> Callable[[], None]:
    """Return a function of that name, which stands for the tool where a program passes it on as a value."""

    def function() -> None: ...

    function.__name__ = function.__qualname__ = name
    return function


def _jsonable(monty: Any, value: Any, *, strict: bool = True) -> Any:
    """Return a value of the program as JSON; unless `strict`, what has no such form as text."""

    def replace(part: Any) -> Any:
        if isinstance(part, monty.MontyClassProxy):
            return part.attributes
        if strict:
            raise TypeError(f"{type(part).__name__} has no JSON form")
        return repr(part)

    return to_jsonable_python(value, fallback=replace)
