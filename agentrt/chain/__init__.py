"""Chains: middlewares compiled, once, into one callable per hook. Knows no agent, no model and no tool.

# The laws that this package keeps

A *layer* is one middleware's hook. The first middleware listed is outermost. A hook that no middleware overrides has no
chain: its entry *is* the core function. Whatever a layer opens is remembered by the one owner of the entry into the
chain and closed there, innermost first, in the task that closes, before control returns.

An *observer* sees what happens, and is in no chain: it stands where no layer can keep anything from it. A *probe* is
told when each layer gets control and gives it back.
"""

from agentrt.chain.chains import Chains, Layer
from agentrt.chain.compile import compile_chains
from agentrt.chain.explain import explain
from agentrt.chain.probe import LayerCall, LayerOutcome, Probe
from agentrt.chain.spec import HookSpec, Notify, ObservableCore, Shape

__all__ = [
    "Chains",
    "HookSpec",
    "Layer",
    "LayerCall",
    "LayerOutcome",
    "Notify",
    "ObservableCore",
    "Probe",
    "Shape",
    "compile_chains",
    "explain",
]
