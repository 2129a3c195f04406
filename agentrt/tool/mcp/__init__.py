"""Tools of MCP servers."""

from agentrt.tool.mcp.toolset import MCPToolset

__all__ = ["MCPToolset"]
