"""The tools that one request offers to a model, with those that layers have added to the agent's own."""

from agentrt.tool.base import ToolBase, call_plan_of, check_tool
from agentrt.types import JSONSchema

__all__ = ["OfferedTools", "as_offered_tools", "schema_of"]


class OfferedTools(list[JSONSchema]):
    """The schemas that a request offers, in a list that layers replace and never change.

    `runnable` are the schemas of the tools that the agent itself can run in this round, `None` if it runs none.
    `added` are the tools that layers have added to this request, by name, `None` while there are none.
    """

    # Defaults of the class, since one is made for each request and hardly ever gets more.
    runnable: list[JSONSchema] | None = None
    added: dict[str, ToolBase] | None = None

    def __reduce__(self) -> tuple[type[list[JSONSchema]], tuple[list[JSONSchema]]]:
        return list, (list(self),)  # a copy is a plain list: tools can be added to the request only


def as_offered_tools(value: object, offered_before: object) -> OfferedTools:
    """Return a list or tuple of schemas and tools as `OfferedTools`, among what the request offered before any layer.

    Raises `ValueError` for a schema whose tool the agent cannot run.
    """
    if value is not None and not isinstance(value, list | tuple):
        raise ValueError(f"tools must be a list of JSON schemas and ToolBase instances, not {value!r:.200}")
    before = offered_before if isinstance(offered_before, OfferedTools) else OfferedTools()
    # One dict for the whole request: a tool that one layer added stays runnable when another replaces the list.
    added = before.added = {} if before.added is None else before.added
    offered = OfferedTools()
    offered.runnable, offered.added = before.runnable, added
    known = None if before.runnable is None else {_schema_name(schema) for schema in before.runnable}
    names: set[str] = set()
    for tool in value or ():
        if isinstance(tool, ToolBase):
            check_tool(tool)
            if tool.is_hidden:
                raise ValueError(
                    f"{tool.name} is a hidden tool, which no model is offered: return it from list_tools() instead"
                )
            added[tool.name] = tool
        schema = schema_of(tool) if isinstance(tool, ToolBase) else tool
        name = _schema_name(schema)
        if name in names:
            raise ValueError(f"two tools are called {name!r}: leave one of them out, or rename it")
        if known is not None and name not in known and name not in added:
            raise ValueError(
                f"the schema {name!r} is of a tool that this agent cannot run in this round: put a ToolBase in its "
                f"place, such as FunctionTool(function), or register it with the toolkit and activate its group"
            )
        names.add(name)
        offered.append(schema)
    return offered


def schema_of(tool: ToolBase) -> JSONSchema:
    """Return the schema of a tool in OpenAI's form."""
    function = {"name": tool.name, "description": tool.description, "parameters": call_plan_of(tool).schema}
    return {"type": "function", "function": function}


def _schema_name(schema: object) -> str:
    function = schema.get("function") if isinstance(schema, dict) else None
    name = function.get("name") if isinstance(function, dict) else None
    if not isinstance(name, str):
        raise ValueError(
            f'a tool must be a ToolBase, or a JSON schema as in {{"type": "function", "function": {{"name": ...}}}}, '
            f"not {schema!r:.200}"
        )
    return name
