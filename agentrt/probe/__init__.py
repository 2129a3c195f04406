"""How long each layer takes: `LayerTimes`, an observer that adds up the times of the layers of each reply."""

from agentrt.probe.layer_times import LayerTime, LayerTimes

__all__ = ["LayerTime", "LayerTimes"]
