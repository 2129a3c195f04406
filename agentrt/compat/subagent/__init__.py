"""The skeleton of sub-agents: agents that another agent calls as a tool, and that it gets one answer from."""

from agentrt.compat.subagent.base import SubAgentBase
from agentrt.compat.subagent.spec import PermissionBundle, SubAgentSpec
from agentrt.compat.subagent.tool import make_subagent_tool

__all__ = ["PermissionBundle", "SubAgentBase", "SubAgentSpec", "make_subagent_tool"]
