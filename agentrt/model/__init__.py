"""Chat models: one provider, one file."""

from agentrt.model.base import ChatModelBase, ModelResult
from agentrt.model.rules import DEFAULT_RULES, Rule, RulesChatModel
from agentrt.model.scripted import ScriptedCall, ScriptedChatModel, ScriptedResponse
from agentrt.types import ChatResponse, ChatUsage

__all__ = [
    "DEFAULT_RULES",
    "ChatModelBase",
    "ChatResponse",
    "ChatUsage",
    "ModelResult",
    "Rule",
    "RulesChatModel",
    "ScriptedCall",
    "ScriptedChatModel",
    "ScriptedResponse",
]
