"""Plans and todo lists; the public names are in `agentrt.middleware`."""
