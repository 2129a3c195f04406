"""The middlewares of an agent: those that it is given, as its users see them, and those inside of these."""

from typing import Any

from agentrt._runtime.keywords.attributes import suggest_attributes
from agentrt.hooks import MiddlewareBase

CHAINS_ARE_BUILT = (
    "the chains of an agent are built once: write agent = agent.with_middlewares([*agent.middlewares, layer])"
)


@suggest_attributes(
    append=CHAINS_ARE_BUILT,
    clear=CHAINS_ARE_BUILT,
    extend=CHAINS_ARE_BUILT,
    insert=CHAINS_ARE_BUILT,
    pop=CHAINS_ARE_BUILT,
    remove=CHAINS_ARE_BUILT,
)
class Layers(tuple[MiddlewareBase, ...]):
    """A tuple whose errors say how to make an agent with other middlewares."""

    __slots__ = ()


class InnerLayers:
    """The layers that stand inside of all others, next to the cores; an agent or its class has them.

    They may be replaced at any time. An agent asks for its layers at each entry between replies, and compiles its
    chains again for another tuple; a reply in progress keeps those that it began with.
    """

    __slots__ = ("_layers",)

    def __init__(self, layers: tuple[MiddlewareBase, ...] = ()) -> None:
        self._layers = layers

    def of(self, agent: Any, compiled: tuple[MiddlewareBase, ...]) -> tuple[MiddlewareBase, ...]:
        """Return the layers of an agent, outermost first: `compiled`, that of its chains, as long as they are right."""
        return self._layers
