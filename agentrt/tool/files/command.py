"""The tool that runs a command in the sandbox of the workspace."""

import shlex
from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated

from pydantic import Field

from agentrt.errors import ToolError
from agentrt.message import TextBlock
from agentrt.tool.base import ToolBase
from agentrt.tool.context import ToolContext
from agentrt.tool.files.base import workspace_of
from agentrt.types import JSONObject, PermissionBehavior, PermissionContext, PermissionDecision, ToolResponse

_LONGEST_COMMAND = 600  # seconds


class RunCommandTool(ToolBase):
    """Run a program on the files of the workspace, and return its exit code and its output."""

    name = "run_command"
    is_concurrency_safe = False
    timeout = _LONGEST_COMMAND + 60.0  # after the command's own, so that its output is kept
    read_only: Mapping[str, str] = MappingProxyType({})
    """Folders of this machine that programs may read, by the absolute paths at which they find them."""

    max_output = 250_000  # two streams of 100,000 characters, and what is said of them

    async def call(
        self,
        argv: Annotated[list[str], Field(min_length=1)],
        context: ToolContext,
        cwd: str = "",
        timeout: Annotated[float, Field(gt=0, le=_LONGEST_COMMAND)] = 60.0,  # noqa: ASYNC109  # of the command
    ) -> ToolResponse:
        """Run the program in the sandbox of the workspace.

        Args:
            argv: The program and its arguments, one by one, such as ["git", "log", "--oneline"]; no shell reads them.
            cwd: The folder to start it in.
            timeout: After how many seconds it is stopped.
        """
        result = await workspace_of(context).run(argv, cwd=cwd, timeout=timeout, read_only=self.read_only)
        outcome = f"stopped after {timeout:g} seconds" if result.timed_out else f"exit code {result.exit_code}"
        streams = [("stdout", result.stdout), ("stderr", result.stderr)]
        parts = [outcome, *(f"--- {name}\n{text.rstrip()}" for name, text in streams if text.strip())]
        facts = {"exit_code": result.exit_code, "timed_out": result.timed_out, "files": list(result.files)}
        return ToolResponse([TextBlock("\n".join(parts))], metadata=facts)

    def check_permissions(self, tool_input: JSONObject, context: PermissionContext) -> PermissionDecision:
        """Ask, unless an allow rule answers that."""
        return PermissionDecision(PermissionBehavior.ASK, f"{self.name} runs a program", f"tool {self.name}")

    def permission_subject(self, tool_input: JSONObject) -> str:
        """Return the arguments as one line that a shell would read as these arguments."""
        argv = tool_input.get("argv")
        if not isinstance(argv, list) or not all(isinstance(argument, str) for argument in argv):
            raise ToolError("argv must be a list of strings")
        return shlex.join(argv)
