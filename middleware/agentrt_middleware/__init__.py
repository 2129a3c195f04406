"""The middlewares that ship with agentrt, one file each; import them from `agentrt.middleware`."""
