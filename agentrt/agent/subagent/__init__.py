"""The skeleton of sub-agents: agents that another agent calls as a tool, and that it gets one answer from."""

from agentrt.agent.subagent.base import SubAgentBase
from agentrt.agent.subagent.spec import ContextBundle, DelegationContext, PermissionBundle, SubAgentSpec
from agentrt.agent.subagent.tool import make_subagent_tool
from agentrt.errors import SubAgentUnavailable

__all__ = [
    "ContextBundle",
    "DelegationContext",
    "PermissionBundle",
    "SubAgentBase",
    "SubAgentSpec",
    "SubAgentUnavailable",
    "make_subagent_tool",
]
