"""The sessions that a client may see, and what it is shown of them."""

from json import loads
from typing import Any, NamedTuple

from agentrt import AgentState, Msg
from agentrt.errors import SessionConflict
from agentrt.event import AgentEvent
from agentrt.runner.base import RunnerBase
from agentrt.serving.failure import ApiError
from agentrt.serving.sse import public_error
from agentrt.state import SessionInfo
from agentrt.timestamp import timestamp_text

__all__ = ["Visitor", "check_new_id", "check_sent_id", "describe_session", "event_json", "message_json", "no_reply"]

_OWNER = "owner"
_MAX_LOOKED_AT = 100
"""So many sessions in progress are looked at for a reply that the queue does not know."""


class Visitor(NamedTuple):
    """Who asks, and which agent: `owner` is `None` without authentication, and sees every session then."""

    owner: str | None
    runner: RunnerBase

    @property
    def labels(self) -> dict[str, str]:
        """The labels of the sessions that this visitor may see, and of those that it begins."""
        return {} if self.owner is None else {_OWNER: self.owner}

    async def find(self, session_id: str) -> SessionInfo | None:
        """Return what is known of a session, `None` where there is none; raises `ApiError` if another owner has it."""
        if not _is_session_id(session_id):
            raise no_session()
        # The session itself is the first of those that begin with its id.
        page = await self.runner.store.list(prefix=session_id, limit=1)
        info = next((info for info in page.sessions if info.session_id == session_id), None)
        # The answer to a session of another owner is the one to a session that is not there.
        if info is not None and not self.labels.items() <= info.labels.items():
            raise no_session()
        return info

    async def get(self, session_id: str) -> SessionInfo:
        """Return what is known of a session; raises `ApiError` where there is none."""
        info = await self.find(session_id)
        if info is None:
            raise no_session()
        return info

    async def load(self, session_id: str) -> AgentState:
        """Return the state of a session; raises `ApiError` where there is none."""
        await self.get(session_id)
        state = await self.runner.store.load(session_id)
        # Looked at again: it may have been deleted, and begun by another owner, since.
        if state is None or not self.labels.items() <= state.labels.items():
            raise no_session()
        return state

    async def ensure(self, session_id: str) -> None:
        """Begin the session, if it is new. It is saved before anything is asked of it, so it has one owner."""
        if await self.find(check_sent_id(session_id, "the id of the session")) is not None:
            return
        check_new_id(session_id, "the id of the session")
        try:
            await self.runner.store.save(AgentState(session_id=session_id, labels=self.labels))
        except SessionConflict:
            await self.get(session_id)  # begun at the same time; raises if that was another owner

    async def find_session_of(self, reply_id: str) -> str:
        """Return the session of a reply; raises `ApiError` where there is none, or more than one."""
        # Ids that clients choose are unique in a session, and not among owners.
        found = [name for name in await self.runner.find_sessions(reply_id) if await self._may_see(name)]
        if not found:
            found = await self._find_in_progress(reply_id)
        if not found:
            raise no_reply()
        if len(found) > 1:
            raise ApiError(
                409, "ambiguous", "several of your sessions have a reply of this id: add ?session= and the session id"
            )
        return found[0]

    async def _may_see(self, session_id: str) -> bool:
        try:
            return await self.find(session_id) is not None
        except ApiError:
            return False

    async def _find_in_progress(self, reply_id: str) -> list[str]:
        # A queue in memory has forgotten, after a restart, which replies wait for an answer.
        page = await self.runner.store.list(labels=self.labels, limit=1000)
        in_progress = [info.session_id for info in page.sessions if info.status != "idle"]
        for session_id in in_progress[:_MAX_LOOKED_AT]:
            state = await self.runner.store.load(session_id)
            context = state.reply_context if state is not None else None
            if context is not None and context.reply_id == reply_id:
                return [session_id]
        return []

    def cost_of(self, state: AgentState) -> float | None:
        """Return the cost of the conversation; `None` where no layer counts it, or knows the prices."""
        conversation = self.runner.agent.with_state(state)
        for layer in conversation.middlewares:
            report = getattr(layer, "of_conversation", None)  # as `UsageMiddleware` has it
            if callable(report):
                cost: float | None = report(conversation).cost
                return cost
        return None

    def question_of(self, state: AgentState) -> dict[str, Any] | None:
        """Return the event that asks for what the session waits for."""
        question = self.runner.agent.with_state(state).waiting()
        return None if question is None else event_json(question)


def describe_session(info: SessionInfo) -> dict[str, Any]:
    """Return what a list says of a session."""
    return {
        "session_id": info.session_id,
        "revision": info.revision,
        "status": info.status,
        "messages": info.messages,
        "created_at": timestamp_text(info.created_at),
        "updated_at": timestamp_text(info.updated_at),
    }


def message_json(message: Msg) -> dict[str, Any]:
    """Return a message as a client sees it."""
    values: dict[str, Any] = loads(message.to_json())
    values["error"] = public_error(message.finished_reason, message.error)
    return values


def event_json(event: AgentEvent) -> dict[str, Any]:
    """Return an event as a client sees it."""
    values: dict[str, Any] = loads(event.to_json())
    return values


def check_sent_id(session_id: object, place: str) -> str:
    """Return the id; raises `ApiError` for what cannot be the id of a session."""
    if not isinstance(session_id, str) or not _is_session_id(session_id):
        raise ApiError(400, "session_id", f"{place} must be text of 1 to 500 characters without control characters")
    return session_id


def check_new_id(session_id: object, place: str) -> str:
    """Return the id; raises `ApiError` for what a new session cannot have."""
    checked = check_sent_id(session_id, place)
    # Clients and proxies take these for folders, and ask for another path.
    if not {".", ".."}.isdisjoint(checked.split("/")):
        raise ApiError(400, "session_id", f"{place} must not have '.' or '..' alone, or between slashes")
    return checked


def _is_session_id(text: str) -> bool:
    # What cannot be printed would be invisible in a log, or break its lines.
    return 1 <= len(text) <= 500 and text.isprintable()


def no_session() -> ApiError:
    return ApiError(404, "no_session", "this session does not exist")


def no_reply() -> ApiError:
    return ApiError(404, "no_reply", "this reply does not exist, or was deleted")
