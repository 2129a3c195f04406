"""Wrong guesses are answered with what to write: decorators for classes and functions."""

from agentrt.keywords.attributes import compute_missing, suggest_attributes
from agentrt.keywords.suggestions import (
    hide_unknown,
    suggest_arguments,
    suggest_keywords,
    unknown_keywords,
    wrong_call,
)

__all__ = [
    "compute_missing",
    "hide_unknown",
    "suggest_arguments",
    "suggest_attributes",
    "suggest_keywords",
    "unknown_keywords",
    "wrong_call",
]
