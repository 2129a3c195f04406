"""The base class of tools that work on a path of a workspace."""

from agentrt.errors import ToolError
from agentrt.tool.base import ToolBase
from agentrt.tool.context import ToolContext
from agentrt.types import JSONObject
from agentrt.workspace import FileSystemBase
from agentrt.workspace.path import parts_of


class PathTool(ToolBase):
    """A tool with an argument `path`, which is the subject of permission rules."""

    def permission_subject(self, tool_input: JSONObject) -> str:
        """Return the path as rules see it: "docs/a.md", whether the model wrote "./docs//a.md" or that."""
        # Raises for a path that could lead out, so that no allow rule covers it, and every other rule does.
        return "/".join(parts_of(tool_input.get("path", ""), "the workspace"))


def workspace_of(context: ToolContext) -> FileSystemBase:
    """Return the workspace of the agent whose call this is."""
    if context.workspace is None:
        raise ToolError("this agent has no files: its program must set Agent(workspace=LocalWorkspace(folder))")
    return context.workspace
