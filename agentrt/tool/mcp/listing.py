"""Which of the tools that a server lists can be used, and under which names."""

import logging
from collections.abc import Sequence
from typing import Any

from mcp_types import Tool as ServerTool

from agentrt._runtime.schema.parts import SchemaError
from agentrt.errors import ToolConfigError
from agentrt.tool.base import ToolBase, check_tool
from agentrt.tool.mcp.text import clean_text, has_hidden_characters
from agentrt.tool.mcp.tool import MCPTool

_logger = logging.getLogger("agentrt")


def make_tools(toolset: Any, listed: Sequence[ServerTool], *, is_first: bool) -> tuple[ToolBase, ...]:
    """Return the chosen tools of a server's list; those that cannot be used are left out with a warning.

    In the first list, a name that is too long or used twice raises `ToolConfigError`, and so does a chosen tool that
    the server does not have: at that time the caller can still change the options.
    """
    names = [tool.name for tool in listed]
    missing = toolset.missing(names)
    if missing and is_first:
        listing = ", ".join(clean_text(name, 64) for name in names[:50]) or "none"
        raise ToolConfigError(f"the MCP server {toolset.name!r} has no tool {missing[0]!r}: its tools are {listing}")
    tools: dict[str, ToolBase] = {}
    for listed_tool in listed:
        if not toolset.is_chosen(listed_tool.name):
            continue
        options = toolset.options_of(listed_tool.name)
        problem = _problem_of_name(toolset.name, listed_tool.name, options["name"], tools)
        if problem is not None and is_first:
            raise ToolConfigError(problem)
        # Only this tool is left out: the others work without it.
        try:
            if problem is not None:
                raise SchemaError(problem)
            tool = MCPTool(toolset, listed_tool, **options)
            check_tool(tool)
        except SchemaError as refused:
            name = clean_text(listed_tool.name, 64)
            _logger.warning("the tool %r of the MCP server %r is left out: %s", name, toolset.name, refused)
        else:
            tools[tool.name] = tool
    return tuple(tools.values())


def _problem_of_name(server: str, listed: str, name: str, others: dict[str, ToolBase]) -> str | None:
    where = f"the tool {clean_text(listed, 128)!r} of the MCP server {server!r}"
    if not listed or has_hidden_characters(listed):
        return f"{where} has hidden characters in its name, or none at all"
    if len(name) > 64:
        return (
            f"{where} would be called {name!r:.140}, which has {len(name)} characters, and providers take 64: give the "
            f"toolset a shorter name or prefix=..., or leave the tool out with tools=[...]"
        )
    if name in others:
        return f"{where} would be called {name!r}, like another of its tools: leave one of them out with tools=[...]"
    return None
