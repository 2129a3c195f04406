"""The commands that inspect agents and sessions."""
