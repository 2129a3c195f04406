"""The calls of layers, as the observers of `on_layer` see them."""

from agentrt._runtime.chain import LayerOutcome, LayerRecord

__all__ = ["LayerOutcome", "LayerRecord"]
