"""Objects that are named as "module:name"."""

from difflib import get_close_matches
from importlib import import_module
from operator import attrgetter
from pathlib import Path
from sysconfig import get_path
from traceback import extract_tb
from typing import Any

from agentrt.errors import ConfigError


def import_object(spec: str, *, example: str, agents: type | None = None) -> Any:
    """Return the object that "module:name" names; raises `ConfigError` if that fails.

    If the module has `agents`, the error offers these.
    """
    module_name, _, name = spec.partition(":")
    if not (module_name and name):
        raise ConfigError(f"{spec!r} does not have the form module:name: write, for example, {example}")
    try:
        module = import_module(module_name)
    except SystemExit as error:
        raise ConfigError(
            f"{spec!r} cannot be loaded: importing {module_name!r} ends the program{_failing_line(error)}: write what "
            f'is to run below `if __name__ == "__main__":`'
        ) from error
    except Exception as error:  # the module may raise anything
        words = f"SyntaxError: {error.msg}" if isinstance(error, SyntaxError) else f"{error!r:.500}"
        raise ConfigError(
            f"{spec!r} cannot be loaded: importing {module_name!r} failed: {words}{_failing_line(error)}"
        ) from error
    try:
        return attrgetter(name)(module)
    except AttributeError as error:
        public = [attribute for attribute in vars(module) if not attribute.startswith("_")]
        offered = [attribute for attribute in public if isinstance(getattr(module, attribute), agents or ())]
        matches = get_close_matches(name, offered or public, 1)
        guess = f" (did you mean {matches[0]!r}?)" if matches else ""
        its_agents = f"; its agents: {', '.join(offered)}" if offered else ""
        path = getattr(module, "__file__", None) or "the interpreter itself"
        raise ConfigError(
            f"{module_name!r} has no {name!r}{guess}{its_agents}; it has {', '.join(public) or 'nothing'} "
            f"(found in {path})"
        ) from error


def _failing_line(error: BaseException) -> str:
    """Return where an error of an import is to be mended: the innermost line that is not of an installed package."""
    if isinstance(error, SyntaxError):
        return f" (at {error.filename}:{error.lineno})"
    others = ("<", str(Path(__file__).parents[1]), *map(get_path, ("stdlib", "purelib", "platlib")))
    for frame in reversed(extract_tb(error.__traceback__)):
        if not frame.filename.startswith(others):
            return f" (at {frame.filename}:{frame.lineno})"
    return ""
