"""What calls of models use, and what that costs."""

__all__: list[str] = []
