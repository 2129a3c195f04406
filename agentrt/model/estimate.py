"""An estimate of the tokens of a call, for middlewares that count them."""

from agentrt._runtime.model_interface.estimate import (
    CHARACTERS_PER_TOKEN,
    CountTokens,
    TextLength,
    characters_of,
    estimated_usage,
    text_length,
)

__all__ = [
    "CHARACTERS_PER_TOKEN",
    "CountTokens",
    "TextLength",
    "characters_of",
    "estimated_usage",
    "text_length",
]
