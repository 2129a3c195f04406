"""The tokens of a call, estimated, and the capabilities that it needs, for middlewares that judge calls."""

from agentrt._runtime.model_interface.capabilities import CAPABILITIES, needs_of
from agentrt._runtime.model_interface.estimate import (
    CHARACTERS_PER_TOKEN,
    CountTokens,
    TextLength,
    characters_of,
    estimated_usage,
    text_length,
)

__all__ = [
    "CAPABILITIES",
    "CHARACTERS_PER_TOKEN",
    "CountTokens",
    "TextLength",
    "characters_of",
    "estimated_usage",
    "needs_of",
    "text_length",
]
