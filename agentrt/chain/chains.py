"""What the compiler makes: the layers of each hook, and the entries into their chains."""

import warnings
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from agentrt.chain.spec import HookSpec
from agentrt.errors import ChainError

__all__ = ["Chains", "Layer"]


@dataclass(frozen=True, slots=True)
class Layer:
    """One middleware in the chain of one hook."""

    middleware: Any
    hook: Callable[..., Any]
    key: str
    where: str

    @property
    def name(self) -> str:
        """The middleware's class, and its key where that says more."""
        cls = type(self.middleware).__name__
        return cls if self.key == cls else f"{cls} ({self.key!r})"


class Chains:
    """The compiled entries, one attribute per hook, and what they were compiled from. Frozen once built."""

    table: tuple[HookSpec, ...]
    layers: Mapping[str, tuple[Layer, ...]]
    middlewares: tuple[Any, ...]
    _keys: Mapping[int, str]
    _doubtful: set[int]

    def __init__(
        self,
        table: tuple[HookSpec, ...],
        entries: Mapping[str, Callable[..., Any]],
        layers: Mapping[str, tuple[Layer, ...]],
        middlewares: tuple[Any, ...],
        keys: Mapping[int, str],
    ) -> None:
        same_class = Counter(type(each) for each in middlewares if each.key is None)
        doubtful = {id(each) for each in middlewares if each.key is None and same_class[type(each)] > 1}
        self.__dict__.update(
            entries, table=table, layers=layers, middlewares=middlewares, _keys=keys, _doubtful=doubtful
        )

    def __getattr__(self, name: str) -> Callable[..., Any]:
        raise AttributeError(f"no chain is compiled for {name!r}")

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"chains are frozen: {name!r} cannot be set; build another agent instead")

    def name_of(self, middleware: Any) -> str:
        """Return the middleware's key, for display."""
        return self._keys[id(middleware)]

    def key_of(self, middleware: Any) -> str:
        """Return the key under which the middleware's own data is kept.

        Warns when only the list order tells two middlewares of one class apart, since a changed list would then hand
        one the data of the other. Raises `ChainError` for a middleware that is not in these chains.
        """
        key = self._keys.get(id(middleware))
        if key is None:
            raise ChainError(
                f"{type(middleware).__name__} is not among this agent's middlewares, so it keeps no data here"
            )
        if id(middleware) in self._doubtful:
            warnings.warn(
                f"two {type(middleware).__name__} middlewares store data under keys that depend on their order: "
                f"set `key` on each",
                UserWarning,
                stacklevel=3,
            )
        return key
