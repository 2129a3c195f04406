"""The routes under `/api`: sessions, replies, what waits, and the chains of an agent."""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from json import loads
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from agentrt._runtime.block import new_name
from agentrt.errors import SessionCorrupt, UsageError
from agentrt.runner import ReplyHandle, TaskInfo
from agentrt.serving.bodies import (
    confirm_calls,
    is_reply_id,
    read_after,
    read_answer,
    read_idempotency_key,
    read_on_disconnect,
    read_query_number,
    read_response_format,
    read_user_messages,
)
from agentrt.serving.budget import read_json
from agentrt.serving.failure import ApiError
from agentrt.serving.gate import Gate, RouteHandler
from agentrt.serving.owners.sessions import (
    OwnerSessions,
    check_sent_id,
    describe_session,
    event_json,
    message_json,
    no_reply,
)
from agentrt.serving.responses import JsonResponse
from agentrt.serving.runs.playground import Playground
from agentrt.serving.sse import EventStream, reply_messages
from agentrt.serving.submission import path_of_events, read_status, submit_answer, submit_messages

_PAGE = 100
_LONGEST_PAGE = 1_000


class Api:
    """Answers the requests under `/api`, for the agent that `?agent=` names, or else the first one."""

    def __init__(self, gate: Gate, playground: Playground, *, has_reports: bool, has_runs: bool) -> None:
        self._gate = gate
        self._playground = playground
        self._has_reports, self._has_runs = has_reports, has_runs
        self._limits = gate.limits

    def routes(self) -> list[Route]:
        """Return the routes; a session id may hold slashes."""
        session, reply, task = "/api/sessions/{session_id:path}", "/api/replies/{reply_id}", "/api/tasks/{task_id}"
        table: list[tuple[str, str, RouteHandler]] = [
            ("GET", "/api/sessions", self._list_sessions),
            ("POST", f"{session}/fork", self._fork_session),
            ("POST", f"{session}/replies", self._begin_reply),
            ("GET", session, self._read_session),
            ("DELETE", session, self._delete_session),
            ("GET", f"{reply}/events", self._follow_reply),
            ("POST", f"{reply}/interrupt", self._interrupt_reply),
            ("GET", "/api/tasks", self._list_tasks),
            ("GET", task, self._read_task),
            ("POST", f"{task}/stop", self._stop_task),
            ("GET", "/api/waiting", self._list_waiting),
            ("GET", "/api/chains", self._read_chains),
        ]
        return [Route(path, self._gate.endpoint(handler), methods=[method]) for method, path, handler in table]

    async def _list_sessions(self, request: Request, sessions: OwnerSessions) -> Response:
        page = await sessions.list_page(
            prefix=request.query_params.get("prefix", ""),
            limit=max(1, read_query_number(request, "limit", _PAGE, _LONGEST_PAGE)),
            cursor=request.query_params.get("cursor") or None,
        )
        return JsonResponse({"sessions": [describe_session(info) for info in page.sessions], "cursor": page.cursor})

    async def _read_session(self, request: Request, sessions: OwnerSessions) -> Response:
        info = await sessions.get(request.path_params["session_id"])
        # Before the state is loaded, which may be long.
        if f'"{info.revision}"' in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers={"ETag": f'"{info.revision}"'})
        state = await sessions.load(info.session_id)
        # The last ones, since a client shows the end of a conversation first.
        count = read_query_number(request, "last", _LONGEST_PAGE, len(state.context) + _LONGEST_PAGE)
        context = state.reply_context
        body = {
            **describe_session(info),
            "revision": state.revision,
            "messages": [message_json(message) for message in (state.context[-count:] if count else [])],
            "messages_in_all": len(state.context),
            "cost": sessions.cost_of(state),
            "reply": None if context is None else message_json(context.message),
            "waiting": sessions.question_of(state),
            "allow_edited_input": state.permission_context.allow_edited_input,
        }
        return JsonResponse(body, headers={"ETag": f'"{state.revision}"'})

    async def _delete_session(self, request: Request, sessions: OwnerSessions) -> Response:
        session_id = request.path_params["session_id"]
        with suppress(SessionCorrupt):  # a damaged one may only be deleted
            info = await sessions.get(session_id)
            # Its worker would save the session again, or fail where it does.
            if info.status == "running":
                raise ApiError(409, "running", "a reply of this session is in progress: interrupt it first")
        await sessions.delete(session_id)
        return Response(status_code=204)

    async def _fork_session(self, request: Request, sessions: OwnerSessions) -> Response:
        info = await sessions.get(request.path_params["session_id"])
        body = await read_json(request, self._limits, ("session_id", "messages"), items=())
        new_id = check_sent_id(body.get("session_id", new_name()), "'session_id'")
        count = body.get("messages")
        if count is not None and (type(count) is not int or count < 0):
            raise ApiError(400, "invalid_body", "'messages' must be the number of messages to keep")
        try:
            fork = await sessions.fork(info.session_id, new_id, count)
        except UsageError:
            raise ApiError(400, "invalid_body", "'messages' is more than this session has") from None
        return JsonResponse(describe_session(fork), 201)

    async def _begin_reply(self, request: Request, sessions: OwnerSessions) -> ASGIApp:
        session_id = check_sent_id(request.path_params["session_id"], "the id of the session")
        key, after, leave = read_idempotency_key(request), read_after(request), read_on_disconnect(request)
        fields = ("input", "answer", "response_format")
        body = await read_json(request, self._limits, fields, items=("input", "answer"))
        # Both would leave it open which comes first.
        if ("input" in body) == ("answer" in body):
            raise ApiError(400, "invalid_body", "the body must have 'input' or 'answer', and not both")
        schema = read_response_format(body.get("response_format"), "response_format")
        if schema is not None and "answer" in body:
            raise ApiError(400, "invalid_body", "'response_format' goes with an 'input': leave it out of an answer")
        if after:
            await _check_number(sessions, session_id, key or _reply_of_answer(body), after)
        is_stream = "text/event-stream" in request.headers.get("accept", "")
        if is_stream:
            # Before anything is stored: a refused stream must not leave a reply that runs.
            sessions.take_place("streams")
        if "input" in body:
            messages = await read_user_messages(body["input"])
            handle = await submit_messages(sessions, session_id, messages, key, schema)
        else:
            handle, asked_at = await self._submit_answer(sessions, session_id, body["answer"])
            # The client has read what came before its answer.
            after = after or asked_at
        place = path_of_events(request, handle)
        if is_stream:
            on_leave = handle.interrupt if leave == "interrupt" else None
            return self._stream(sessions, handle, after, on_leave=on_leave, headers={"Location": place})
        body = {"reply_id": handle.reply_id, "session_id": session_id, "events": place}
        return JsonResponse(body, 202, {"Location": place})

    async def _submit_answer(self, sessions: OwnerSessions, session_id: str, value: object) -> tuple[ReplyHandle, int]:
        """Return the handle, and the number of the question's event."""
        answer = read_answer(value)
        state = await sessions.load(session_id)
        question = sessions.agent.with_state(state).waiting()
        if answer is None:
            values: dict[str, dict[str, bool]] = value  # type: ignore[assignment]  # as `read_answer` has found it
            answer = confirm_calls(question, str(values["reply_id"]), values["calls"])
        handle = await submit_answer(sessions, session_id, answer)
        return handle, 0 if question is None else question.seq

    async def _follow_reply(self, request: Request, sessions: OwnerSessions) -> ASGIApp:
        after = read_after(request)
        handle = await self._find_reply(request, sessions)
        if after:
            await _check_number(sessions, handle.session_id, handle.reply_id, after)
        sessions.take_place("streams")
        return self._stream(sessions, handle, after, on_leave=None, headers={})

    async def _interrupt_reply(self, request: Request, sessions: OwnerSessions) -> Response:
        handle = await self._find_reply(request, sessions)
        return JsonResponse({"reply_id": handle.reply_id, "interrupted": await handle.interrupt()})

    async def _find_reply(self, request: Request, sessions: OwnerSessions) -> ReplyHandle:
        reply_id, session_id = request.path_params["reply_id"], request.query_params.get("session")
        # No reply has such an id, and a runner refuses to look for it.
        if not is_reply_id(reply_id):
            raise no_reply()
        # The client may know the reply alone, as after an Idempotency-Key of its own.
        if session_id is None:
            session_id = await sessions.find_session_of(reply_id)
        else:
            await sessions.get(session_id)
        if not await sessions.has_reply(session_id, reply_id):
            raise no_reply()
        return sessions.handle(session_id, reply_id)

    def _stream(
        self,
        sessions: OwnerSessions,
        handle: ReplyHandle,
        after: int,
        *,
        on_leave: Callable[[], Awaitable[object]] | None,
        headers: dict[str, str],
    ) -> ASGIApp:
        return EventStream(
            partial(reply_messages, handle, after, partial(read_status, sessions)),
            self._limits,
            name=f"reply {handle.reply_id}",
            on_leave=on_leave,
            headers=headers,
        )

    async def _list_tasks(self, request: Request, sessions: OwnerSessions) -> Response:
        tasks = await sessions.tasks(request.query_params.get("session", ""))
        return JsonResponse({"tasks": [_task_json(task) for task in tasks]})

    async def _read_task(self, request: Request, sessions: OwnerSessions) -> Response:
        return JsonResponse(_task_json(await _find_task(request, sessions)))

    async def _stop_task(self, request: Request, sessions: OwnerSessions) -> Response:
        task = await _find_task(request, sessions)
        is_stopped = task.state != "over" and await sessions.interrupt(task.session_id, task.reply_id)
        return JsonResponse({"id": task.id, "stopped": is_stopped})

    async def _list_waiting(self, request: Request, sessions: OwnerSessions) -> Response:
        cursor = request.query_params.get("cursor") or None
        page = await sessions.list_page(limit=_LONGEST_PAGE, cursor=cursor)
        waiting = []
        for info in page.sessions:
            if info.status == "waiting":
                state = await sessions.find_state(info.session_id)
                question = None if state is None else sessions.question_of(state)
                if state is not None and question is not None:  # else it was answered a moment ago
                    task = sessions.task_of(state)
                    waiting.append({"session_id": info.session_id, "question": question, "task": task})
        return JsonResponse({"waiting": waiting, "cursor": page.cursor})

    async def _read_chains(self, request: Request, sessions: OwnerSessions) -> Response:
        agent = sessions.agent
        return JsonResponse(
            {
                "agents": list(self._gate.runners),
                "chains": loads(agent.explain(format="json")),
                "playground": self._playground.allowed_layers(agent.name),
                "reports": self._has_reports,
                "runs": self._has_runs,
            }
        )


async def _find_task(request: Request, sessions: OwnerSessions) -> TaskInfo:
    """Return the background call of the path, of the session in `?session=`."""
    tasks = await sessions.tasks(request.query_params.get("session", ""))
    found = next((task for task in tasks if task.id == request.path_params["task_id"]), None)
    if found is None:
        raise no_reply()
    return found


def _task_json(task: TaskInfo) -> dict[str, Any]:
    question = None if task.question is None else event_json(task.question)
    return {
        "id": task.id,
        "tool": task.tool,
        "state": task.state,
        "session_id": task.session_id,
        "reply_id": task.reply_id,
        "question": question,
        "outcome": task.outcome,
    }


def _reply_of_answer(body: dict[str, Any]) -> str | None:
    """Return the id of the reply that the body answers, if it has a valid one; the answer is checked later."""
    answer = body.get("answer")
    reply_id = answer.get("reply_id") if isinstance(answer, dict) else None
    return reply_id if isinstance(reply_id, str) and is_reply_id(reply_id) else None


async def _check_number(sessions: OwnerSessions, session_id: str, reply_id: str | None, after: int) -> None:
    """Raise `ApiError` for the number of an event that the client cannot have, as in a new session."""
    if await sessions.find(session_id) is not None:
        state = await sessions.load(session_id)
        if after <= state.sequence:
            return
        if reply_id is not None and await sessions.can_have_sent(state, reply_id, after):
            return
    raise ApiError(400, "last_event_id", "Last-Event-ID must be the id of an event of this reply")
