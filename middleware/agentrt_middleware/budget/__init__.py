"""Budgets of replies, conversations and owners."""

__all__: list[str] = []
