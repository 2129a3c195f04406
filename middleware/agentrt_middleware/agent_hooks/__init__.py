"""The layer for the AGENT-HOOKS standard; its public name is in `agentrt.middleware`."""
