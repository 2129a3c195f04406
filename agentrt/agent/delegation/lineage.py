"""For which agents another one works, as a tool of a tool of theirs."""

from collections.abc import Iterable
from typing import Any, NamedTuple, Protocol

from agentrt.hooks import MiddlewareBase


class Relative(Protocol):
    """The part of a related agent, supervisor or sub-agent, that is used here."""

    id: str
    name: str

    @property
    def middlewares(self) -> tuple[MiddlewareBase, ...]: ...
    @property
    def lineage(self) -> "Lineage": ...


class Lineage(NamedTuple):
    """The agents that an agent works for, outermost first, and which of its middlewares it has of them."""

    ancestors: tuple[Any, ...] = ()
    inherited: tuple[MiddlewareBase, ...] = ()
    origins: tuple[str, ...] = ()
    """The name of the agent that each of them was given to."""

    def names_by_id(self) -> dict[int, str]:
        """Return the names of the agents that the inherited layers come from, by the `id()` of the layer."""
        return dict(zip(map(id, self.inherited), self.origins, strict=True))

    def is_inherited(self, middleware: object) -> bool:
        """Say whether the middleware comes from an ancestor."""
        return any(inherited is middleware for inherited in self.inherited)

    @classmethod
    def of_child(
        cls, parent: Relative, own: Iterable[MiddlewareBase], middlewares: Iterable[MiddlewareBase]
    ) -> "Lineage":
        """Return the lineage of an agent with these middlewares; those in `own` are not inherited."""
        # One that both were given is the agent's own: it brings its tools.
        known, of_parent = set(map(id, own)), set(map(id, parent.middlewares))
        inherited = [one for one in middlewares if id(one) in of_parent and id(one) not in known]
        above = parent.lineage.names_by_id()
        origins = tuple(above.get(id(one), parent.name) for one in inherited)
        return cls((*parent.lineage.ancestors, parent), tuple(inherited), origins)


NO_PARENT = Lineage()
