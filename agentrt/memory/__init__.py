"""Memories: the messages that an agent of one's own has taken in."""

from agentrt.memory.base import MemoryBase
from agentrt.memory.in_memory import InMemoryMemory

__all__ = ["InMemoryMemory", "MemoryBase"]
