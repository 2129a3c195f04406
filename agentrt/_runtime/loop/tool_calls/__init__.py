"""The tool calls of a round: decided on, run, and turned into events."""
