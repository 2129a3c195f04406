"""Guardrails; the public names are in `agentrt.middleware`."""
