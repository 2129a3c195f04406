"""Suggestions for keywords that do not exist.

The decorators here answer with the nearest parameter, or with what their table says of a word of another framework.
They cost nothing where the keyword exists, apart from one call in front of a constructor.
"""

import inspect
from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from functools import wraps
from typing import Any, NamedTuple, TypeVar, get_args

from agentrt.errors import UnknownKeywordError, WrongCallError

_Suggested = TypeVar("_Suggested", bound=type)
_Function = TypeVar("_Function", bound=Callable[..., Any])
_Init = Callable[..., None]
_LEAST_LIKENESS = 0.75  # words that are less alike, as "store" and "stream", are different words and no slip


def suggest_keywords(**remedies: str) -> Callable[[_Suggested], _Suggested]:
    """Return a class decorator: a keyword that the constructor does not have is answered with the one that was meant.

    That is the parameter of the nearest name, unless `remedies` has the word: with another parameter, or with what to
    do instead. The error is an `UnknownKeywordError`. Types and signature stay as they are, and an error from inside
    the constructor leaves it as it is.
    """

    def decorate(cls: _Suggested) -> _Suggested:
        init: _Init = cls.__init__  # type: ignore[misc]  # the class's own, or one that it inherits

        @wraps(init)
        def __init__(self: object, /, *args: object, **kwargs: object) -> None:
            try:
                if args or kwargs:
                    init(self, *args, **kwargs)
                else:  # a quarter faster, for the parts that each conversation has
                    init(self)
            except TypeError as error:
                if not _is_wrong_call(error):
                    raise
                title, known = _constructor(type(self), cls, init)
                unknown = _unknown_to(init, kwargs)
                if unknown:
                    raise UnknownKeywordError(_describe(title, unknown, known, remedies)) from None
                raise TypeError(_describe_misfit(error, init, title)) from None

        cls.__init__ = __init__  # type: ignore[misc]  # of the same signature
        return cls

    return decorate


def hide_unknown(function: _Function) -> _Function:
    """Decorate a function that takes `**unknown` to answer it: its signature is shown without."""
    signature = inspect.signature(function)
    known = [parameter for parameter in signature.parameters.values() if parameter.kind is not parameter.VAR_KEYWORD]
    setattr(function, "__signature__", signature.replace(parameters=known))  # noqa: B010  # which types do not know
    return function


def suggest_arguments(**remedies: str) -> Callable[[_Function], _Function]:
    """Return a decorator for a function or method: as `suggest_keywords`, with a `WrongCallError`."""

    def decorate(function: Any) -> Any:
        def explain(error: TypeError, kwargs: Mapping[str, object]) -> None:
            unknown = _unknown_to(function, kwargs)
            if unknown and _is_wrong_call(error):
                raise wrong_call(function, unknown, remedies) from None

        if inspect.iscoroutinefunction(function):  # and so must be what takes its place

            @wraps(function)
            async def call_async(*args: object, **kwargs: object) -> object:
                try:
                    coroutine = function(*args, **kwargs)
                except TypeError as error:
                    explain(error, kwargs)
                    raise
                return await coroutine

            return call_async

        @wraps(function)
        def call(*args: object, **kwargs: object) -> object:
            try:
                return function(*args, **kwargs)
            except TypeError as error:
                explain(error, kwargs)
                raise

        return call

    return decorate


def unknown_keywords(title: str, unknown: Iterable[str], known: list[str]) -> UnknownKeywordError:
    """Return the error for keywords that `title`, a class or function, does not have; `known` are those it has."""
    return UnknownKeywordError(_describe(title, unknown, known, {}))


def wrong_call(function: Callable[..., object], unknown: Iterable[str], remedies: Mapping[str, str]) -> WrongCallError:
    """Return the error for keywords that a function took as `**unknown`, where a call in front of it costs too much."""
    return WrongCallError(_describe(function.__qualname__, unknown, _parameters_of(function).names, remedies))


class _KnownKeywords(NamedTuple):
    """The keywords of a function: `passes_on` says that it has `**`, `takes_any` that this takes any name."""

    names: list[str]
    passes_on: bool
    takes_any: bool


def _parameters_of(function: Callable[..., object]) -> _KnownKeywords:
    names: list[str] = []
    passes_on = takes_any = False
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind is parameter.VAR_KEYWORD:
            options = get_args(parameter.annotation)  # `Unpack[Options]` of a TypedDict
            names += getattr(options[0], "__annotations__", ()) if options else ()
            passes_on, takes_any = True, not options
        elif parameter.kind is not parameter.VAR_POSITIONAL and parameter.name != "self":
            names.append(parameter.name)
    return _KnownKeywords(names, passes_on, takes_any)


def _constructor(cls: type, owner: type, init: _Init) -> tuple[str, list[str]]:
    """Return what to call the constructor of `owner` that an object of `cls` was made with, and its parameters.

    Those of the subclasses' constructors belong to it where these pass any keyword on.
    """
    known: list[str] = []
    for base in cls.__mro__:
        if base is owner:
            return cls.__name__, list(dict.fromkeys([*known, *_parameters_of(init).names]))
        if "__init__" in vars(base):
            parameters = _parameters_of(vars(base)["__init__"])
            if not parameters.passes_on:  # the keyword comes from the code of that constructor
                break
            known += parameters.names
    return f"{owner.__name__}.__init__", _parameters_of(init).names


def _is_wrong_call(error: TypeError) -> bool:
    # Arguments that do not fit are refused before the function is entered, so that its frame is not in the traceback.
    return error.__traceback__ is not None and error.__traceback__.tb_next is None


def _unknown_to(function: Callable[..., object], words: Iterable[str]) -> list[str]:
    parameters = _parameters_of(function)
    return [] if parameters.takes_any else [word for word in words if word not in parameters.names]


def _describe_misfit(error: TypeError, init: _Init, title: str) -> str:
    """Return what to say of arguments that are missing, too many or given twice."""
    words = str(error).partition("() ")[2]
    if words.endswith("given"):  # Python's count includes the object itself
        words = "was given too many arguments by position"
    parameters = []
    for parameter in list(inspect.signature(init).parameters.values())[1:]:
        default = parameter.empty if parameter.default is parameter.empty else ...
        parameters.append(parameter.replace(annotation=parameter.empty, default=default))
    takes = str(inspect.Signature(parameters)).replace("Ellipsis", "...")
    return f"{title}() {words}: it takes {takes}"


def _describe(title: str, unknown: Iterable[str], known: list[str], remedies: Mapping[str, str]) -> str:
    problems = []
    for word in unknown:
        # A remedy comes first, since it was written for this very function, and likeness last, since it is a guess.
        nearest = get_close_matches(word, known, 1, _LEAST_LIKENESS)
        meant = remedies.get(word) or next(iter(nearest), None)
        if meant in known:
            meant = f"did you mean {meant!r}?"
        elif meant is None:
            meant = f"it takes {', '.join(known)}" if known else "it takes none"
        problems.append(f"no parameter {word!r}: {meant}")
    return f"{title}() has {'; it has '.join(problems)}"
