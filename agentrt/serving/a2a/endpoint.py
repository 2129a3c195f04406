"""The methods of A2A. A context is a session, and a task is a reply, which messages begin and answer."""

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from functools import partial
from typing import Any, ClassVar, NamedTuple

import anyio
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from agentrt import Agent, Msg
from agentrt._runtime.block import new_name
from agentrt.errors import AgentRTError
from agentrt.serving.a2a.answer import read_message_answer
from agentrt.serving.a2a.card import CARD_PATH, agent_card
from agentrt.serving.a2a.failure import as_rpc_error, rpc_error, rpc_failure
from agentrt.serving.a2a.request import (
    RpcCall,
    SentMessage,
    TaskName,
    check_output_modes,
    read_field,
    read_history_length,
    request_id,
)
from agentrt.serving.a2a.status import task_message
from agentrt.serving.a2a.stream import ArtifactUpdates
from agentrt.serving.a2a.task import message_parts, read_task, task_json, working
from agentrt.serving.a2a.task_list import list_tasks
from agentrt.serving.bodies import read_user_messages
from agentrt.serving.budget import read_json
from agentrt.serving.failure import ApiError, as_api_error
from agentrt.serving.gate import Gate
from agentrt.serving.owners.sessions import OwnerSessions
from agentrt.serving.responses import AwaitedResponse, JsonResponse
from agentrt.serving.sse import EventStream, encode_data
from agentrt.serving.submission import submit_answer, submit_first, submit_messages

_Json = dict[str, Any]
_CANCEL_SECONDS = 30.0
_NO_PUSH = "PUSH_NOTIFICATION_NOT_SUPPORTED", "this server sends no push notifications: use SubscribeToTask"
MISSING_METHODS = {
    "CreateTaskPushNotificationConfig": _NO_PUSH,
    "GetTaskPushNotificationConfig": _NO_PUSH,
    "ListTaskPushNotificationConfigs": _NO_PUSH,
    "DeleteTaskPushNotificationConfig": _NO_PUSH,
    "GetExtendedAgentCard": ("EXTENDED_AGENT_CARD_NOT_CONFIGURED", "the card of this agent is all there is"),
}
"""The methods of the protocol that this server does not have: the reason, and what to do."""


class _Task(NamedTuple):
    """A task to follow, from the event after `after`; its client has `message` already, and gets `first` first."""

    name: TaskName
    after: int
    message: Msg
    first: _Json


class A2ARoutes:
    """Answers calls by JSON-RPC, for the agent that `?agent=` names, or else the first one."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate
        self._named_card = gate.endpoint(self._answer_named_card)

    def routes(self) -> list[Route]:
        return [
            Route(CARD_PATH, self._answer_card, methods=["GET"]),
            Route("/a2a", self._gate.endpoint(self._answer, reshape=as_rpc_error), methods=["POST"]),
        ]

    async def _answer_card(self, request: Request) -> ASGIApp:
        # Everybody may read the card of the first agent, since it says how to authenticate. The names of the others
        # are only for those who may use them.
        if "agent" in request.query_params:
            return self._named_card
        return self._card(request, next(iter(self._gate.runners.values())).agent)

    async def _answer_named_card(self, request: Request, sessions: OwnerSessions) -> ASGIApp:
        return self._card(request, sessions.agent)

    def _card(self, request: Request, agent: Agent) -> Response:
        is_first = agent.name == next(iter(self._gate.runners))
        return JsonResponse(agent_card(request, agent, is_first=is_first, needs_token=self._gate.owners.are_known))

    async def _answer(self, request: Request, sessions: OwnerSessions) -> ASGIApp:
        body = await read_json(request, self._gate.limits, None, items=("params",))
        try:
            # A request without a version is one of 0.3, says the protocol.
            if request.headers.get("a2a-version", "0.3").partition(".")[0] != "1":
                raise rpc_error("VERSION_NOT_SUPPORTED", "this server speaks A2A 1.0: send the header A2A-Version: 1.0")
            call = RpcCall.read(body)
            if call.method in self.LONG_METHODS:
                return await self._open(sessions, call)
            method = self.SHORT_METHODS.get(call.method)
            if method is None:
                raise rpc_error(
                    *MISSING_METHODS.get(
                        call.method, ("METHOD_NOT_FOUND", "A2A 1.0 has no method of this name on this server")
                    )
                )
            return JsonResponse({"jsonrpc": "2.0", "id": call.id, "result": await method(self, sessions, call.params)})
        except ApiError as error:
            return _refusal(error, request_id(body))

    async def _open(self, sessions: OwnerSessions, call: RpcCall) -> ASGIApp:
        """Answer a call that may last as long as a reply."""
        # Before anything is stored: a refused call must not leave a reply that runs.
        sessions.take_place("streams")
        task = await (self._subscribe if call.method == "SubscribeToTask" else self._send)(sessions, call.params)
        if call.method == "SendMessage":
            return AwaitedResponse(partial(self._answer_whole, sessions, call, task))
        return EventStream(
            partial(self._messages, sessions, call, task),
            self._gate.limits,
            name=f"task {task.name}",
            on_leave=None,  # its client comes back with SubscribeToTask
            headers={},
        )

    async def _send(self, sessions: OwnerSessions, params: _Json) -> _Task:
        message = SentMessage.read(params)
        configuration = _configuration(params)
        check_output_modes(configuration)
        # A client that relies on a notification would never be told.
        if read_field(configuration, "taskPushNotificationConfig"):
            raise rpc_error(*_NO_PUSH)
        if message.task_id:
            return await self._answer_task(sessions, message)
        # Read before a session is made, so that a bad message leaves none.
        item = {"role": "user", "content": message.content()}
        messages, schema = await read_user_messages(item, "message"), message.schema()
        session_id = message.context_id or f"a2a-{new_name()}"
        submit = submit_messages if message.context_id else submit_first
        try:
            handle = await submit(sessions, session_id, messages, message.reply_id, schema=schema)
        except ApiError as error:
            raise await self._refuse_context(sessions, session_id, error) from None
        name = TaskName(session_id, handle.reply_id)
        history = [task_message(name, message.id, "USER", message_parts(messages[0]))]
        return _Task(name, 0, _blank_message(sessions, name), task_json(name, working(), [], history))

    async def _refuse_context(self, sessions: OwnerSessions, session_id: str, error: ApiError) -> ApiError:
        """Return the refusal of a message that begins no task in this context."""
        code = error.body["error"]["code"]
        if code == "no_session":
            return rpc_error("INVALID_PARAMS", "this context does not exist: leave 'contextId' out to begin one")
        if code == "conflict":
            return rpc_error("INVALID_PARAMS", "this 'messageId' was sent with another content: give each its own")
        context = (await sessions.load(session_id)).reply_context if code == "pending" else None
        if context is None:
            return error
        name = TaskName(session_id, context.reply_id)
        return rpc_error(
            "UNSUPPORTED_OPERATION", f"the task {name} waits for an answer: send it with this 'taskId', or cancel it"
        )

    async def _answer_task(self, sessions: OwnerSessions, message: SentMessage) -> _Task:
        """Answer what the task asks. Words that are no answer leave it as it is: it asks again."""
        name = TaskName.read(message.task_id)
        task = await read_task(sessions, name)
        if message.context_id not in ("", name.session_id):
            raise rpc_error("INVALID_PARAMS", "'message.contextId' is not that of the task: leave it out")
        state = await sessions.load(name.session_id)
        question = sessions.agent.with_state(state).waiting()
        context = state.reply_context
        if question is None or context is None or question.reply_id != name.reply_id:
            raise rpc_error(
                "UNSUPPORTED_OPERATION",
                "the task does not wait for a message: send one without 'taskId', which begins a task in its context",
            )
        answer = read_message_answer(question, message)
        if answer is not None:
            # Stored before the client sees that the task works.
            await submit_answer(sessions, name.session_id, answer)
            task = task_json(name, working(), message_parts(context.message), task.get("history", []))
        # The client has what came before the question already, in the task.
        return _Task(name, question.seq, context.message.copy(), task)

    async def _subscribe(self, sessions: OwnerSessions, params: _Json) -> _Task:
        name = TaskName.read(read_field(params, "id"))
        task = await read_task(sessions, name)
        if _is_over(task):
            raise rpc_error("UNSUPPORTED_OPERATION", "the task is over: GetTask has its outcome")
        # The artifact is sent from its beginning, so that none of it is missing.
        first = {key: value for key, value in task.items() if key != "artifacts"}
        return _Task(name, 0, _blank_message(sessions, name), first)

    async def _messages(self, sessions: OwnerSessions, call: RpcCall, task: _Task) -> AsyncGenerator[bytes, None]:
        def encode(result: _Json) -> bytes:
            return encode_data({"jsonrpc": "2.0", "id": call.id, "result": result})

        updates = ArtifactUpdates(task.name, task.message)
        yield encode({"task": task.first})
        try:
            events = sessions.events(task.name.session_id, task.name.reply_id, after=task.after)
            async with aclosing(events):
                async for event in events:
                    for update in updates.read(event):
                        yield encode(update)
            status = (await read_task(sessions, task.name, 0))["status"]
        except (AgentRTError, ApiError) as error:
            # The HTTP status was sent already. Clients raise this body as they would raise a bad status.
            yield encode_data(rpc_failure(as_api_error(error, "a task"), call.id))
            return
        for update in updates.end():
            yield encode(update)
        names = {"taskId": str(task.name), "contextId": task.name.session_id}
        yield encode({"statusUpdate": {**names, "status": status}})

    async def _answer_whole(self, sessions: OwnerSessions, call: RpcCall, task: _Task) -> Response:
        configuration = _configuration(call.params)
        try:
            if read_field(configuration, "returnImmediately") is not True:
                await sessions.handle(*task.name).result()
            found = await read_task(sessions, task.name, read_history_length(configuration))
        except (AgentRTError, ApiError) as error:
            return _refusal(as_api_error(error, "a task"), call.id)
        return JsonResponse({"jsonrpc": "2.0", "id": call.id, "result": {"task": found}})

    async def _get_task(self, sessions: OwnerSessions, params: _Json) -> _Json:
        return await read_task(sessions, TaskName.read(read_field(params, "id")), read_history_length(params))

    async def _cancel_task(self, sessions: OwnerSessions, params: _Json) -> _Json:
        name = TaskName.read(read_field(params, "id"))
        if _is_over(await read_task(sessions, name)):
            raise rpc_error("TASK_NOT_CANCELABLE", "the task is over")
        # Wherever it runs, waits or is queued, also in another process.
        handle = sessions.handle(*name)
        await handle.interrupt()
        # If a tool takes longer to stop, the client reads the end later.
        with anyio.move_on_after(_CANCEL_SECONDS):
            await handle.result()
        return await read_task(sessions, name)

    async def _list_tasks(self, sessions: OwnerSessions, params: _Json) -> _Json:
        sessions.take_place("streams")  # it reads many sessions
        return await list_tasks(sessions, params)

    LONG_METHODS = "SendMessage", "SendStreamingMessage", "SubscribeToTask"
    """The methods whose answers may last as long as a reply."""
    SHORT_METHODS: ClassVar[dict[str, Callable[["A2ARoutes", OwnerSessions, _Json], Awaitable[_Json]]]] = {
        "GetTask": _get_task,
        "CancelTask": _cancel_task,
        "ListTasks": _list_tasks,
    }


def _refusal(error: ApiError, call_id: object) -> Response:
    refusal = as_rpc_error(error, call_id)
    return JsonResponse(refusal.body, refusal.status, refusal.headers)


def _configuration(params: _Json) -> _Json:
    configuration = params.get("configuration") or {}
    if not isinstance(configuration, dict):
        raise rpc_error("INVALID_PARAMS", "'configuration' must be an object")
    return configuration


def _blank_message(sessions: OwnerSessions, name: TaskName) -> Msg:
    return Msg(sessions.agent.name, [], "assistant", id=name.reply_id)


def _is_over(task: _Json) -> bool:
    state: str = task["status"]["state"]
    return state not in ("TASK_STATE_WORKING", "TASK_STATE_INPUT_REQUIRED")
