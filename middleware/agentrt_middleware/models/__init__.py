"""Layers that choose the model of a call; the public names are in `agentrt.middleware`."""
