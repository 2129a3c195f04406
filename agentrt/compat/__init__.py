"""The ways of 1.x, over public hooks and middlewares; `agentrt.agent` and `agentrt.session` hand out the names."""

__all__: list[str] = []
