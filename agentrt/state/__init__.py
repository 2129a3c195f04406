"""The state of a conversation, and the stores that keep it."""

from agentrt.state.changes import StateChange, mark_saved, unsaved_changes
from agentrt.state.database.postgres import PostgresStore
from agentrt.state.database.redis import RedisStore
from agentrt.state.database.sqlite import SQLiteStore
from agentrt.state.file_store import FileStateStore
from agentrt.state.memory_store import InMemoryStateStore
from agentrt.state.sessions import (
    EPHEMERAL,
    SessionInfo,
    SessionPage,
    SessionStatus,
    check_labels,
    check_session_id,
    fork_state,
)
from agentrt.state.state import (
    AgentState,
    CallDecision,
    HiddenCall,
    InnerCall,
    ReplyContext,
    ReplyOutcome,
    StructuredTask,
    TaskRecord,
    Waits,
    join_state,
    split_state,
    state_from_json,
    state_to_json,
)
from agentrt.state.store import SessionStore, SessionStoreBase, StateStore, check_revision, next_revision
from agentrt.state.store_url import state_store

__all__ = [
    "EPHEMERAL",
    "AgentState",
    "CallDecision",
    "FileStateStore",
    "HiddenCall",
    "InMemoryStateStore",
    "InnerCall",
    "PostgresStore",
    "RedisStore",
    "ReplyContext",
    "ReplyOutcome",
    "SQLiteStore",
    "SessionInfo",
    "SessionPage",
    "SessionStatus",
    "SessionStore",
    "SessionStoreBase",
    "StateChange",
    "StateStore",
    "StructuredTask",
    "TaskRecord",
    "Waits",
    "check_labels",
    "check_revision",
    "check_session_id",
    "fork_state",
    "join_state",
    "mark_saved",
    "next_revision",
    "split_state",
    "state_from_json",
    "state_store",
    "state_to_json",
    "unsaved_changes",
]
