"""Limits on how often and how much a model is asked; the public names are in `agentrt.middleware`."""

__all__: list[str] = []
