"""Layers around calls of tools; the public names are in `agentrt.middleware`."""
