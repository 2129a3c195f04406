"""How long each layer takes: the protocol of probes, which are notified of an agent's layers, and `LayerTimes`."""

from agentrt.chain import LayerCall, LayerOutcome, Probe
from agentrt.probe.layer_times import LayerTime, LayerTimes

__all__ = ["LayerCall", "LayerOutcome", "LayerTime", "LayerTimes", "Probe"]
