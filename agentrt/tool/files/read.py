"""Tools that read files and folders."""

from itertools import islice
from typing import Annotated

from pydantic import Field

from agentrt.errors import ToolError
from agentrt.tool.context import ToolContext
from agentrt.tool.files.base import PathTool, workspace_of

_LINES_AT_ONCE = 2_000
_NAMES_LISTED = 1_000


class ReadFileTool(PathTool):
    """Read a text file; a long one in parts."""

    name = "read_file"
    is_read_only = True

    async def call(
        self,
        path: str,
        context: ToolContext,
        first_line: Annotated[int, Field(ge=1)] = 1,
        max_lines: Annotated[int, Field(ge=1, le=_LINES_AT_ONCE)] = _LINES_AT_ONCE,
    ) -> str:
        """Return the lines.

        Args:
            path: Where it is, such as "docs/plan.md".
            first_line: The line to begin with; the first one is 1.
            max_lines: How many lines to read.
        """
        text = await workspace_of(context).read_text(path)
        # By line feeds alone, as editors count: `splitlines` also breaks lines at other characters.
        lines = text.split("\n")
        count = len(lines) - (not lines[-1])
        if first_line > max(1, count):
            raise ToolError(f"{path!r:.200} has {count:,} lines, and {first_line:,} is beyond them")
        part = lines[first_line - 1 : first_line - 1 + max_lines]
        last = first_line - 1 + len(part)
        if last >= count:
            return "\n".join(part)
        return "\n".join(part) + f"\n[... lines {first_line:,} to {last:,} of {count:,}: read on with first_line ...]"


class ListFilesTool(PathTool):
    """List the files and folders in a folder; the names of folders end with "/"."""

    name = "list_files"
    is_read_only = True

    async def call(self, context: ToolContext, path: str = "") -> str:
        """Return the names, one on each line.

        Args:
            path: The folder; without one, the folder that all paths begin in.
        """
        names = await workspace_of(context).list(path)
        lines = "\n".join(islice(names, _NAMES_LISTED)) or "(empty)"
        return f"{lines}\n[... and {len(names) - _NAMES_LISTED:,} more ...]" if len(names) > _NAMES_LISTED else lines
