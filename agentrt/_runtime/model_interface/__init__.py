"""The runtime's interface to chat models; `agentrt.model` has the models."""
