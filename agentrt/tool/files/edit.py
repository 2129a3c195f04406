"""Tools that write files."""

from agentrt.errors import ToolError
from agentrt.tool.context import ToolContext
from agentrt.tool.files.base import PathTool, workspace_of
from agentrt.types import JSONObject, PermissionBehavior, PermissionContext, PermissionDecision, PermissionMode


class _WritingTool(PathTool):
    """A tool that writes: it asks unless a rule, or the mode for edits, allows the path."""

    is_concurrency_safe = False

    def check_permissions(self, tool_input: JSONObject, context: PermissionContext) -> PermissionDecision:
        """Allow the call in the mode ACCEPT_EDITS, else leave it to the rules; without one, it is asked about."""
        if context.mode is PermissionMode.ACCEPT_EDITS and not self.ask:
            return PermissionDecision(PermissionBehavior.ALLOW, "", f"mode {context.mode}")
        return PermissionDecision(PermissionBehavior.ASK, f"{self.name} changes a file", f"tool {self.name}")


class WriteFileTool(_WritingTool):
    """Write a text file: a new one, or in the place of the old one; missing folders are created."""

    name = "write_file"

    async def call(self, path: str, content: str, context: ToolContext) -> str:
        """Write the file.

        Args:
            path: Where it is to be, such as "docs/plan.md".
            content: All of its text.
        """
        await workspace_of(context).write_text(path, content)
        return f"wrote {len(content):,} characters to {path}"


class EditFileTool(_WritingTool):
    """Replace text in a file; the old text must be in it exactly once."""

    name = "edit_file"

    async def call(self, path: str, old: str, new: str, context: ToolContext) -> str:
        """Write the file with the new text.

        Args:
            path: Where the file is.
            old: The text to replace, with enough of what is around it to be there once.
            new: The text to put in its place.
        """
        workspace = workspace_of(context)
        if not old:
            raise ToolError("the old text is empty: give the text to replace, or use write_file for a new file")
        text = await workspace.read_text(path)
        first = text.find(old)
        if first < 0:
            raise ToolError(f"{path!r:.200} does not have the old text: read the file, and give its text exactly")
        # Not by `count`, which leaves out those that overlap.
        if text.find(old, first + 1) >= 0:
            raise ToolError(f"{path!r:.200} has the old text more than once: give more of what is around it")
        await workspace.write_text(path, text[:first] + new + text[first + len(old) :])
        return f"replaced 1 place in {path}"
