"""Long-term memory; the public name is in `agentrt.middleware`."""

__all__: list[str] = []
