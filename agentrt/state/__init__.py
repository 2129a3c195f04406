"""What survives a process, and where it is kept."""

from agentrt.state.file_store import FileStateStore
from agentrt.state.state import AgentState, CallDecision, InnerCall, ReplyContext, ReplyOutcome, StructuredTask, Waits
from agentrt.state.store import InMemoryStateStore, StateStore

__all__ = [
    "AgentState",
    "CallDecision",
    "FileStateStore",
    "InMemoryStateStore",
    "InnerCall",
    "ReplyContext",
    "ReplyOutcome",
    "StateStore",
    "StructuredTask",
    "Waits",
]
