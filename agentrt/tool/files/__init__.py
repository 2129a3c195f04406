"""Tools for the files and the commands of a workspace."""

from agentrt.tool.base import ToolBase
from agentrt.tool.files.command import RunCommandTool
from agentrt.tool.files.edit import EditFileTool, WriteFileTool
from agentrt.tool.files.find import GlobFilesTool, SearchFilesTool
from agentrt.tool.files.read import ListFilesTool, ReadFileTool


def workspace_tools(*, write: bool = False, run: bool = False) -> list[ToolBase]:
    """Return tools for the workspace of the agent that uses them, which for a sub-agent is its own namespace.

    `read_file`, `list_files`, `glob_files` and `search_files` are read-only, so they run in every mode. With `write`
    there are `write_file` and `edit_file` too, and with `run` there is `run_command`, for a workspace with a sandbox:
    each of these asks unless a permission rule allows the call. Rules for them are about the path, normalised, and for
    `run_command` about the arguments as `shlex.join` writes them.
    """
    tools: list[ToolBase] = [ReadFileTool(), ListFilesTool(), GlobFilesTool(), SearchFilesTool()]
    if write:
        tools += [WriteFileTool(), EditFileTool()]
    if run:
        tools.append(RunCommandTool())
    return tools
