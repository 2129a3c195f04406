"""Memories: the messages that a custom agent keeps."""

from agentrt.memory.base import MemoryBase
from agentrt.memory.in_memory import InMemoryMemory

__all__ = ["InMemoryMemory", "MemoryBase"]
