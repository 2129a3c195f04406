"""Memories: the messages of a conversation, and long-term memories across conversations."""

from agentrt.memory.base import MemoryBase
from agentrt.memory.extractor import FactChanges, FactExtractor, ModelExtractor
from agentrt.memory.in_memory import InMemoryMemory
from agentrt.memory.long_term import LongTermMemory, LongTermMemoryBase, RetrievedText
from agentrt.memory.sqlite import SQLiteMemory

__all__ = [
    "FactChanges",
    "FactExtractor",
    "InMemoryMemory",
    "LongTermMemory",
    "LongTermMemoryBase",
    "MemoryBase",
    "ModelExtractor",
    "RetrievedText",
    "SQLiteMemory",
]
