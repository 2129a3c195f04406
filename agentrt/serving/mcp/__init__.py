"""Agents as tools of MCP: over standard input and output, and at a route of the application.

The SDK takes a second to import, and needs the extra `mcp`, so it is imported when it is first used.
"""

from typing import Any

from agentrt.errors import ConfigError
from agentrt.runner.base import RunnerBase


def mcp_server(runner: RunnerBase) -> Any:
    """Return a `mcp.server.Server` whose tool `ask` is the runner's agent, for one connection of any transport.

    Needs the extra `mcp`. The runner must be open and work as long as the server is used. The agent's `description`
    tells models what it is for. Each connection needs a server of its own.
    """
    if not isinstance(runner, RunnerBase):
        raise ConfigError(f"mcp_server() takes a Runner, not {runner!r:.200}: write Runner(agent, store)")
    try:
        from agentrt.serving.mcp.server import Caller, make_server
        from agentrt.serving.owners.owner import Owner
    except ModuleNotFoundError as error:
        if error.name != "mcp":
            raise
        raise ConfigError("mcp_server() needs the extra 'mcp': pip install \"agentrt[mcp]\"") from error
    return make_server(Caller(Owner(None), {runner.agent.name: runner}))
