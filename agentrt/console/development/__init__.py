"""The commands for writing an agent: `agentrt new` and `agentrt dev`."""
