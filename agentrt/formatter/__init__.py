"""Formatters: a conversation in the shape of one provider's API."""

from agentrt.formatter.anthropic import format_anthropic
from agentrt.formatter.base import Formatter
from agentrt.formatter.multi_agent import multi_agent
from agentrt.formatter.openai import format_openai

__all__ = ["Formatter", "format_anthropic", "format_openai", "multi_agent"]
