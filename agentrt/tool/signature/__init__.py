"""From a function to the schema of its parameters, and to what checks the arguments that a model writes."""

from agentrt.tool.signature.callables import (
    bound_arguments,
    docstring_of,
    function_name,
    source_location,
    underlying,
)
from agentrt.tool.signature.parameters import Signature
from agentrt.tool.signature.reader import context_parameter, defaults_of, read_signature

__all__ = [
    "Signature",
    "bound_arguments",
    "context_parameter",
    "defaults_of",
    "docstring_of",
    "function_name",
    "read_signature",
    "source_location",
    "underlying",
]
