"""`agentrt new`: a small project with an agent, which `agentrt dev` can serve at once."""

import argparse
import keyword
import re
from importlib.util import find_spec
from pathlib import Path

from agentrt.errors import ConfigError

_TEMPLATE = Path(__file__).with_name("template")
_NAME = "NAME"  # in the paths and in the files of the template


def create_project(options: argparse.Namespace) -> int:
    """Write the project into a folder of its name; returns the exit code."""
    name: str = options.name
    _check_name(name)
    folder = Path(name)
    try:
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise ConfigError(f"{name!r} exists and is not an empty folder: choose another name")
        for template in sorted(_TEMPLATE.rglob("*.txt")):
            path = folder / str(template.relative_to(_TEMPLATE)).removesuffix(".txt").replace(_NAME, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(template.read_text(encoding="utf-8").replace(_NAME, name), encoding="utf-8")
            print(path)
    except OSError as error:
        raise ConfigError(f"{str(error.filename)!r} cannot be written: {error.strerror}") from error
    print(f"\nNext:\n  cd {name}\n  agentrt dev\n  python -m pytest")
    return 0


def _check_name(name: str) -> None:
    """Raise `ConfigError` if Python could not import a package of this name."""
    if not (name.isascii() and name.isidentifier()):
        proposal = re.sub(r"[^A-Za-z0-9_]", "_", name).strip("_")  # empty for "." and the like
        example = proposal if proposal.isidentifier() else "my_agent"
        raise ConfigError(
            f"{name!r:.100} is not a name that Python can import (letters, digits and _): write, for example, "
            f"{example!r:.100}"
        )
    if keyword.iskeyword(name):
        raise ConfigError(f"{name!r} is a keyword of Python: write, for example, {f'{name}_agent'!r}")
    spec = find_spec(name)
    if spec is not None and spec.origin is not None:  # a folder without code is found too, but has no origin
        raise ConfigError(
            f"{name!r} is the name of an existing module, which imports would find instead: write, for example, "
            f" {f'{name}_agent'!r}"
        )
