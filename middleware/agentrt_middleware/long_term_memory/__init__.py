"""Long-term memory; the public name is in `agentrt.middleware`."""
