"""Known models, by their names: limits, inputs, abilities and prices."""
