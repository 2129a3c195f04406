"""Budgets of replies, conversations and owners."""
