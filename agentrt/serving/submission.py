"""What clients of every protocol submit: messages, and answers to what a reply waits for."""

from collections.abc import Sequence

from agentrt import Msg
from agentrt.errors import InvalidInputError, QueueFull, ResumeError
from agentrt.event import ExternalExecutionResultEvent, UserConfirmResultEvent, UserInterruptEvent
from agentrt.runner import ReplyHandle
from agentrt.serving.failure import ApiError
from agentrt.serving.sessions import Visitor

__all__ = ["read_status", "submit_answer", "submit_messages"]

_RESUME_MESSAGES = {
    "conflict": "this was answered in another way before",
    "expired": "the question has expired",
    "invalid": "the answer cannot be used: its rules, its input or its results are not allowed",
    "mismatch": "the answer is for another question, or for other arguments than were asked about",
    "not_waiting": "the session does not wait for this answer",
    "pending": "the session waits for an answer, which 'waiting' tells: send that first, or interrupt the reply",
    "unknown_call": "the reply has no such call",
}


async def submit_messages(
    visitor: Visitor, session_id: str, messages: Sequence[Msg], reply_id: str | None
) -> ReplyHandle:
    """Begin a reply, in a session that is begun where it is new; raises `ApiError` for what cannot be taken now."""
    await visitor.ensure(session_id)
    try:
        return await visitor.runner.submit(session_id, list(messages), reply_id=reply_id, labels=visitor.labels)
    except ResumeError as error:
        raise _refused_input(error, visitor.question_of(await visitor.load(session_id))) from None
    except InvalidInputError:
        # The messages themselves were looked at.
        raise ApiError(409, "conflict", "this id of a reply was sent with another input before") from None
    except QueueFull as error:
        retry_after = {"Retry-After": str(max(1, round(error.retry_after)))}
        raise ApiError(503, "queue_full", "too many replies wait already", headers=retry_after) from None


async def submit_answer(
    visitor: Visitor,
    session_id: str,
    answer: UserConfirmResultEvent | ExternalExecutionResultEvent | UserInterruptEvent,
) -> ReplyHandle:
    """Resume a reply; raises `ApiError` for an answer that does not fit what it asks."""
    try:
        return await visitor.runner.answer(session_id, answer)
    except ResumeError as error:
        # Without the question: the answer may be to one that is over.
        raise _refused_input(error, None) from None


async def read_status(visitor: Visitor, handle: ReplyHandle) -> str:
    """Return "waiting", or how the reply ended."""
    state = await visitor.load(handle.session_id)
    context = state.reply_context
    if context is not None and context.reply_id == handle.reply_id:
        return "waiting"
    message = await visitor.runner.read_message(handle.session_id, handle.reply_id)
    return message.finished_reason or "completed"


def _refused_input(error: ResumeError, question: object) -> ApiError:
    message = _RESUME_MESSAGES.get(error.code, "the session does not take this now")
    return ApiError(409, error.code, message, details=None if question is None else {"waiting": question})
