"""Events that layers emit while they wait.

Such an event can only be seen at once when the waiting is done in another task than its reader's. That is done for the
hooks that have a layer whose class says `emits = True`.
"""

from agentrt._runtime.chain import Chains

__all__ = ["emitting_hooks"]


def emitting_hooks(chains: Chains) -> frozenset[str]:
    """Return the hooks that have a layer of a class which says that it emits events."""
    return frozenset(hook for hook, layers in chains.layers.items() for layer in layers if layer.middleware.emits)
