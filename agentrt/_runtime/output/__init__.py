"""Messages on standard output, in queues and as audio."""

__all__: list[str] = []
