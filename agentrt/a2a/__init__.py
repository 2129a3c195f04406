"""Agents that are reached by A2A, with the same chains, limits and promises as agents that run here."""

from agentrt.a2a.agent import A2AAgent

__all__ = ["A2AAgent"]
