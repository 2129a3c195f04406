"""Runs with a fault at every suspension of a conversation."""
