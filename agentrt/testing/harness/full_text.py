"""A value as complete text, to detect changes."""

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

__all__ = ["full_text"]

_PLAIN = (str, int, float, bool, type(None))


def full_text(value: Any) -> str:
    """Return text that differs for different values; it includes the fields that `repr` of messages omits."""
    if type(value) in _PLAIN:  # most values; the checks below are slower
        return repr(value)
    if is_dataclass(value) and not isinstance(value, type):
        contents = (f"{field.name}={full_text(getattr(value, field.name, None))}" for field in fields(value))
        return f"{type(value).__name__}({', '.join(contents)})"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{full_text(key)}: {full_text(item)}' for key, item in value.items())}}}"
    if isinstance(value, (list, tuple)):
        return f"{type(value).__name__}[{', '.join(map(full_text, value))}]"
    return repr(value)
