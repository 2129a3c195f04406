"""Answers of models and results of tools, kept; the public names are in `agentrt.middleware`."""

__all__: list[str] = []
