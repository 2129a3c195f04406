"""Agents: those of the runtime's loop, those that write their own reply, and the user."""

from importlib import import_module
from typing import TYPE_CHECKING

from agentrt.agent.agent import Agent
from agentrt.agent.base import AgentBase, ReActAgentBase
from agentrt.agent.delegation.agent_tool import AgentTool
from agentrt.agent.delegation.delegation import Delegation
from agentrt.agent.react.agent import ReActAgent
from agentrt.agent.subagent import (
    ContextBundle,
    DelegationContext,
    PermissionBundle,
    SubAgentBase,
    SubAgentSpec,
    SubAgentUnavailable,
    make_subagent_tool,
)
from agentrt.agent.user import UserAgent
from agentrt.conversation.inputs import AgentInput
from agentrt.conversation.reply_stream import ReplyStream, TextStream
from agentrt.conversation.run import Run
from agentrt.output.audio import AudioPlayer
from agentrt.output.queue import MessageQueue
from agentrt.terminal.user_input import TerminalUserInput, UserInputBase, UserInputData
from agentrt.types import ContextConfig, ReActConfig

__all__ = [
    "Agent",
    "AgentBase",
    "AgentInput",
    "AgentTool",
    "AudioPlayer",
    "ContextBundle",
    "ContextConfig",
    "Delegation",
    "DelegationContext",
    "MessageQueue",
    "PermissionBundle",
    "ReActAgent",
    "ReActAgentBase",
    "ReActConfig",
    "ReplyStream",
    "Run",
    "SubAgentBase",
    "SubAgentSpec",
    "SubAgentUnavailable",
    "TerminalUserInput",
    "TextStream",
    "UserAgent",
    "UserInputBase",
    "UserInputData",
    "make_subagent_tool",
]

if not TYPE_CHECKING:  # which would take any name

    def __getattr__(name: str) -> object:
        # Programs for AgentScope import it from here. It belongs to a room above, which is loaded only for them.
        if name == "StudioUserInput":
            return getattr(import_module("agentrt.serving"), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
