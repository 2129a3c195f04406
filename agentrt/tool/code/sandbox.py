"""Where a program of the model runs: what a sandbox is given, and what it returns."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class CodeProgram:
    """A program to run from its start, and its limits.

    `functions` are the names that it may call; each is async, and raises an exception called `ToolError`. `now` and
    `seed` are all that it learns of the time and of chance, so that it takes the same way each time it runs.
    `max_seconds` are those in which it works itself, without its waits for calls; `max_memory` is in bytes,
    `max_output` the characters to keep of what it prints.
    """

    code: str
    functions: frozenset[str]
    now: datetime
    seed: str
    max_calls: int
    max_seconds: float
    max_memory: int
    max_output: int


@dataclass(frozen=True, slots=True)
class CodeCall:
    """A call of a function, with its arguments as JSON values."""

    name: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


@dataclass(frozen=True, slots=True)
class CodeResult:
    """The end of a program: its printed text, and the value of its last expression as JSON, or its error.

    `left_out` is the number of printed characters that were not kept. The `error` is for the model: the traceback of
    the program, or the limit that stopped it.
    """

    printed: str = ""
    value: Any = None
    error: str | None = None
    left_out: int = 0


CallTools = Callable[[Sequence[CodeCall]], Awaitable[Sequence[Any]]]


class CodeSandbox(Protocol):
    """Runs programs that nobody has read; an implementation may be shared by many tools and conversations."""

    async def run(self, program: CodeProgram, call_tools: CallTools) -> CodeResult:
        """Run the program to its end.

        `call_tools` makes calls that the program waits for together, in the order in which it made them, and returns
        a JSON value for each, or a `ToolError` to raise in the program. Any exception that it raises ends the program
        and leaves `run` unchanged, as a cancellation does.
        """


def limit_error(reached: str, option: str) -> str:
    """Return the error of a program that reached a limit of its tool."""
    return f"stopped {reached}: CodeTool({option}). Calls that it made before stay made."
