"""The result of the compiler: the layers of each hook, and the entries into their chains."""

import warnings
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from agentrt._runtime.chain.check import location_of
from agentrt._runtime.chain.spec import Function, HookSpec, Middleware
from agentrt._runtime.chain.terms.entries import Limit, Terms
from agentrt.errors import ChainError


@dataclass(frozen=True, slots=True)
class Layer:
    """One middleware in the chain of one hook.

    `enter` is what the chain calls: the hook itself, where the middleware has no terms.
    """

    middleware: Middleware
    hook: Function
    key: str
    enter: Function
    limit: Limit | None = None

    @property
    def where(self) -> str:
        """The "file:line" of its hook."""
        return location_of(self.hook)

    @property
    def name(self) -> str:
        """The middleware's class, and its key where that says more."""
        cls = type(self.middleware).__name__
        return cls if self.key == cls else f"{cls} ({self.key!r})"


class StatedTerms(Protocol):
    """The terms of the layers, and the entries that state them, by the `id()` of the layer."""

    @property
    def by_layer(self) -> Mapping[int, Terms]: ...
    @property
    def entries(self) -> Mapping[int, object]: ...

    def holds(self, agent: object, layer: object) -> bool:
        """Say whether all conditions of the layer hold for the agent."""


class Chains:
    """The compiled entries, one attribute per hook, and what they were compiled from. Frozen once built.

    `lifespans` are the middlewares that have one, outermost first.
    """

    table: tuple[HookSpec, ...]
    layers: Mapping[str, tuple[Layer, ...]]
    middlewares: tuple[Middleware, ...]
    terms: StatedTerms
    lifespans: tuple[Any, ...]
    _keys: Mapping[int, str]
    _keyed_by_order: set[int]

    def __init__(
        self,
        table: tuple[HookSpec, ...],
        entries: Mapping[str, Function],
        layers: Mapping[str, tuple[Layer, ...]],
        middlewares: tuple[Middleware, ...],
        keys: Mapping[int, str],
        terms: StatedTerms,
        lifespans: tuple[Any, ...] = (),
    ) -> None:
        unkeyed = [middleware for middleware in middlewares if middleware.key is None]
        keyed_by_order: set[int] = set()
        if "#" in "".join(keys.values()):  # a number says that another has the key that this one would have
            names = {id(middleware): keys[id(middleware)].partition("#")[0] for middleware in unkeyed}
            count_by_name = Counter(names.values())
            keyed_by_order = {id(middleware) for middleware in unkeyed if count_by_name[names[id(middleware)]] > 1}
        # Through `__dict__`, since nothing can be set; and so an entry is an attribute of the instance, found at once.
        self.__dict__.update(
            entries,
            table=table,
            layers=layers,
            middlewares=middlewares,
            terms=terms,
            lifespans=lifespans,
            _keys=keys,
            _keyed_by_order=keyed_by_order,
        )

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"chains are frozen: {name!r} cannot be set; build another agent instead")

    def name_of(self, middleware: object) -> str:
        """Return the middleware's key, for display.

        Raises `ChainError` for a middleware that is not in these chains.
        """
        key = self._keys.get(id(middleware))
        if key is None:
            raise ChainError(
                f"{type(middleware).__name__} is not among this agent's middlewares, so it keeps no data here"
            )
        return key

    def key_of(self, middleware: object) -> str:
        """Return the key under which the middleware's own data is kept.

        Warns when only the list order tells two middlewares of one class apart, since a changed list would then give
        one the data of the other. Raises `ChainError` for a middleware that is not in these chains.
        """
        key = self.name_of(middleware)
        if id(middleware) in self._keyed_by_order:
            warnings.warn(
                f"two {type(middleware).__name__} middlewares store data under keys that depend on their order: "
                f"set `key` on each",
                UserWarning,
                stacklevel=3,
            )
        return key
