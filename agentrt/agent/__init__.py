"""The agent and the loop of a reply."""

from agentrt.agent.agent import Agent
from agentrt.agent.config import ContextConfig, ReActConfig
from agentrt.agent.run import Run
from agentrt.agent.stream import ReplyStream

__all__ = ["Agent", "ContextConfig", "ReActConfig", "ReplyStream", "Run"]
