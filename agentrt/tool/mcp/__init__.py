"""Tools of MCP servers."""

from agentrt.tool.mcp.oauth import FinishedLogin, OAuth, OAuthClient, TokenStore
from agentrt.tool.mcp.offers import MCPPrompt, MCPResource
from agentrt.tool.mcp.toolset import MCPToolset

__all__ = ["FinishedLogin", "MCPPrompt", "MCPResource", "MCPToolset", "OAuth", "OAuthClient", "TokenStore"]
