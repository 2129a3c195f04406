"""Cached answers of models and results of tools; the public names are in `agentrt.middleware`."""
