"""Agents that work for another agent: which layers they have of it, what is theirs alone, and how they are asked."""
