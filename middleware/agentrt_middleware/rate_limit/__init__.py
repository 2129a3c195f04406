"""The limits on how often and how much a model is asked; what is public of it is in `agentrt.middleware`."""

__all__: list[str] = []
