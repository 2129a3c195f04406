"""The loop of a reply: rounds of asking the model and running its tool calls."""
