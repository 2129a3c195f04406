"""The tool that stands for those of a server which lists none before the user has logged in."""

from typing import Protocol

from agentrt.errors import ToolError
from agentrt.tool.base import ToolBase
from agentrt.tool.context import ToolContext
from agentrt.tool.mcp.oauth.needed import LoginNeeded
from agentrt.tool.mcp.oauth.question import ask_to_log_in, owner_of_call, read_login_answer
from agentrt.tool.to_response import failure
from agentrt.types import ToolResponse


class _LoginServer(Protocol):
    """The part of its toolset that the tool uses."""

    name: str

    def check_open(self) -> None: ...
    async def list_for(self, owner: str) -> None: ...


class LoginTool(ToolBase):
    """Asks the user to log in, and has the toolset read the list of the server then."""

    is_resumable = True

    def __init__(self, server: _LoginServer, name: str) -> None:
        self._server, self.name = server, name
        self.description = (
            f"Log the user in at the MCP server {server.name!r}, which has more tools after that. Call this when a "
            f"task needs them."
        )

    async def call(self, context: ToolContext) -> ToolResponse | str:
        """Log the user in."""
        server, owner = self._server, owner_of_call(context)
        server.check_open()
        ended = read_login_answer(context, server.name, self.name)
        if ended is not None:
            return ended
        try:
            await server.list_for(owner)
        except LoginNeeded as login:
            return await ask_to_log_in(context, server.name, self.name, login)
        except ToolError as error:
            return failure(f"{self.name} failed: {error}.")
        return "The user is logged in. The tools of the server are available from now on."
