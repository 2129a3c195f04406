"""What to write for a name that a module does not have: one that it had, or one that another module has."""

import warnings
from collections.abc import Callable, Sequence
from importlib import import_module

__all__ = ["find_elsewhere", "keep_old_names"]


def keep_old_names(module: str, **renamed: type) -> Callable[[str], type]:
    """Return a `__getattr__` for a module: classes under the names that they had are handed out with a warning."""

    def get_attribute(name: str) -> type:
        if name not in renamed:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")  # the words of Python's own error
        new = renamed[name].__name__
        warnings.warn(
            f"{module}.{name} is called {new} now, and its old name goes with the next version: "
            f"write `from {module} import {new}`",
            DeprecationWarning,
            stacklevel=2,
        )
        return renamed[name]

    return get_attribute


def find_elsewhere(package: str, modules: Sequence[str]) -> Callable[[str], object]:
    """Return a `__getattr__` for a package: it says in which of the modules a class is that it does not have."""

    def get_attribute(name: str) -> object:
        # Modules of the package have small letters, and are looked for here before they are imported.
        for module in modules if name[:1].isupper() else ():
            if name in import_module(f"{package}.{module}").__all__:
                # Not an AttributeError, of which `from package import name` drops the words.
                raise ImportError(
                    f"cannot import name {name!r} from {package!r}: write `from {package}.{module} import {name}`",
                    name=package,
                )
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return get_attribute
