"""The studio: a page to talk to agents, approve their tool calls, and inspect their runs and reports."""
