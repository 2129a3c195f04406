"""Chat models: one provider, one file."""

from agentrt._runtime.http.limits import Timeouts
from agentrt._runtime.model_interface.base import ChatModelBase, ModelResult
from agentrt._runtime.model_interface.batch import Batch, BatchRequest, BatchResult, BatchStatus
from agentrt._runtime.model_interface.capabilities import ModelCapabilities, ModelPrices, TokenPrices
from agentrt._runtime.model_interface.wire import WireRecord
from agentrt.model.anthropic import AnthropicChatModel
from agentrt.model.bedrock import BedrockChatModel
from agentrt.model.catalog.lookup import known_capabilities
from agentrt.model.catalog.prices import PublishedPrices
from agentrt.model.claude import ClaudeRules
from agentrt.model.cloud.aws import AWSAuth
from agentrt.model.cloud.google import GoogleAuth
from agentrt.model.gemini import GeminiChatModel
from agentrt.model.ollama import OllamaChatModel
from agentrt.model.openai import OpenAIChatModel, Quirks
from agentrt.model.openai_responses import OpenAIResponsesModel
from agentrt.model.presets import chat_model, default_model
from agentrt.model.remote.client import ModelOptions, RemoteChatModel
from agentrt.model.remote.settings import ConnectionOptions
from agentrt.model.request_key import RequestHandles, request_key
from agentrt.model.rules import DEFAULT_RULES, Rule, RulesChatModel
from agentrt.model.scripted import ScriptedCall, ScriptedChatModel, ScriptedResponse
from agentrt.types import ChatResponse, ChatUsage

__all__ = [
    "DEFAULT_RULES",
    "AWSAuth",
    "AnthropicChatModel",
    "Batch",
    "BatchRequest",
    "BatchResult",
    "BatchStatus",
    "BedrockChatModel",
    "ChatModelBase",
    "ChatResponse",
    "ChatUsage",
    "ClaudeRules",
    "ConnectionOptions",
    "GeminiChatModel",
    "GoogleAuth",
    "ModelCapabilities",
    "ModelOptions",
    "ModelPrices",
    "ModelResult",
    "OllamaChatModel",
    "OpenAIChatModel",
    "OpenAIResponsesModel",
    "PublishedPrices",
    "Quirks",
    "RemoteChatModel",
    "RequestHandles",
    "Rule",
    "RulesChatModel",
    "ScriptedCall",
    "ScriptedChatModel",
    "ScriptedResponse",
    "Timeouts",
    "TokenPrices",
    "WireRecord",
    "chat_model",
    "default_model",
    "known_capabilities",
    "request_key",
]
