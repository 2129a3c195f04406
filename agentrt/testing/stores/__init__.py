"""Checks of state stores."""

__all__: list[str] = []
