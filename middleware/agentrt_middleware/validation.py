"""Shared checks of options of middlewares, and the backoff of retries."""

import inspect
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from functools import partial
from math import isfinite
from random import Random
from typing import Any

from agentrt._runtime.text import whole_characters
from agentrt.errors import BudgetExceeded, CircuitOpen, MiddlewareConfigError, RateLimitTimeout

ErrorChoice = type[Exception] | Sequence[type[Exception]] | Callable[[Exception], bool]

_MAX_RETRY_AFTER = 86_400.0  # seconds; a longer wait means a day's quota, or a mistake
_MAX_DOUBLINGS = 64  # more would overflow a float; nobody makes that many attempts
_OUR_REFUSALS = (CircuitOpen, RateLimitTimeout)


def check_number(
    option: str, value: object, *, least: float | None = None, whole: bool = False, finite: bool = False
) -> None:
    """Raise `MiddlewareConfigError` unless `value` is a number of at least `least`, or above 0 if that is `None`."""
    # `bool` is a subclass of `int`, but `True` is never a number here.
    is_number = isinstance(value, int if whole else (int, float)) and not isinstance(value, bool)
    # Written so that nan is refused: all its comparisons are false.
    if not is_number or not (value > 0 if least is None else value >= least):  # type: ignore[operator]  # a number
        bound = "above 0" if least is None else f"of at least {least:g}"
        raise MiddlewareConfigError(f"{option} must be a {'whole ' if whole else ''}number {bound}, not {value!r:.200}")
    try:
        is_too_large = finite and not isfinite(value)  # type: ignore[arg-type]  # a number, as was checked
    except OverflowError:  # an integer larger than any float, with which it would be combined
        is_too_large = not whole
    if is_too_large:
        raise MiddlewareConfigError(f"{option} must be finite, not {value!r:.200}: give a smaller number")


def check_flag(option: str, value: object) -> None:
    """Raise `MiddlewareConfigError` unless `value` is a `bool`: "False" and 0 are ambiguous."""
    if not isinstance(value, bool):
        raise MiddlewareConfigError(f"{option} must be True or False, not {value!r:.200}")


def check_function(option: str, function: Any, *parameters: str, plain: bool = False) -> None:
    """Raise `MiddlewareConfigError` unless `function` can be called with these parameters, and returns.

    With `plain`, it may not be a coroutine function either.
    """
    expected = f"a function ({', '.join(parameters)})"
    if isinstance(function, type):
        raise MiddlewareConfigError(
            f"{option} has the class {function.__name__}: make an instance of it, or {expected}"
        )
    if not callable(function):
        raise MiddlewareConfigError(f"{option} has {function!r:.200}, which is not callable: write {expected}")
    name = name_of_function(function)
    body = inspect.unwrap(function.func if isinstance(function, partial) else function)
    body = body if inspect.isroutine(body) else type(body).__call__
    if inspect.isgeneratorfunction(body) or inspect.isasyncgenfunction(body):
        raise MiddlewareConfigError(f"{option} has the generator function {name}: let it return, and not yield")
    if plain and inspect.iscoroutinefunction(body):
        raise MiddlewareConfigError(f"{option} must be a plain function, not {name}, which is `async`: write `def`")
    try:
        signature = inspect.signature(function)
    except ValueError:  # some functions in C have no signature
        return
    try:
        signature.bind(*parameters)
    except TypeError:
        raise MiddlewareConfigError(f"{option} has {name}{signature}, which must be {expected}") from None


def name_of_function(function: Any) -> str:
    """Return the name of a function for messages."""
    while isinstance(function, partial):
        function = function.func
    name = getattr(function, "__name__", None)
    return name if isinstance(name, str) else type(function).__name__


def is_owner(value: object) -> bool:
    """Say whether the value can name an owner: a non-empty str without surrogates."""
    return isinstance(value, str) and value != "" and whole_characters(value) == value


def check_choice(option: str, value: object, choices: Sequence[str]) -> None:
    """Raise `MiddlewareConfigError`, with the nearest word as a suggestion, unless `value` is one of the words."""
    if isinstance(value, str) and value in choices:
        return
    words = ", ".join(f'"{choice}"' for choice in choices[:-1]) + f' or "{choices[-1]}"'
    nearest = get_close_matches(value.lower(), choices, 1) if isinstance(value, str) else []
    hint = f': did you mean "{nearest[0]}"?' if nearest else ""
    raise MiddlewareConfigError(f"{option} must be {words}, not {value!r:.200}{hint}")


def check_store_option(option: str, store: object, protocol: type, description: str) -> None:
    """Raise `MiddlewareConfigError` unless `store` is `None` or an object with the methods of the protocol."""
    # A class has the methods too. The value is not shown: a URL may hold a password.
    if isinstance(store, type):
        raise MiddlewareConfigError(f"{option} must be {description}, not the class {store.__name__}: make an instance")
    if not (store is None or isinstance(store, protocol)):
        raise MiddlewareConfigError(
            f"{option} must be {description}, not a {type(store).__name__} of {type(store).__module__}"
        )


def check_patterns(option: str, value: object, *, least: int = 0) -> tuple[str, ...]:
    """Return a list of names or patterns of tools; raises `MiddlewareConfigError` for anything else, or too few."""
    # A plain `str` would pass for a list of its letters, and a single name needs no list.
    patterns: Any = [value] if isinstance(value, str) else value
    is_list = isinstance(patterns, (list, tuple, set, frozenset))
    if not is_list or len(patterns) < least or not all(isinstance(name, str) and name for name in patterns):
        raise MiddlewareConfigError(
            f"{option} must be a list of names of tools, or of patterns such as 'get_*', not {value!r:.200}"
        )
    return tuple(patterns)


def choose_errors(option: str, chosen: ErrorChoice, *, our_refusals: bool) -> Callable[[Exception], bool]:
    """Return a function that says whether an error is among the chosen ones, given by classes or a function.

    `BudgetExceeded` is never chosen. With `our_refusals=False`, a base class does not cover `CircuitOpen` and
    `RateLimitTimeout`, which our own middlewares raise to fail fast; naming them does.
    """
    if not isinstance(chosen, type) and callable(chosen):
        return lambda error: not isinstance(error, BudgetExceeded) and chosen(error)
    classes = tuple(chosen) if isinstance(chosen, (list, tuple)) else (chosen,)
    if not classes or not all(isinstance(cls, type) and issubclass(cls, Exception) for cls in classes):
        raise MiddlewareConfigError(
            f"{option} must be an error class, several of them, or a function of an error, not {chosen!r:.200}"
        )
    named_refusals = tuple(cls for cls in classes if issubclass(cls, _OUR_REFUSALS))
    only_by_name = () if our_refusals else _OUR_REFUSALS

    def is_chosen(error: Exception) -> bool:
        if isinstance(error, BudgetExceeded):
            return False
        return isinstance(error, named_refusals if isinstance(error, only_by_name) else classes)

    return is_chosen


def retry_after_of(error: BaseException) -> float | None:
    """Return the wait in seconds that the provider asks for, at most a day; `None` if it does not say."""
    # Any error may have the attribute, and a custom model may put anything there.
    seconds = getattr(error, "retry_after", None)
    if not isinstance(seconds, (int, float)) or isinstance(seconds, bool) or not seconds >= 0:
        return None
    return min(seconds, _MAX_RETRY_AFTER)


class Backoff:
    """The wait before the next attempt, in seconds: a random time up to a limit that doubles each time.

    The whole range is random ("full jitter"), so that callers that failed together do not come back together.
    """

    __slots__ = ("_initial_delay", "_max_delay", "_random")

    def __init__(self, owner: str, initial_delay: float, max_delay: float, random: Random | None) -> None:
        check_number(f"{owner}(initial_delay=...)", initial_delay, least=0)
        check_number(f"{owner}(max_delay=...)", max_delay, least=0)
        self._initial_delay = initial_delay
        self._max_delay = max_delay
        self._random = random or Random()

    def wait_after(self, failures: int, retry_after: float | None = None) -> float:
        """Return the wait after `failures` failures; never less than the provider's `retry_after`."""
        if retry_after is not None and retry_after > 0:
            return retry_after + self._random.uniform(0.0, self._initial_delay)
        doublings = min(failures - 1, _MAX_DOUBLINGS)
        return self._random.uniform(0.0, min(self._max_delay, self._initial_delay * 2.0**doublings))
