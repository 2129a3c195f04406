"""Suggestions for attributes that do not exist, and attributes that are computed when missing.

Both are put on the class as descriptors: those that are there are found as fast as without them, and a type checker
knows of none that is not.
"""

import inspect
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from typing import Any, NoReturn, TypeVar

_Decorated = TypeVar("_Decorated", bound=type)


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
