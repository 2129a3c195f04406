"""What a formatter is, and what it makes."""

from collections.abc import Callable, Sequence
from typing import Any

from agentrt.message import Msg

__all__ = ["Formatter", "JSONObject"]

Formatter = Callable[[Sequence[Msg]], Any]
"""Turns a conversation into what a provider's API takes. Pure: it changes no message and needs no model."""

JSONObject = dict[str, Any]
"""A part of a request, whose fields are those of the provider's API."""
