"""The requests to a runner, in their stored form."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from json import dumps, loads
from typing import Any, Literal

from agentrt._runtime.conversation.inputs import ANSWERS
from agentrt.errors import ResumeError, UsageError
from agentrt.event import AgentEvent, ExternalExecutionResultEvent, UserConfirmResultEvent
from agentrt.hooks import ReplyInput
from agentrt.message import Msg
from agentrt.state import AgentState, check_session_id
from agentrt.types import JSONSchema

RequestKind = Literal["message", "answer", "resume", "task"]
"""A "resume" has no input, and is for a reply in progress that no other request is for. That of a "task" is the saved
state of a new session: a reply that has made one call, and was left before it ran."""

OWNER_LABEL = "owner"
"""The label that names the owner of a session, and so of its replies."""

# What differs each time that one and the same input is made.
_MADE_ANEW = ("id", "created_at")


@dataclass(frozen=True, slots=True)
class Request:
    """One input for one reply of one session. `key` names the request within its session, `digest` what it says.

    The `labels` are those of a session that is new; `None` is for a session that was saved when this was submitted, and
    does not come back when it is deleted before this runs. The `owner` is that of the session, "" without one: owners
    take turns in the queue.
    """

    session_id: str
    reply_id: str
    kind: RequestKind
    key: str
    digest: str
    input: str
    labels: dict[str, str] | None = field(default_factory=dict)
    owner: str = ""

    def read_input(self) -> Any:
        """Return what `Agent.reply_stream` takes."""
        if self.kind == "answer":
            return AgentEvent.from_json(self.input)
        if self.kind == "task":
            return None
        content = loads(self.input)
        messages = content["messages"] if isinstance(content, dict) else content
        return None if messages is None else [Msg.from_json(dumps(message)) for message in messages]

    def read_schema(self) -> JSONSchema | None:
        """Return the JSON schema of the answer that a message asks for, `None` for any answer."""
        content = loads(self.input) if self.kind == "message" else None
        return content["schema"] if isinstance(content, dict) else None

    def new_state(self) -> AgentState:
        """Return the state with which its session begins, where that is new."""
        if self.kind == "task":
            return AgentState.model_validate_json(self.input)
        return AgentState(session_id=self.session_id, labels=dict(self.labels or {}))


def owner_of(labels: Mapping[str, str]) -> str:
    """Return the owner of the session with these labels, "" without one."""
    return labels.get(OWNER_LABEL, "")


def make_request(
    session_id: str,
    reply_id: str,
    taken: ReplyInput,
    labels: dict[str, str] | None = None,
    *,
    owner: str = "",
    schema: JSONSchema | None = None,
) -> Request:
    """Return the request; raises `InvalidInputError` for an input that JSON cannot hold."""
    if isinstance(taken, ANSWERS):
        text = taken.to_json()
        digest = _digest({name: value for name, value in loads(text).items() if name not in ("created_at", "seq")})
        # A reply may be answered in several parts; each part is a request of its own.
        return Request(session_id, taken.reply_id, "answer", f"{taken.reply_id}/{digest}", digest, text, None, owner)
    messages = None if taken is None else [taken] if isinstance(taken, Msg) else taken
    dicts = None if messages is None else [loads(message.to_json()) for message in messages]
    stable = None if dicts is None else [_without_new_parts(message) for message in dicts]
    digest = _digest(stable if schema is None else {"messages": stable, "schema": schema})
    text = dumps(dicts if schema is None else {"messages": dicts, "schema": schema})
    return Request(session_id, reply_id, "message", reply_id, digest, text, labels, owner)


def check_contradiction(request: Request, pending: Iterable[Request]) -> None:
    """Raise `ResumeError` where an answer says something else of a call than one that is not taken in yet."""
    calls = _answered_calls(request)
    for other in pending:
        both = calls & _answered_calls(other)
        if other.digest != request.digest and both:
            raise ResumeError(
                f"the call {min(both)!r:.200} was answered in another way just now, and that answer is taken in first",
                code="conflict",
            )


def make_resumption(session_id: str, reply_id: str, revision: int, owner: str) -> Request:
    """Return the request to resume a reply that is in progress in that revision of a session."""
    return Request(session_id, reply_id, "resume", f"{reply_id}/resume/{revision}", "", "null", None, owner)


def check_session(session_id: object) -> None:
    """Raise `UsageError` for what cannot be the id of a session in any store."""
    check_session_id(session_id)
    try:
        str(session_id).encode()
    except UnicodeEncodeError:
        raise UsageError(
            f"a session id must be text that UTF-8 can hold, not {session_id!r:.100}, which has half a character"
        ) from None


def _answered_calls(request: Request) -> set[str]:
    answer = request.read_input()
    if isinstance(answer, UserConfirmResultEvent):
        return {result.tool_call.id for result in answer.confirm_results}
    if isinstance(answer, ExternalExecutionResultEvent):
        return {execution.id for execution in answer.execution_results}
    return set()


def _without_new_parts(message: dict[str, Any]) -> dict[str, Any]:
    stable = {name: value for name, value in message.items() if name not in _MADE_ANEW}
    if isinstance(stable["content"], list):
        stable["content"] = [
            {name: value for name, value in block.items() if name not in _MADE_ANEW} for block in stable["content"]
        ]
    return stable


def _digest(content: Any) -> str:
    return sha256(dumps(content, sort_keys=True).encode()).hexdigest()[:32]
