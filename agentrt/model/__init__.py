"""Chat models: one provider, one file."""

from agentrt.model.anthropic import AnthropicChatModel
from agentrt.model.base import ChatModelBase, ModelResult
from agentrt.model.claude import ClaudeRules
from agentrt.model.openai import OpenAIChatModel, Quirks
from agentrt.model.presets import chat_model, default_model
from agentrt.model.remote.client import RemoteChatModel
from agentrt.model.remote.settings import ConnectionOptions, Timeouts
from agentrt.model.request_key import request_key
from agentrt.model.rules import DEFAULT_RULES, Rule, RulesChatModel
from agentrt.model.scripted import ScriptedCall, ScriptedChatModel, ScriptedResponse
from agentrt.model.wire import WireRecord
from agentrt.types import ChatResponse, ChatUsage

__all__ = [
    "DEFAULT_RULES",
    "AnthropicChatModel",
    "ChatModelBase",
    "ChatResponse",
    "ChatUsage",
    "ClaudeRules",
    "ConnectionOptions",
    "ModelResult",
    "OpenAIChatModel",
    "Quirks",
    "RemoteChatModel",
    "Rule",
    "RulesChatModel",
    "ScriptedCall",
    "ScriptedChatModel",
    "ScriptedResponse",
    "Timeouts",
    "WireRecord",
    "chat_model",
    "default_model",
    "request_key",
]
