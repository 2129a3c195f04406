"""What every workload says and hears: the question, the answer, the tool; and what a run must have done."""

from collections.abc import AsyncIterator, Callable

import anyio.lowlevel

__all__ = [
    "ANSWER",
    "ARGUMENTS",
    "DELTAS",
    "PIECE",
    "QUESTION",
    "ROUNDS",
    "SUM",
    "SYSTEM_PROMPT",
    "Workload",
    "WrongRunError",
    "add",
    "add_later",
    "bare_steps",
    "expect",
    "explain",
    "make_functions",
]

ROUNDS = 10
DELTAS = 2_000

SYSTEM_PROMPT = "You are a helpful assistant."
QUESTION = "What is three and four?"
ANSWER = "Seven."
ARGUMENTS = '{"a": 3, "b": 4}'
SUM = "7"
PIECE = "word "


class Workload:
    """One iteration when called.

    It raises `WrongRunError` when the run did not give the text, or the number of deltas, that the script says. What
    the models say repeats in a cycle, so one call too many or too few shows in the text.
    """

    max_iterations = 1_000
    """The most iterations between two calls of `prepare`."""

    async def prepare(self) -> None:
        """Put everything back where it was, before a batch and outside of what is measured."""

    async def __call__(self) -> None:
        """Run one iteration."""
        raise NotImplementedError

    def check(self) -> None:
        """Look closely at what the last iteration left, outside of what is measured."""


class WrongRunError(AssertionError):
    """A run did something else than its script says, so its time means nothing."""


async def add(a: int, b: int) -> str:
    """Add two numbers."""
    return str(a + b)


async def add_later(a: int, b: int) -> str:
    """Add two numbers."""
    await anyio.lowlevel.checkpoint()
    return str(a + b)


add_later.__name__ = "add"  # the script asks for it under this name


async def explain(query: str) -> str:
    """Explain something."""
    return ANSWER


def make_functions(count: int = 10) -> list[Callable[..., str]]:
    """Return functions that no runtime has seen before, with arguments of plain types and a docstring each."""
    return [_make_function(number) for number in range(count)]


def _make_function(number: int) -> Callable[..., str]:
    def convert(length: float, count: int, unit: str = "m", exact: bool = False) -> str:
        """Convert lengths.

        Args:
            length: The length of one part.
            count: The number of parts.
            unit: The unit of the length.
            exact: Whether to give all digits.
        """
        total = length * count
        return f"{total if exact else round(total)} {unit}"

    convert.__name__ = f"convert_{number}"
    return convert


def expect(actual: object, expected: object) -> None:
    """Raise `WrongRunError` unless the two are equal."""
    if actual != expected:
        raise WrongRunError(f"the run gave {actual!r:.200}, but its script says {expected!r:.200}")


async def bare_steps(count: int) -> None:
    """Take `count` steps of the plainest `async for`: the unit in which the floor can be judged on any machine."""
    async for _ in _numbers(count):
        pass


async def _numbers(count: int) -> AsyncIterator[int]:
    for number in range(count):
        yield number
