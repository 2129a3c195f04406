"""The tasks of one owner, those that changed last first: the replies of the owner's sessions."""

from contextlib import suppress
from typing import Any, NamedTuple, Self

from agentrt import AgentState
from agentrt._runtime.timestamp import parse_timestamp, timestamp_text
from agentrt.errors import SessionCorrupt
from agentrt.serving.a2a.failure import rpc_error
from agentrt.serving.a2a.request import TaskName, read_field, read_history_length
from agentrt.serving.a2a.status import state_of_reason
from agentrt.serving.a2a.task import read_task
from agentrt.serving.bodies import is_reply_id
from agentrt.serving.failure import ApiError
from agentrt.serving.owners.sessions import OwnerSessions
from agentrt.state import SessionInfo

_MAX_TASKS = 100
_DEFAULT_PAGE = 50
_MAX_CONTEXTS = 1_000
"""How many sessions are read for a list; with more of them, the client has to name one."""
_STATE_WORDS = "SUBMITTED WORKING COMPLETED FAILED CANCELED INPUT_REQUIRED REJECTED AUTH_REQUIRED UNSPECIFIED"
_STATES = [f"TASK_STATE_{word}" for word in _STATE_WORDS.split()]


class _Query(NamedTuple):
    """The parameters of a list."""

    context_id: str
    state: str
    size: int
    after: "_TaskPlace | None"
    since: int
    history_length: int | None
    has_artifacts: bool

    @classmethod
    def read(cls, params: dict[str, Any]) -> Self:
        """Return the parameters; raises `ApiError` that names the wrong one."""
        context_id, size = read_field(params, "contextId") or "", read_field(params, "pageSize")
        if not isinstance(context_id, str):
            raise rpc_error("INVALID_PARAMS", "'contextId' must be text")
        state = read_field(params, "status") or "TASK_STATE_UNSPECIFIED"
        if state not in _STATES:
            raise rpc_error("INVALID_PARAMS", "'status' must be the name of a state, such as 'TASK_STATE_WORKING'")
        # By its type, since a bool is an int too.
        size = _DEFAULT_PAGE if size is None else size
        if type(size) is not int or not 1 <= size <= _MAX_TASKS:
            raise rpc_error("INVALID_PARAMS", f"'pageSize' must be a whole number from 1 to {_MAX_TASKS}")
        try:
            since = parse_timestamp(str(read_field(params, "statusTimestampAfter") or "1970-01-01T00:00:00Z"))
        except ValueError:
            example = "'2026-01-31T12:00:00Z'"
            raise rpc_error("INVALID_PARAMS", f"'statusTimestampAfter' must be a time, such as {example}") from None
        return cls(
            context_id,
            "" if state.endswith("_UNSPECIFIED") else state,
            size,
            _TaskPlace.read(read_field(params, "pageToken") or ""),
            since,
            read_history_length(params),
            read_field(params, "includeArtifacts") is True,
        )

    async def find_sessions(self, sessions: OwnerSessions) -> list[SessionInfo]:
        """Return the sessions whose tasks are asked for; raises `ApiError` for too many."""
        if self.context_id:
            info = await sessions.find(self.context_id)
            return [] if info is None else [info]
        found: list[SessionInfo] = []
        cursor: str | None = None
        while True:
            page = await sessions.list_page(limit=_MAX_CONTEXTS, cursor=cursor)
            found += page.sessions
            cursor = page.cursor
            if len(found) > _MAX_CONTEXTS:
                raise rpc_error(
                    "UNSUPPORTED_OPERATION",
                    f"there are more than {_MAX_CONTEXTS:,} contexts: list the tasks of one, with 'contextId'",
                )
            if cursor is None:
                return found


class _TaskPlace(NamedTuple):
    """The place of a task in a list: by the time of its last change, and then by its id."""

    changed_at: int
    task_id: str

    @classmethod
    def read(cls, token: object) -> "_TaskPlace | None":
        """Return the place in the token of a page, `None` for the first page; raises `ApiError` for another token."""
        if token == "":
            return None
        changed_at, _, task_id = token.partition(".") if isinstance(token, str) else ("", "", "")
        if not (changed_at.isascii() and changed_at.isdigit() and len(changed_at) <= 20 and task_id):
            raise rpc_error("INVALID_PARAMS", "'pageToken' must be the 'nextPageToken' of the page before")
        return cls(int(changed_at), task_id)

    def __str__(self) -> str:
        return f"{self.changed_at}.{self.task_id}"


class _Entry(NamedTuple):
    """A task and its place in a list."""

    place: _TaskPlace
    name: TaskName
    state: str

    @classmethod
    async def read_all(cls, sessions: OwnerSessions, info: SessionInfo, state: AgentState) -> list[Self]:
        """Return the tasks of a session, as far as it still has their messages."""
        changes: dict[str, tuple[int, str]] = {}
        for message in state.context:
            is_reply = message.role == "assistant" and message.finished_reason and message.name == sessions.agent.name
            if is_reply and is_reply_id(message.id):
                changes[message.id] = message.created_at, state_of_reason(message.finished_reason or "completed")
        if changes and state.reply_context is None:
            # The session was saved last at the end of its last reply.
            last = next(reversed(changes))
            changes[last] = info.updated_at, changes[last][1]
        if state.reply_context is not None:
            is_waiting = sessions.agent.with_state(state).waiting() is not None
            word = "TASK_STATE_INPUT_REQUIRED" if is_waiting else "TASK_STATE_WORKING"
            changes[state.reply_context.reply_id] = info.updated_at, word
        for reply_id in await sessions.queued_replies(info.session_id):
            changes[reply_id] = info.updated_at, "TASK_STATE_WORKING"
        names = [(TaskName(info.session_id, reply_id), change) for reply_id, change in changes.items()]
        return [cls(_TaskPlace(changed_at, str(name)), name, word) for name, (changed_at, word) in names]


async def list_tasks(sessions: OwnerSessions, params: dict[str, Any]) -> dict[str, Any]:
    """Return a page of the owner's tasks; raises `ApiError`."""
    query = _Query.read(params)
    entries: list[_Entry] = []
    for info in await query.find_sessions(sessions):
        with suppress(SessionCorrupt):  # one that is broken must not hide the others
            state = await sessions.find_state(info.session_id)
            if state is not None:  # else it was deleted a moment ago
                entries += await _Entry.read_all(sessions, info, state)
    chosen = [entry for entry in entries if query.state in ("", entry.state) and entry.place.changed_at > query.since]
    chosen.sort(reverse=True)
    following = [entry for entry in chosen if query.after is None or entry.place < query.after]
    page = following[: query.size]
    tasks: list[dict[str, Any]] = []
    for entry in page:
        with suppress(ApiError):  # deleted a moment ago
            task = await read_task(sessions, entry.name, query.history_length)
            task["status"]["timestamp"] = timestamp_text(entry.place.changed_at)
            if not query.has_artifacts:
                task.pop("artifacts", None)
            tasks.append(task)
    return {
        "tasks": tasks,
        "nextPageToken": str(page[-1].place) if len(following) > len(page) else "",
        "pageSize": query.size,
        "totalSize": len(chosen),
    }
