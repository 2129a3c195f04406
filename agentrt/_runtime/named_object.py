"""Objects that are named as "module:name"."""

from difflib import get_close_matches
from importlib import import_module
from operator import attrgetter
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
    except Exception as error:  # the module may raise anything
        raise ConfigError(f"{spec!r} cannot be loaded: importing {module_name!r} failed: {error!r:.500}") from error
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
