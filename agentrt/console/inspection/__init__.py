"""The commands that look at agents and sessions."""
