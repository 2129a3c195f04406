"""The ways to an MCP server: a process that is started, and a URL; their modules load the SDK."""
