"""What a formatter is."""

from collections.abc import Callable, Sequence
from typing import Any

from agentrt.message import Msg

__all__ = ["Formatter"]

Formatter = Callable[[Sequence[Msg]], Any]
"""Turns a conversation into what a provider's API takes. Pure: it changes no message and needs no model."""
