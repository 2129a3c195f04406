"""The inside of agentrt: no name in here is public, and each may change at any time."""
