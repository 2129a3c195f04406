"""Logins at MCP servers."""
