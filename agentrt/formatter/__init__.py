"""Formatters: a conversation in the shape of one provider's API."""

from agentrt.formatter.anthropic import format_anthropic
from agentrt.formatter.base import Formatter
from agentrt.formatter.bedrock import format_bedrock
from agentrt.formatter.gemini import format_gemini
from agentrt.formatter.multi_agent import multi_agent
from agentrt.formatter.ollama import format_ollama
from agentrt.formatter.openai import format_openai
from agentrt.formatter.openai_responses import format_openai_responses

__all__ = [
    "Formatter",
    "format_anthropic",
    "format_bedrock",
    "format_gemini",
    "format_ollama",
    "format_openai",
    "format_openai_responses",
    "multi_agent",
]
