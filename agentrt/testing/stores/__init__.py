"""Whether stores of states keep their promises."""

__all__: list[str] = []
