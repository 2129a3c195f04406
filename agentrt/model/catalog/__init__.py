"""What is known of models by their names: limits, inputs, abilities and prices."""

__all__: list[str] = []
