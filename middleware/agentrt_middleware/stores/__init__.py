"""Where middlewares keep data outside of the process: how Redis is reached, and what happens while a store fails."""

__all__: list[str] = []
