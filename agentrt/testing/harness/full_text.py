"""A value as complete text, to detect changes."""

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from functools import lru_cache
from typing import Any

_PLAIN = frozenset([str, int, float, bool, type(None)])


def full_text(value: Any) -> str:
    """Return text that differs for different values; it includes the fields that `repr` of messages omits."""
    kind = type(value)
    if kind in _PLAIN:  # most values; the checks below are slower
        return repr(value)
    names = _names_of_fields(kind)  # type: ignore[arg-type]  # each class can be hashed
    if names is not None:
        contents = [f"{name}={full_text(getattr(value, name, None))}" for name in names]
        return f"{kind.__name__}({', '.join(contents)})"
    if isinstance(value, Mapping):
        return f"{{{', '.join([f'{full_text(key)}: {full_text(item)}' for key, item in value.items()])}}}"
    if isinstance(value, (list, tuple)):
        return f"{kind.__name__}[{', '.join(map(full_text, value))}]"
    return repr(value)


@lru_cache(maxsize=256)  # a check asks for those of a few classes, a million times
def _names_of_fields(kind: type) -> tuple[str, ...] | None:
    return tuple(field.name for field in fields(kind)) if is_dataclass(kind) else None
