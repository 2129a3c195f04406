"""The tools by which a model looks after its own background calls."""
