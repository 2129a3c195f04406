"""From the pieces that a model streams to events, and from events to the message."""

__all__: list[str] = []
