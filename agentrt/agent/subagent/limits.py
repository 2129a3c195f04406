"""The safety limits that the skeleton of sub-agents applies itself."""

from math import isfinite
from typing import Any

from agentrt.errors import ConfigError
from agentrt.text import repr_of

__all__ = ["check_limits"]


def check_limits(limits: object) -> None:
    """Raise `ConfigError` for limits of a wrong type: one that is misread would limit nothing."""
    if not isinstance(limits, dict):
        raise ConfigError(f"safety_limits must be a dict, not {repr_of(limits)}: write {{'timeout': 60}}, say")
    for name, (is_right, what) in _LIMITS.items():
        value: Any = limits.get(name)
        if value is not None and not is_right(value):
            raise ConfigError(f"safety_limits[{name!r}] must be {what}, not {repr_of(value)}")


def _are_names(value: Any) -> bool:
    # A str is iterable too, and its characters name no tools.
    return isinstance(value, (list, tuple)) and all(isinstance(name, str) for name in value)


def _is_seconds(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and isfinite(value) and value > 0


_LIMITS = {
    "disabled_tools": (_are_names, "a list of names and patterns of tools"),
    "read_only": (lambda value: isinstance(value, bool), "True or False"),
    "timeout": (_is_seconds, "a number of seconds above 0"),
    "max_depth": (lambda value: type(value) is int and value >= 0, "a whole number from 0 up"),
}
"""By name: whether a value is right, and what it must be."""
