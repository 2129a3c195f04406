"""Rate limits of model calls; the public names are in `agentrt.middleware`."""
