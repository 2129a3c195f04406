"""The parameters of a function, as a model sees them."""

from dataclasses import dataclass

from agentrt.tool.arguments import Parse
from agentrt.types import JSONObject, JSONSchema


@dataclass(slots=True)
class Signature:
    """A function's parameters, as a model sees them; `context_name` is the parameter for the `ToolContext`.

    `defaults` are those of the function's defaults that have a JSON form, by the names of the parameters; `aliases` are
    the names that the model sees, where the parameters have others.
    """

    schema: JSONSchema
    parse: Parse
    context_name: str | None
    defaults: JSONObject
    aliases: dict[str, str]
