"""Budgets: what replies, conversations and owners may spend."""

__all__: list[str] = []
