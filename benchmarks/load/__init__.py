"""Many users of one server: conversations, streams, questions that wait, and what the server takes of its machine."""

__all__: list[str] = []
