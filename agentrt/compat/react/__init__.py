"""The agent of 1.x: its options and its memory, over the runtime's loop; the public name is in `agentrt.agent`."""
