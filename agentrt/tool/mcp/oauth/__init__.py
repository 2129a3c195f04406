"""Logins at MCP servers."""

from agentrt.tool.mcp.oauth.settings import FinishedLogin, OAuth, OAuthClient
from agentrt.tool.mcp.oauth.token_store import TokenStore

__all__ = ["FinishedLogin", "OAuth", "OAuthClient", "TokenStore"]
