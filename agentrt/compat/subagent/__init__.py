"""The skeleton of sub-agents: agents that another agent calls as a tool, and that it gets one answer from."""
