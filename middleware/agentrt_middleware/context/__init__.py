"""Layers that keep requests short; the public names are in `agentrt.middleware`."""
