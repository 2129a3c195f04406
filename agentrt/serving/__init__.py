"""Agents behind HTTP: sessions, replies that outlive their connections, and their events as server-sent events."""

from agentrt.errors import ConfigError

try:
    from agentrt.serving.acp import acp_agent
    from agentrt.serving.acp.command import EditorCommand
    from agentrt.serving.app import create_app
    from agentrt.serving.inputs.user_input import RemoteUserInput, StudioUserInput
    from agentrt.serving.limits import Limits
    from agentrt.serving.mcp import mcp_server
    from agentrt.serving.owners.auth import Authenticate, BearerTokens
    from agentrt.serving.owners.owner import Owner
except ModuleNotFoundError as error:
    if error.name == "starlette":
        raise ConfigError("agentrt.serving needs the extra 'serve': pip install \"agentrt[serve]\"") from error
    raise

__all__ = [
    "Authenticate",
    "BearerTokens",
    "EditorCommand",
    "Limits",
    "Owner",
    "RemoteUserInput",
    "StudioUserInput",
    "acp_agent",
    "create_app",
    "mcp_server",
]
