"""Wrong guesses: what to write in place of a keyword or an attribute that does not exist.

Someone who knows other frameworks guesses by their words. The decorators here answer with ours, and cost nothing where
the guess was right, apart from one call in front of a constructor.
"""

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, is_dataclass
from difflib import get_close_matches
from functools import wraps
from typing import Any, NamedTuple, NoReturn, TypeVar, get_args

from agentrt.errors import UnknownKeywordError, WrongCallError
from agentrt.keywords.synonyms import SYNONYMS

__all__ = [
    "compute_missing",
    "suggest_arguments",
    "suggest_attributes",
    "suggest_keywords",
    "unknown_keywords",
    "wrong_call",
]

_Decorated = TypeVar("_Decorated", bound=type)
_Function = TypeVar("_Function", bound=Callable[..., Any])
_Init = Callable[..., None]


def suggest_keywords(**remedies: str) -> Callable[[_Decorated], _Decorated]:
    """Return a class decorator: a keyword that the constructor does not have is answered with the one that was meant.

    That is the parameter of the nearest name, or the one for what other frameworks call by this word. `remedies` are
    for further words: a parameter, or what to do instead. The error is an `UnknownKeywordError`. Types and signature
    stay as they are, and an error from inside the constructor leaves it as it is.
    """

    def decorate(cls: _Decorated) -> _Decorated:
        init: _Init = cls.__init__  # type: ignore[misc]  # the class's own, or one that it inherits

        @wraps(init)
        def __init__(self: object, /, *args: object, **kwargs: object) -> None:
            try:
                init(self, *args, **kwargs)
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


def suggest_attributes(**remedies: str) -> Callable[[_Decorated], _Decorated]:
    """Return a class decorator: an attribute that does not exist is answered with what to write instead.

    It is an `AttributeError` as before, so `hasattr` and `copy` see no difference; a subclass or an instance may have
    an attribute of that name. A dataclass also says what to write for `value["field"]`.
    """

    def decorate(cls: _Decorated) -> _Decorated:
        for name, remedy in remedies.items():
            if not hasattr(cls, name):
                setattr(cls, name, _MissingName(name, remedy))
        cls.__dir__ = _names_of  # type: ignore[assignment]  # an editor must not offer them
        if is_dataclass(cls):
            setattr(cls, "__getitem__", _refuse_item)  # noqa: B010  # which a type checker must not see
        return cls

    return decorate


def compute_missing(**functions: Callable[[Any], object]) -> Callable[[_Decorated], _Decorated]:
    """Return a class decorator: an attribute that neither an instance nor its class sets is what its function returns.

    A `__getattr__` would do so as well, but a type checker would then take any name for an attribute.
    """

    def decorate(cls: _Decorated) -> _Decorated:
        for name, function in functions.items():
            setattr(cls, name, _MissingValue(name, function))
        return cls

    return decorate


def unknown_keywords(title: str, unknown: Iterable[str], known: list[str]) -> UnknownKeywordError:
    """Return the error for keywords that `title`, a class or function, does not have; `known` are those it has."""
    return UnknownKeywordError(_describe(title, unknown, known, {}))


def wrong_call(function: Callable[..., object], unknown: Iterable[str], remedies: Mapping[str, str]) -> WrongCallError:
    """Return the error for keywords that a function took as `**unknown`, where a call in front of it costs too much."""
    return WrongCallError(_describe(function.__qualname__, unknown, _parameters_of(function).names, remedies))


class _MissingName:
    """Stands on the class for an attribute that people guess; a `__getattr__` would slow down every attribute."""

    # Not a data descriptor: an attribute of the instance is found before this.
    __slots__ = ("_name", "_remedy")

    def __init__(self, name: str, remedy: str) -> None:
        self._name = name
        self._remedy = remedy

    def __get__(self, instance: object, cls: type) -> NoReturn:
        # The words of Python's own error.
        owner = f"type object {cls.__name__!r}" if instance is None else f"{cls.__name__!r} object"
        raise AttributeError(f"{owner} has no attribute {self._name!r}: {self._remedy}")


class _MissingValue:
    """Stands on the class for an attribute that is computed unless it is set."""

    # Not a data descriptor: an attribute of the instance is found before this, and so is one of a subclass.
    __slots__ = ("_function", "_name")

    def __init__(self, name: str, function: Callable[[Any], object]) -> None:
        self._name = name
        self._function = function

    def __get__(self, instance: object, cls: type) -> object:
        if instance is None:  # the words of Python's own error
            raise AttributeError(f"type object {cls.__name__!r} has no attribute {self._name!r}")
        return self._function(instance)


def _refuse_item(self: object, key: object) -> NoReturn:
    cls = type(self).__name__
    is_field = isinstance(key, str) and key in (field.name for field in fields(self))  # type: ignore[arg-type]  # a dataclass
    remedy = f"write .{key}" if is_field else "its fields are attributes"
    raise TypeError(f"{cls!r} object has no item {key!r:.100}, and is not subscriptable: {remedy}")


def _names_of(self: object) -> list[str]:
    cls = type(self)
    names = object.__dir__(self)
    return [name for name in names if not isinstance(inspect.getattr_static(cls, name, None), _MissingName)]


class _Parameters(NamedTuple):
    """What a function can be called with: `passes_on` says that it has `**`, `takes_any` that this takes any name."""

    names: list[str]
    passes_on: bool
    takes_any: bool


def _parameters_of(function: Callable[..., object]) -> _Parameters:
    names: list[str] = []
    passes_on = takes_any = False
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind is parameter.VAR_KEYWORD:
            options = get_args(parameter.annotation)  # `Unpack[Options]` of a TypedDict
            names += getattr(options[0], "__annotations__", ()) if options else ()
            passes_on, takes_any = True, not options
        elif parameter.kind is not parameter.VAR_POSITIONAL and parameter.name != "self":
            names.append(parameter.name)
    return _Parameters(names, passes_on, takes_any)


def _constructor(cls: type, owner: type, init: _Init) -> tuple[str, list[str]]:
    """Return what to call the constructor of `owner` that an object of `cls` was made with, and its parameters.

    Those of the subclasses' constructors belong to it where these pass any keyword on.
    """
    known: list[str] = []
    for base in cls.__mro__:
        if base is owner:
            return cls.__name__, [*known, *_parameters_of(init).names]
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
        groups = (line.split() for line in SYNONYMS)
        synonyms = (name for group in groups if word in group for name in known if name in group)
        meant = remedies.get(word) or next(synonyms, None) or next(iter(get_close_matches(word, known, 1)), None)
        if meant in known:
            meant = f"did you mean {meant!r}?"
        elif meant is None:
            meant = f"it takes {', '.join(known)}" if known else "it takes none"
        problems.append(f"no parameter {word!r}: {meant}")
    return f"{title}() has {'; it has '.join(problems)}"
