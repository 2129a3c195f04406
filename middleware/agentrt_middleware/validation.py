"""What the options of several middlewares have in common: checking them, and waiting longer each time."""

from collections.abc import Callable, Sequence
from random import Random
from typing import Any

from agentrt.errors import CircuitOpen, MiddlewareConfigError, RateLimitTimeout

__all__ = ["Backoff", "ErrorChoice", "check_number", "choose_errors", "retry_after_of"]

ErrorChoice = type[Exception] | Sequence[type[Exception]] | Callable[[Exception], bool]

_LONGEST_PAUSE = 86_400.0  # seconds; a provider that asks for more means a day's quota, or is mistaken
_OUR_OWN = (CircuitOpen, RateLimitTimeout)


def check_number(option: str, value: Any, *, least: float | None = None, whole: bool = False) -> None:
    """Raise `MiddlewareConfigError` for what is no number of at least `least`, or above 0 where there is no least."""
    kinds = int if whole else (int, float)
    is_number = isinstance(value, kinds) and not isinstance(value, bool)
    if not is_number or not (value > 0 if least is None else value >= least):
        wanted = "above 0" if least is None else f"of at least {least:g}"
        raise MiddlewareConfigError(f"{option} is a {'whole ' if whole else ''}number {wanted}, not {value!r:.200}")


def choose_errors(option: str, chosen: ErrorChoice, *, our_own: bool) -> Callable[[Exception], bool]:
    """Return a function that says whether an error is one of those chosen, by their classes or by a function.

    With `our_own=False`, classes do not cover the refusals of our own layers, `CircuitOpen` and `RateLimitTimeout`,
    unless they are named themselves: they are made to fail fast.
    """
    if not isinstance(chosen, type) and callable(chosen):
        return chosen
    classes = tuple(chosen) if isinstance(chosen, (list, tuple)) else (chosen,)
    if not classes or not all(isinstance(each, type) and issubclass(each, Exception) for each in classes):
        raise MiddlewareConfigError(
            f"{option} is a class of errors, several of them, or a function of an error, not {chosen!r:.200}"
        )
    named = tuple(each for each in classes if issubclass(each, _OUR_OWN))
    left_out = () if our_own else _OUR_OWN

    def is_chosen(error: Exception) -> bool:
        return isinstance(error, named if isinstance(error, left_out) else classes)

    return is_chosen


def retry_after_of(error: BaseException) -> float | None:
    """Return after how many seconds the provider asks to be called again: a day at most, `None` if it does not say.

    Any error may have the attribute, and a custom model may have put anything there.
    """
    seconds = getattr(error, "retry_after", None)
    if not isinstance(seconds, (int, float)) or isinstance(seconds, bool) or not seconds >= 0:
        return None
    return min(seconds, _LONGEST_PAUSE)


class Backoff:
    """How long to wait before the next attempt, in seconds: any time up to a limit that doubles each time.

    Spread over the whole time ("full jitter"), those who failed together do not come back together.
    """

    __slots__ = ("_initial_delay", "_max_delay", "_random")

    def __init__(self, owner: str, initial_delay: float, max_delay: float, random: Random | None) -> None:
        check_number(f"{owner}(initial_delay=...)", initial_delay, least=0)
        check_number(f"{owner}(max_delay=...)", max_delay, least=0)
        self._initial_delay = initial_delay
        self._max_delay = max_delay
        self._random = random or Random()

    def after(self, failures: int, told: float | None = None) -> float:
        """Return the wait after so many failures; never less than what the other side told us to wait."""
        if told is not None and told > 0:
            return told + self._random.uniform(0.0, self._initial_delay)
        return self._random.uniform(0.0, min(self._max_delay, self._initial_delay * 2.0 ** min(failures - 1, 64)))
