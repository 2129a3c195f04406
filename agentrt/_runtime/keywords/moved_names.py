"""Module attributes that are not there: renamed classes, names of other modules, and those imported when first used."""

import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from types import ModuleType


def import_when_read(module: str, names: Mapping[str, Sequence[str]]) -> Callable[[str], object]:
    """Return a `__getattr__` for a module, which imports these names, listed by their home, when they are read."""
    homes = {name: home for home, listed in names.items() for name in listed}

    def get_attribute(name: str) -> object:
        if name not in homes:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")  # the words of Python's own error
        return getattr(import_module(homes[name]), name)

    return get_attribute


def keep_old_modules(package: str, **moved: Mapping[str, Sequence[str]]) -> None:
    """Keep the import paths of modules of a package whose names have moved, without a file; the names as above."""
    for name, names in moved.items():
        module = sys.modules[f"{package}.{name}"] = ModuleType(f"{package}.{name}")
        setattr(sys.modules[package], name, module)
        vars(module)["__getattr__"] = import_when_read(module.__name__, names)


def keep_old_names(module: str, **renamed: type) -> Callable[[str], type]:
    """Return a `__getattr__` for a module, which returns renamed classes by their old names, with a warning."""

    def get_attribute(name: str) -> type:
        if name not in renamed:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")  # the words of Python's own error
        new = renamed[name].__name__
        warnings.warn(
            f"{module}.{name} was renamed {new}, and the next version removes the old name: "
            f"write `from {module} import {new}`",
            DeprecationWarning,
            stacklevel=2,
        )
        return renamed[name]

    return get_attribute


def find_elsewhere(package: str, modules: Sequence[str]) -> Callable[[str], object]:
    """Return a `__getattr__` for a package, whose error names the module that has the class."""

    def get_attribute(name: str) -> object:
        # Names of modules are in lower case, and come here before their first import.
        for module in modules if name[:1].isupper() else ():
            if name in import_module(f"{package}.{module}").__all__:
                # `from package import name` replaces the message of an AttributeError.
                raise ImportError(
                    f"cannot import name {name!r} from {package!r}: write `from {package}.{module} import {name}`",
                    name=package,
                )
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return get_attribute
