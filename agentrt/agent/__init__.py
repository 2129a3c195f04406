"""Agents: those of the runtime's loop, those that write their own reply, and the user."""

from typing import TYPE_CHECKING

from agentrt._runtime.conversation.inputs import AgentInput
from agentrt._runtime.conversation.reply_stream import PartialStream, ReplyStream, TextStream
from agentrt._runtime.conversation.run import Run
from agentrt._runtime.keywords.moved_names import import_when_read
from agentrt._runtime.output.audio import AudioPlayer
from agentrt._runtime.output.queue import MessageQueue
from agentrt._runtime.terminal.user_input import TerminalUserInput, UserInputBase, UserInputData
from agentrt.agent.agent import Agent
from agentrt.agent.base import AgentBase, ReActAgentBase
from agentrt.agent.delegation.agent_tool import AgentTool
from agentrt.agent.delegation.delegation import Delegation
from agentrt.agent.delegation.summary import ContextBundle, DelegationContext
from agentrt.agent.health import Health, PartHealth
from agentrt.agent.user import UserAgent
from agentrt.errors import SubAgentUnavailable
from agentrt.types import ContextConfig, ReActConfig

if TYPE_CHECKING:
    from agentrt.compat.react.agent import ReActAgent
    from agentrt.compat.subagent.base import SubAgentBase
    from agentrt.compat.subagent.spec import PermissionBundle, SubAgentSpec
    from agentrt.compat.subagent.tool import make_subagent_tool

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
    "Health",
    "MessageQueue",
    "PartHealth",
    "PartialStream",
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
    __getattr__ = import_when_read(
        __name__,
        {
            "agentrt.compat.react.agent": ["ReActAgent"],
            "agentrt.compat.subagent.base": ["SubAgentBase"],
            "agentrt.compat.subagent.spec": ["PermissionBundle", "SubAgentSpec"],
            "agentrt.compat.subagent.tool": ["make_subagent_tool"],
            "agentrt.serving": ["StudioUserInput"],  # programs for AgentScope import it from here
        },
    )
