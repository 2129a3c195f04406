"""The error of an agent whose class forgot to call `super().__init__()`."""

import inspect
from typing import ClassVar, NoReturn, TypeVar, get_origin

from agentrt.errors import UsageError

__all__ = ["refuse_before_init", "refuse_call"]

_Class = TypeVar("_Class", bound=type)


def refuse_before_init(cls: _Class) -> _Class:
    """Have agents that did not call `super().__init__()` say so where an attribute that the class annotates is read."""
    for name, annotation in inspect.get_annotations(cls).items():
        origin: object = get_origin(annotation)
        # What has a value on the class can be read without `__init__`.
        if origin is not ClassVar and not hasattr(cls, name):
            setattr(cls, name, _MissingAttribute(name))
    return cls


async def refuse_call(agent: object, *args: object, **kwargs: object) -> NoReturn:
    """Stand in for a method of an agent that did not call `super().__init__()`."""
    raise _not_set_up(type(agent))


class _MissingAttribute:
    """Stands on the class for an attribute that each agent has; a `__getattr__` would slow down every attribute."""

    # Not a data descriptor: an attribute of the instance, once it is there, is found before this.
    __slots__ = ("_name",)

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, agent: object, cls: type) -> NoReturn:
        if agent is not None and "chains" not in vars(agent):
            raise _not_set_up(cls)
        # The words of Python's own error.
        owner = f"type object {cls.__name__!r}" if agent is None else f"{cls.__name__!r} object"
        raise AttributeError(f"{owner} has no attribute {self._name!r}")


def _not_set_up(cls: type) -> UsageError:
    return UsageError(f"{cls.__name__}.__init__() did not call super().__init__(): call it there first")
