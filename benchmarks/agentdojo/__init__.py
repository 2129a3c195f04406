"""AgentDojo's suites, driven through agentrt; see README.md beside this file."""
