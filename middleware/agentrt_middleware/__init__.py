"""The middlewares that ship with agentrt, one file each; import them from `agentrt.middleware`."""

__all__: list[str] = []
