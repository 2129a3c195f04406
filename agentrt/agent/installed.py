"""Layers that installed distributions offer, as entry points of the group `agentrt.layers`."""

import sys
from collections.abc import Iterable, Mapping
from functools import cache
from operator import attrgetter
from typing import NamedTuple

_ENTRY_POINTS = "agentrt.layers"
_OWN_CODE = {"__main__", "agentrt", "agentrt_middleware"}


class InstalledLayer(NamedTuple):
    """A layer that a distribution offers under a name. It is loaded, and takes part, only where it is named."""

    name: str
    target: str
    """The class, as "module:Class"."""
    distribution: str
    version: str


def installed_layers() -> list[InstalledLayer]:
    """Return the layers that installed distributions offer, by name; none of them is loaded.

    A distribution offers one by an entry point of the group `agentrt.layers`. Two may offer the same name: a
    configuration then has to name the class.
    """
    from importlib.metadata import entry_points  # which loads a parser of e-mails

    return sorted(
        InstalledLayer(point.name, point.value, point.dist.name, point.dist.version)
        for point in entry_points(group=_ENTRY_POINTS)
        if point.dist is not None
    )


def packages_of(layers: Iterable[object]) -> Mapping[int, str]:
    """Return the distribution and version of those layers that one offers, by their `id`."""
    foreign = [layer for layer in layers if type(layer).__module__.partition(".")[0] not in _OWN_CODE]
    if not foreign:
        return {}
    installed = _installed_on(tuple(sys.path))
    packages = {_loaded_class(layer.target): f"{layer.distribution} {layer.version}" for layer in installed}
    return {id(layer): packages[type(layer)] for layer in foreign if type(layer) in packages}


@cache
def _installed_on(_: tuple[str, ...]) -> list[InstalledLayer]:
    # Once per path: it reads the files of all distributions, in tens of milliseconds, and a recorder explains agents.
    return installed_layers()


def _loaded_class(target: str) -> object:
    """Return the class of an entry point if its module has been loaded, and else `None`."""
    module, _, name = target.partition(":")
    try:
        return attrgetter(name.strip())(sys.modules[module.strip()])
    except (KeyError, AttributeError):
        return None
