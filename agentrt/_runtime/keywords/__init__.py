"""Wrong guesses are answered with what to write: decorators for classes and functions."""

from agentrt._runtime.keywords.attributes import compute_missing, suggest_attributes
from agentrt._runtime.keywords.moved_names import find_elsewhere, import_when_read, keep_old_modules, keep_old_names
from agentrt._runtime.keywords.old_keywords import accept_old_keywords
from agentrt._runtime.keywords.suggestions import (
    hide_unknown,
    suggest_arguments,
    suggest_keywords,
    unknown_keywords,
    wrong_call,
)

__all__ = [
    "accept_old_keywords",
    "compute_missing",
    "find_elsewhere",
    "hide_unknown",
    "import_when_read",
    "keep_old_modules",
    "keep_old_names",
    "suggest_arguments",
    "suggest_attributes",
    "suggest_keywords",
    "unknown_keywords",
    "wrong_call",
]
