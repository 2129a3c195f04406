"""Messages and answers from clients of every protocol."""

from collections.abc import Mapping, Sequence
from urllib.parse import quote

import anyio
from starlette.requests import Request

from agentrt import Agent, Msg
from agentrt.errors import InvalidInputError, QueueFull, ResumeError
from agentrt.event import ExternalExecutionResultEvent, UserConfirmResultEvent, UserInterruptEvent
from agentrt.runner import ReplyHandle
from agentrt.serving.failure import ApiError
from agentrt.serving.owners.sessions import OwnerSessions
from agentrt.types import JSONSchema

_ROLLBACK_SECONDS = 30.0
_RESUME_MESSAGES = {
    "conflict": "this question was already answered differently",
    "expired": "the question has expired",
    "invalid": "the answer cannot be used: its rules, its input or its results are not allowed",
    "mismatch": "the answer is for another question, or for other arguments than those in the question",
    "not_waiting": "the session does not wait for this answer",
    "pending": "the session waits for an answer to the question in 'waiting': send it first, or interrupt the reply",
    "unknown_call": "the reply has no such call",
}


async def submit_first(
    sessions: OwnerSessions,
    session_id: str,
    messages: Sequence[Msg],
    reply_id: str | None,
    *,
    history: Sequence[Msg] = (),
    labels: Mapping[str, str] | None = None,
    schema: JSONSchema | None = None,
) -> ReplyHandle:
    """Start a reply in a new session, whose id no client knows yet; a refused or cancelled request leaves no session.

    Raises `ApiError` as `submit_messages` does.
    """
    await sessions.begin(session_id, history, labels)
    try:
        return await submit_messages(sessions, session_id, messages, reply_id, schema)
    except BaseException:
        with anyio.move_on_after(_ROLLBACK_SECONDS, shield=True):
            await sessions.forget(session_id)
        raise


async def submit_messages(
    sessions: OwnerSessions,
    session_id: str,
    messages: Sequence[Msg],
    reply_id: str | None,
    schema: JSONSchema | None = None,
) -> ReplyHandle:
    """Start a reply, in a session that is created if needed; raises `ApiError` for a message that is refused now."""
    await sessions.ensure(session_id)
    try:
        return await sessions.submit(session_id, messages, reply_id, schema)
    except ResumeError as error:
        raise _refused_input(error, sessions.question_of(await sessions.load(session_id))) from None
    except InvalidInputError:
        # The messages themselves were looked at.
        raise ApiError(409, "conflict", "this reply id was already used with a different input") from None
    except QueueFull as error:
        raise _queue_refusal(error, sessions) from None


async def submit_fork(sessions: OwnerSessions, fork: Agent) -> ReplyHandle:
    """Start a fork of a recorded run, in a new session; raises `ApiError` if that is refused, and leaves none then."""
    try:
        return await sessions.begin_with(fork)
    except QueueFull as error:
        raise _queue_refusal(error, sessions) from None


async def submit_answer(
    sessions: OwnerSessions,
    session_id: str,
    answer: UserConfirmResultEvent | ExternalExecutionResultEvent | UserInterruptEvent,
) -> ReplyHandle:
    """Resume a reply; raises `ApiError` for an answer that does not fit its question."""
    try:
        return await sessions.answer(session_id, answer)
    except ResumeError as error:
        # Without the question: the answer may be to one that is over.
        raise _refused_input(error, None) from None


async def read_status(sessions: OwnerSessions, handle: ReplyHandle) -> str:
    """Return "waiting", or how the reply ended."""
    state = await sessions.load(handle.session_id)
    context = state.reply_context
    if context is not None and context.reply_id == handle.reply_id:
        return "waiting"
    message = await sessions.read_message(handle.session_id, handle.reply_id)
    return message.finished_reason or "completed"


def _queue_refusal(error: QueueFull, sessions: OwnerSessions) -> ApiError:
    retry_after = {"Retry-After": str(max(1, round(error.retry_after)))}
    if error.scope == "owner":
        limit = sessions.owner.limits.queued_per_owner
        words = f"{limit:,} of your replies are already waiting, the most allowed: try again later"
        return ApiError(429, "too_many_queued", words, details={"limit": "queued_per_owner"}, headers=retry_after)
    return ApiError(503, "queue_full", "too many replies are already waiting", headers=retry_after)


def _refused_input(error: ResumeError, question: object) -> ApiError:
    message = _RESUME_MESSAGES.get(error.code, "the session cannot take this now")
    return ApiError(409, error.code, message, details=None if question is None else {"waiting": question})


def path_of_events(request: Request, handle: ReplyHandle) -> str:
    """Return the path of the reply's events, wherever the application is mounted."""
    # The ids are quoted, slashes too: they come from clients.
    root = quote(request.scope.get("root_path", ""))
    place = f"{root}/api/replies/{quote(handle.reply_id)}/events?session={quote(handle.session_id, safe='')}"
    agent = request.query_params.get("agent")
    return place if agent is None else f"{place}&agent={quote(agent, safe='')}"
