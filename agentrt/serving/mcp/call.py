"""One call of an agent's tool: it begins, answers or follows a reply, until the reply ends or asks."""

from contextlib import aclosing, suppress
from json import dumps, loads
from secrets import token_hex
from typing import Any, NamedTuple

import anyio
from mcp import MCPError
from mcp.server import ServerRequestContext
from mcp.types import (
    CallToolRequestParams,
    CallToolResult,
    ElicitRequest,
    ElicitRequestFormParams,
    ElicitResult,
    InputRequiredResult,
)
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import ValidationError

from agentrt import Msg
from agentrt.errors import AgentRTError, UsageError
from agentrt.event import RequireExternalExecutionEvent, RequireUserConfirmEvent
from agentrt.runner import ReplyHandle
from agentrt.serving.bodies import read_user_messages
from agentrt.serving.failure import ApiError
from agentrt.serving.mcp.progress import Progress
from agentrt.serving.mcp.question import (
    QuestionAnswer,
    ReplyQuestion,
    decline,
    digest_of,
    make_form,
    question_text,
    read_form,
    read_texts,
)
from agentrt.serving.mcp.result import answer_result, error_result, waiting_result
from agentrt.serving.owners.sessions import OwnerSessions, no_session
from agentrt.serving.sse import status_after
from agentrt.serving.submission import read_status, submit_answer, submit_first, submit_messages

_SESSION_PREFIX = "mcp/"  # of the ids of the sessions that calls begin
_FORM = "answer"  # the name of the only form that a call asks for at a time
_ANSWER_SECONDS = 3600.0
"""How long a user may take to fill in a form; the question itself stays open."""
_HELD = "held"
"""The status of a queued reply whose session waits for an answer to an earlier one."""
_RECHECK_SECONDS = 0.1
_HELD_LOOK_SECONDS = 1.0
_QUESTION_EVENT_TYPES = (RequireUserConfirmEvent, RequireExternalExecutionEvent)
_ANSWERED_CODES = ("conflict", "not_waiting", "mismatch", "unknown_call")
"""The codes of refusals that mean that someone else has answered the question."""


def has_forms(ctx: ServerRequestContext[Any, Any]) -> bool:
    """Say whether the client can ask its user by a form."""
    capabilities = ctx.session.client_capabilities
    elicitation = None if capabilities is None else capabilities.elicitation
    if elicitation is None or (elicitation.form is None and elicitation.url is not None):
        return False
    return ctx.protocol_version in MODERN_PROTOCOL_VERSIONS or ctx.session.can_send_request


class _Arguments(NamedTuple):
    message: str | None
    session_id: str | None
    answer: dict[str, str] | None

    @classmethod
    def read(cls, values: dict[str, Any], *, takes_answers: bool) -> "_Arguments":
        names = cls._fields if takes_answers else cls._fields[:2]
        for name in values:
            if name not in names:
                raise ApiError(400, "invalid_arguments", f"the tool has no argument {name!r:.50}: it takes {names}")
        # Models write null for what they leave out.
        message, session_id, answer = (values.get(name) for name in cls._fields)
        if not isinstance(message, str | None) or not isinstance(session_id, str | None):
            raise ApiError(400, "invalid_arguments", "'message' and 'session_id' must be text")
        is_map = isinstance(answer, dict) and answer and all(isinstance(text, str) for text in answer.values())
        if answer is not None and not is_map:
            raise ApiError(400, "invalid_arguments", "'answer' must map the id of each call that it answers to text")
        if message is not None and answer is not None:
            raise ApiError(400, "invalid_arguments", "give a 'message' or an 'answer', and not both")
        if message is None and session_id is None:
            raise ApiError(400, "invalid_arguments", "give a 'message'")
        return cls(message, session_id, answer)


class AgentCall:
    """Runs one call; `session_id` is that of its session, once there is one, and `handle` that of its reply."""

    def __init__(self, ctx: ServerRequestContext[Any, Any], sessions: OwnerSessions) -> None:
        self.session_id: str | None = None
        self.handle: ReplyHandle | None = None
        self._ctx = ctx
        self._sessions = sessions
        self._has_forms = has_forms(ctx)
        self._dismissed = ""  # the question that the user was just shown, and left open
        self._progress = Progress(ctx.session.report_progress)

    async def run(self, params: CallToolRequestParams) -> CallToolResult | InputRequiredResult:
        """Return the result of the call; raises `ApiError` if it is refused."""
        if params.request_state is not None:
            handle, after = await self._resume(params)
        else:
            arguments = _Arguments.read(params.arguments or {}, takes_answers=not self._has_forms)
            handle, after = await self._begin(arguments)
        self.handle = handle
        # Before anything else: a client that loses its connection finds the session by this alone.
        await self._progress.tell(f"session_id {handle.session_id}")
        while True:
            status = await self._follow(handle, after)
            if status not in ("waiting", _HELD):
                message = await self._sessions.read_message(handle.session_id, handle.reply_id)
                return answer_result(handle, message)
            question, message = await self._question()
            if question is None or (question.reply_id != handle.reply_id and status != _HELD):
                # Someone else has just answered it.
                await anyio.sleep(_RECHECK_SECONDS)
                continue
            is_modern = self._ctx.protocol_version in MODERN_PROTOCOL_VERSIONS
            if self._has_forms and is_modern and digest_of(question) != self._dismissed:
                form = ElicitRequestFormParams(message=question_text(question), requested_schema=make_form(question))
                state = dumps([handle.session_id, handle.reply_id, digest_of(question)])
                return InputRequiredResult(input_requests={_FORM: ElicitRequest(params=form)}, request_state=state)
            answer = await self._ask(question) if self._has_forms and not is_modern else None
            if answer is None:
                return waiting_result(handle, message, question, has_form=self._has_forms)
            await self._submit(answer)
            after = question.seq if question.reply_id == handle.reply_id else 0

    async def interrupt(self) -> None:
        """End the reply tidily, if there is one."""
        if self.handle is not None:
            await self.handle.interrupt()

    async def explain(self, error: ApiError) -> CallToolResult:
        """Return the refusal as a result, with the open question if that is its cause."""
        question = None
        if error.body["error"]["code"] == "pending" and not self._has_forms:
            question, _ = await self._question()
        return error_result(error, self.session_id, question)

    async def _begin(self, arguments: _Arguments) -> tuple[ReplyHandle, int]:
        sessions = self._sessions
        if arguments.session_id is not None:
            # A model may make an id up. To begin a session for it would lose what was said before, unnoticed.
            self.session_id = (await sessions.get(arguments.session_id)).session_id
        if arguments.message is not None:
            messages = await read_user_messages(arguments.message, "message")
            # Before it is stored, so that a call that is cancelled meanwhile knows what to interrupt.
            reply_id = token_hex(12)
            session_id = self.session_id or f"{_SESSION_PREFIX}{token_hex(8)}"
            self.handle = sessions.handle(session_id, reply_id)
            submit = submit_first if self.session_id is None else submit_messages
            handle = await submit(sessions, session_id, messages, reply_id)
            self.session_id = session_id
            return handle, 0
        if arguments.answer is not None:
            if self.session_id is None:
                raise no_session()
            question, _ = await self._question()
            answer = read_texts(question, arguments.answer)
            return await submit_answer(sessions, self.session_id, answer), 0 if question is None else question.seq
        assert self.session_id is not None
        state = await self._sessions.load(self.session_id)
        reply = state.reply_context or state.last_reply
        if reply is None:
            raise ApiError(404, "no_reply", "this session has no messages yet")
        return self._sessions.handle(self.session_id, reply.reply_id), 0

    async def _follow(self, handle: ReplyHandle, after: int) -> str:
        """Report what the reply does until it ends, waits or is held up; returns its status."""
        status, failure, has_begun = _HELD, None, anyio.Event()
        async with anyio.create_task_group() as group:
            group.start_soon(self._watch_for_question, has_begun, group.cancel_scope)
            try:
                status = await self._read(handle, after, has_begun)
            except (ApiError, AgentRTError) as error:
                failure = error  # raised below, so that it is not wrapped in a group
            group.cancel_scope.cancel()
        if failure is not None:
            raise failure
        return status

    async def _read(self, handle: ReplyHandle, after: int, has_begun: anyio.Event) -> str:
        status = ""
        async with aclosing(handle.events(after=after)) as events:
            async for event in events:
                has_begun.set()
                status = status_after(event, handle.reply_id)
                await self._progress.read(event)
        return status or await read_status(self._sessions, handle)

    async def _watch_for_question(self, has_begun: anyio.Event, scope: anyio.CancelScope) -> None:
        """End the wait for a reply that is queued behind a question of another one, which may never be answered."""
        assert self.session_id is not None
        revision = 0
        while not has_begun.is_set():
            await anyio.sleep(_HELD_LOOK_SECONDS)
            with suppress(ApiError, AgentRTError):  # `_read` raises it as well
                info = await self._sessions.find(self.session_id)
                # Seen twice, since an answer may be on its way.
                if info is not None and info.status == "waiting" and not has_begun.is_set():
                    if info.revision == revision:
                        scope.cancel()
                    revision = info.revision

    async def _question(self) -> tuple[ReplyQuestion | None, Msg]:
        """Return what the session asks, and the message of the reply that asks."""
        assert self.session_id is not None
        state = await self._sessions.load(self.session_id)
        question = self._sessions.agent.with_state(state).waiting()
        if state.reply_context is None or not isinstance(question, _QUESTION_EVENT_TYPES):
            return None, Msg("", "", "assistant")
        return question, state.reply_context.message

    async def _submit(self, answer: QuestionAnswer) -> None:
        assert self.session_id is not None
        try:
            await submit_answer(self._sessions, self.session_id, answer)
        except ApiError as error:
            if error.body["error"]["code"] not in _ANSWERED_CODES:
                raise

    async def _ask(self, question: ReplyQuestion) -> QuestionAnswer | None:
        """Have the client ask its user; returns `None` if the user gives none."""
        text, form = question_text(question), make_form(question)
        result: ElicitResult | None = None
        with anyio.move_on_after(_ANSWER_SECONDS):
            async with anyio.create_task_group() as group:
                group.start_soon(self._watch_runner, group.cancel_scope)
                # A client that cannot do what it declared, or has left, answers nothing: the question stays open.
                with suppress(MCPError, ValidationError):
                    result = await self._ctx.session.elicit_form(text, form, self._ctx.request_id)
                group.cancel_scope.cancel()
        if not self._sessions.is_open:
            raise UsageError("the runner was closed while the user was being asked")
        return None if result is None else _read_response(question, result)

    async def _watch_runner(self, scope: anyio.CancelScope) -> None:
        # A user may take long, and nothing else would end the call when the server stops.
        while self._sessions.is_open:  # noqa: ASYNC110  # a runner has no event for it
            await anyio.sleep(_RECHECK_SECONDS)
        scope.cancel()

    async def _resume(self, params: CallToolRequestParams) -> tuple[ReplyHandle, int]:
        """Submit the answer that comes when the client makes the call again.

        The state that the client sends back names a session, which is looked up for its owner like any other. So the
        state needs no signature, and any process that has the store can read it.
        """
        state: object = None
        with suppress(ValueError):  # it comes from the client, so anything may be in it
            state = loads(params.request_state or "")
        match state:
            case [str(session_id), str(reply_id), str(digest)]:
                pass
            case _:
                raise ApiError(400, "invalid_arguments", "the request state is not one of this server")
        await self._sessions.get(session_id)
        self.session_id = session_id
        handle = self.handle = self._sessions.handle(session_id, reply_id)
        question, _ = await self._question()
        # A question that has changed since is asked again, and one that is gone was answered elsewhere.
        if question is None or digest_of(question) != digest:
            return handle, 0
        response = (params.input_responses or {}).get(_FORM)
        answer = _read_response(question, response) if isinstance(response, ElicitResult) else None
        if answer is None:
            self._dismissed = digest if response is not None else ""
            return handle, 0
        await self._submit(answer)
        return handle, question.seq if question.reply_id == reply_id else 0


def _read_response(question: ReplyQuestion, response: ElicitResult) -> QuestionAnswer | None:
    if response.action == "decline":
        return decline(question)
    # A user who closes a form has not decided.
    return read_form(question, response.content or {}) if response.action == "accept" else None
