"""The rows of recorded runs, as the stores keep them; `agentrt.runs` writes and reads what they hold."""
