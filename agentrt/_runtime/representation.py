"""The `repr` of objects in a shell, a log and a notebook: class and given settings, short and without secrets."""

import inspect
import re
import reprlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, fields
from enum import Enum
from functools import lru_cache, wraps
from pathlib import PurePath
from typing import Any, TypeVar

from agentrt._runtime.text import lazy_pattern, mask, repr_of

_Object = TypeVar("_Object")
_Describe = Callable[[object, int], str]
_MAX_SHOWN = 200  # characters
_MAX_ITEMS = 10
_MAX_DEPTH = 4
_WIDTH = 100
_HIDDEN = "'***'"
_SECRET_SETTING = lazy_pattern(
    r"(?:^|[_-])(?:(?:api|access|private|secret|signing|encryption|hash)[_-]?key|secret|password|passwd|passphrase|token|auth"
    r"|authorization|credential|cookie|header)s?(?:[_-]|$)",
    re.IGNORECASE,
)


def never_raises(method: Callable[[_Object], str]) -> Callable[[_Object], str]:
    """Decorate a `__repr__`, so that it has an answer for half-built objects and for those that hold themselves."""
    recursive = reprlib.recursive_repr()(method)

    @wraps(method)
    def answer(self: _Object) -> str:
        try:
            return recursive(self)
        except Exception:  # noqa: BLE001  # of a subclass; a repr is asked for where something else has gone wrong
            return f"<{type(self).__name__} that has no repr>"

    return answer


def repr_as_call(name: str, values: Mapping[str, str | list[str]], *, broken: bool = False) -> str:
    """Return the call with these texts, or lists of texts, as arguments; `broken` into lines where it is long."""
    arguments = [f"{key}={_join(value)}" for key, value in values.items()]
    line = f"{name}({', '.join(arguments)})"
    if not broken or len(line) <= _WIDTH:
        return line
    arguments = [f"{key}={_join(value, is_nested=True)}" for key, value in values.items()]
    return "\n".join([f"{name}(", *(f"    {argument}," for argument in arguments), ")"])


def _join(value: str | list[str], *, is_nested: bool = False) -> str:
    if isinstance(value, str):
        return value
    if not is_nested:
        return f"[{', '.join(value)}]"
    return "\n".join(["[", *(f"        {item}," for item in value), "    ]"])


@never_raises
def repr_by_settings(self: object) -> str:
    """Return the call that makes such an object, as far as its attributes tell: a `__repr__` for classes."""
    attributes = vars(self)
    settings = {}
    for name, default in _constructor_parameters(type(self)):  # type: ignore[arg-type]  # a class is hashable
        current = attributes.get(name, attributes.get(f"_{name}", default))
        is_empty = current is False or (isinstance(current, (list, tuple, dict, set)) and not current)
        if not _is_same(current, default) and not (default is None and is_empty):
            settings[name] = _HIDDEN if is_secret(name, current) else describe_setting(current)
    return repr_as_call(type(self).__name__, settings)


def fields_set(value: Any) -> Iterator[tuple[str, object]]:
    """Yield the fields of a dataclass that differ from their defaults, except those that say `repr=False`."""
    for field in fields(value):
        current = getattr(value, field.name, MISSING)  # half-built, it may lack some
        if not field.repr or current is MISSING:
            continue
        default = field.default
        if default is MISSING and field.default_factory is not MISSING:
            default = field.default_factory()
        if not _is_same(current, default):
            yield field.name, current


@lru_cache(maxsize=1024)
def _constructor_parameters(cls: type) -> tuple[tuple[str, object], ...]:
    # Cached, since a program may show agents by the thousand, of the same few classes.
    constructor: Any = cls.__init__  # type: ignore[misc]  # only its signature is read
    parameters = list(inspect.signature(constructor).parameters.values())[1:]
    return tuple((parameter.name, parameter.default) for parameter in parameters)


def describe_content(value: object, depth: int = 0) -> str:
    """Return a short text for what a message or an event holds: long texts and lists are cut."""
    text = _describe_common(value, describe_content, depth)
    return repr_of(value) if text is None else text


def describe_setting(value: object, depth: int = 0) -> str:
    """Return a short text for what an object was made with.

    Texts that look like secrets are masked. Of objects of other libraries only the class is named: their own texts may
    hold the password of a database, say.
    """
    text = _describe_common(value, describe_setting, depth)
    if text is not None:
        return mask(text)
    if isinstance(value, PurePath):
        return mask(repr(str(value)))
    if isinstance(value, type):
        return value.__name__
    if inspect.isroutine(value):
        return str(getattr(value, "__qualname__", value))
    owner = str(getattr(type(value).__repr__, "__module__", ""))
    is_ours = owner.partition(".")[0] in ("agentrt", "agentrt_middleware")
    return mask(repr_of(value, 1_000)) if is_ours else f"<{type(value).__name__}>"


def _describe_common(value: object, describe: _Describe, depth: int) -> str | None:
    """Return the text of a plain value, `None` for any other object."""
    if isinstance(value, Enum):
        return repr(value.value)
    if isinstance(value, str):
        if len(value) <= _MAX_SHOWN:
            return repr(value)
        return f"{value[:_MAX_SHOWN]!r}... ({len(value):,} characters)"
    if isinstance(value, (bytes, bytearray, memoryview)):
        return f"<{len(value):,} bytes>"
    if value is None or isinstance(value, (bool, int, float)):
        return repr_of(value)
    if isinstance(value, (list, tuple, set, frozenset, Mapping)):
        return _describe_container(value, describe, depth + 1)
    return None


def _describe_container(value: Any, describe: _Describe, depth: int) -> str:
    opening, closing = "[]" if isinstance(value, list) else "()" if isinstance(value, tuple) else "{}"
    if depth > _MAX_DEPTH:
        return f"{opening}...{closing}"
    items = list(value)[:_MAX_ITEMS]  # a set has no slices
    if isinstance(value, Mapping):
        is_setting = describe is describe_setting
        hidden = {key for key in items if is_setting and is_secret(key, value[key])}
        texts = [_HIDDEN if key in hidden else describe(value[key], depth) for key in items]
        parts = [f"{describe(key, depth)}: {text}" for key, text in zip(items, texts, strict=True)]
    else:
        parts = [describe(item, depth) for item in items]
    if len(value) > _MAX_ITEMS:
        parts.append(f"... ({len(value):,} in all)")
    return f"{opening}{', '.join(parts)}{',' if len(value) == 1 and opening == '(' else ''}{closing}"


def is_secret(name: object, value: object) -> bool:
    """Say whether the name of a setting says that it is a secret; a number, such as a limit of tokens, is not one."""
    is_text = value is not None and not isinstance(value, (bool, int, float))
    return is_text and isinstance(name, str) and _SECRET_SETTING.search(name) is not None


def _is_same(value: object, default: object) -> bool:
    # By type first: values of other libraries may compare in ways of their own.
    return value is default or (type(value) is type(default) and bool(value == default))
