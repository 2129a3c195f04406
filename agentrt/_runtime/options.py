"""Checks of options: each raises an error that names the option, what it takes and what it was given."""

from importlib import import_module
from math import inf
from typing import Any

from agentrt.errors import ConfigError


def check_whole(
    option: str, value: object, least: int = 1, most: int | None = None, *, error: type[Exception] = ConfigError
) -> int:
    """Return the number, which must be an `int` in these bounds; `True` is not a number here."""
    if type(value) is not int or value < least or (most is not None and value > most):
        bounds = f"of at least {least}" if most is None else f"from {least} to {most:,}"
        raise error(f"{option} must be a whole number {bounds}, not {value!r:.100}")
    return value


def check_seconds(option: str, value: object, *, least: float | None = None) -> float:
    """Return the seconds, which must be finite, and at least `least`, or above 0 if that is `None`."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    # Written so that nan is refused: all its comparisons are false.
    if not is_number or not (0 < value < inf if least is None else least <= value < inf):  # type: ignore[operator]
        bound = "above 0" if least is None else f"of at least {least:g}"
        raise ConfigError(f"{option} must be a finite number of seconds {bound}, not {value!r:.100}")
    return float(value)  # type: ignore[arg-type]  # as above


def check_bool(option: str, value: object, *, error: type[Exception] = ConfigError) -> None:
    """Refuse anything but a `bool`: text such as "no" would count as true."""
    if not isinstance(value, bool):
        raise error(f"{option} must be True or False, not {value!r:.100}")


def import_extra(owner: str, extra: str, package: str, *modules: str) -> Any:
    """Return the module of that name, with its `modules` loaded; raises `ConfigError` if its extra is not installed."""
    try:
        for name in modules:
            import_module(f"{package}.{name}")
        return import_module(package)
    except ImportError as error:
        raise ConfigError(f'{owner} needs the package {package}: pip install "agentrt[{extra}]"') from error
