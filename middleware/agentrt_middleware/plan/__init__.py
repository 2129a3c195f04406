"""Plans and todo lists; the public names are in `agentrt.middleware`."""

__all__: list[str] = []
