"""Turning the pieces that a model streams into events, and events into a message."""

__all__: list[str] = []
