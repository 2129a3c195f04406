"""JSON schemas: checks of schemas, and validation of values."""
