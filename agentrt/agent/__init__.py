"""Agents, and the loop of a reply."""

from agentrt.agent.agent import Agent
from agentrt.agent.audio import AudioPlayer
from agentrt.agent.base import AgentBase, ReActAgentBase
from agentrt.agent.config import ContextConfig, ReActConfig
from agentrt.agent.queue import MessageQueue
from agentrt.agent.react import ReActAgent
from agentrt.agent.run import Run
from agentrt.agent.stream import ReplyStream
from agentrt.agent.user import UserAgent
from agentrt.agent.user_input import TerminalUserInput, UserInputBase, UserInputData

__all__ = [
    "Agent",
    "AgentBase",
    "AudioPlayer",
    "ContextConfig",
    "MessageQueue",
    "ReActAgent",
    "ReActAgentBase",
    "ReActConfig",
    "ReplyStream",
    "Run",
    "TerminalUserInput",
    "UserAgent",
    "UserInputBase",
    "UserInputData",
]
