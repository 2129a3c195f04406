"""JSON schemas: checks of schemas, and validation of values."""

from agentrt._runtime.schema.parts import SchemaError
from agentrt._runtime.schema.validator import Validator

__all__ = ["SchemaError", "Validator"]
