"""The error of an agent whose class forgot to call `super().__init__()`."""

import inspect
from functools import partial
from typing import ClassVar, NoReturn, TypeVar, get_origin

from agentrt._runtime.keywords.attributes import compute_missing
from agentrt.errors import UsageError

_Class = TypeVar("_Class", bound=type)


def refuse_before_init(cls: _Class) -> _Class:
    """Have agents that did not call `super().__init__()` say so where an attribute that the class annotates is read."""
    missing = {}
    for name, annotation in inspect.get_annotations(cls).items():
        origin: object = get_origin(annotation)
        # What has a value on the class can be read without `__init__`.
        if origin is not ClassVar and not hasattr(cls, name):
            missing[name] = partial(_refuse_missing, name)
    return compute_missing(**missing)(cls)


async def refuse_call(agent: object, *args: object, **kwargs: object) -> NoReturn:
    """Stand in for a method of an agent that did not call `super().__init__()`."""
    raise _not_set_up(type(agent))


def check_initialized(agent: object) -> None:
    """Raise `UsageError` for an agent that did not call `super().__init__()`."""
    if "chains" not in vars(agent):
        raise _not_set_up(type(agent))


def _refuse_missing(name: str, agent: object) -> NoReturn:
    check_initialized(agent)
    raise AttributeError(
        f"{type(agent).__name__!r} object has no attribute {name!r}"
    )  # the words of Python's own error


def _not_set_up(cls: type) -> UsageError:
    return UsageError(f"{cls.__name__}.__init__() did not call super().__init__(): call it there first")
