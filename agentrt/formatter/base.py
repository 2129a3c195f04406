"""The protocol of formatters."""

from collections.abc import Callable, Sequence
from typing import Any

from agentrt.message import Msg

Formatter = Callable[[Sequence[Msg]], Any]
"""Turns a conversation into the request format of a provider's API. Pure: it changes no message and needs no model."""
