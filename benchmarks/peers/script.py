"""What every peer is asked to do: the same words, tools and numbers, and what a run must have given."""

from collections.abc import Awaitable, Callable, Sequence
from types import FunctionType

__all__ = [
    "ANSWER",
    "ARGUMENTS",
    "CONCURRENT_RUNS",
    "DELTAS",
    "DEPTHS",
    "HELD",
    "MODEL_SECONDS",
    "PIECE",
    "QUESTION",
    "ROUNDS",
    "SYSTEM_PROMPT",
    "TRACED_RUNS",
    "Tool",
    "WrongRunError",
    "add",
    "call_ids",
    "expect",
    "expected_results",
    "make_functions",
]

SYSTEM_PROMPT = "You are a helpful assistant."
QUESTION = "What is three and four?"
ANSWER = "Seven."
ARGUMENTS = '{"a": 3, "b": 4}'
SUM = "7"
PIECE = "word "

ROUNDS = 10
DELTAS = 2_000
DEPTHS = (0, 1, 5, 10)
HELD = (0, 500, 2_000)
CONCURRENT_RUNS = 1_000
TRACED_RUNS = 100  # of which the memory is traced, which is slow
MODEL_SECONDS = 0.05  # what each model call of the concurrent runs takes
TOOLS = 10  # of the agent that is constructed, and as many layers

Tool = Callable[[int, int], Awaitable[str]]


class WrongRunError(AssertionError):
    """A run did something else than the script says, so its time means nothing."""


async def add(a: int, b: int) -> str:
    """Add two numbers."""
    return str(a + b)


def make_functions(count: int = TOOLS) -> list[Tool]:
    """Return tools that nobody has seen before, so that nothing kept from an earlier agent helps the next."""
    return [_copy_of_add(f"add_{number}" if number else "add") for number in range(count)]


def _copy_of_add(name: str) -> Tool:
    function = FunctionType(add.__code__, globals(), name)
    function.__annotations__ = dict(add.__annotations__)
    function.__doc__ = add.__doc__
    function.__module__ = add.__module__
    function.__qualname__ = name
    return function


def call_ids(rounds: int) -> list[str]:
    return [f"call-{number}" for number in range(rounds)]


def expected_results(rounds: int) -> list[tuple[str, str]]:
    """Return id and text of each tool result that the model must see in its last request."""
    return [(call_id, SUM) for call_id in call_ids(rounds)]


def expect(actual: object, expected: object) -> None:
    """Raise `WrongRunError` unless the two are equal."""
    if actual != expected:
        raise WrongRunError(f"the run gave {_shorten(actual)}, but its script says {_shorten(expected)}")


def _shorten(value: object) -> str:
    text = repr(value)
    if isinstance(value, Sequence) and len(text) > 120:
        return f"{text[:120]}... ({len(value)} items)"
    return text
