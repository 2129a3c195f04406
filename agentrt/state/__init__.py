"""What survives a process, and where it is kept."""

from agentrt.state.state import AgentState, ReplyContext, ReplyOutcome
from agentrt.state.store import InMemoryStateStore, StateStore

__all__ = ["AgentState", "InMemoryStateStore", "ReplyContext", "ReplyOutcome", "StateStore"]
