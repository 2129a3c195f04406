"""The middlewares of an agent, as its users see them."""

from agentrt.hooks import MiddlewareBase
from agentrt.keywords import suggest_attributes

__all__ = ["CHAINS_ARE_BUILT", "Layers"]

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
