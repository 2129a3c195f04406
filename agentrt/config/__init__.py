"""Agents from files: their model, tools and layers as data, in TOML, JSON or YAML."""

from agentrt.config.file import AgentConfig, load_agent

__all__ = ["AgentConfig", "load_agent"]
