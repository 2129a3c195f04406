"""The usage of model calls, and its cost."""

__all__: list[str] = []
