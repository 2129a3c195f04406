"""Agents that work for another agent: which layers they have of it, and what is theirs alone."""

__all__: list[str] = []
