"""Stores in databases: what they have in common, and a file for each database."""

__all__: list[str] = []
