"""The route `/mcp` of the application, behind the same gate as the other routes."""

from importlib import import_module
from types import TracebackType
from typing import Any, Self

import anyio
from anyio.abc import TaskGroup
from starlette.requests import Request
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from agentrt.serving.bodies import read_on_disconnect
from agentrt.serving.budget import read_object
from agentrt.serving.failure import ApiError
from agentrt.serving.gate import Gate
from agentrt.serving.owners.sessions import OwnerSessions

_SERVER_ERROR = -32000  # of JSON-RPC, for errors that a server defines


class McpRoute:
    """Answers clients of MCP while it is open. The SDK is imported for the first request."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate
        self._group: TaskGroup | None = None
        self._starting = anyio.Lock()
        self._http: Any = None

    def routes(self) -> list[Route]:
        endpoint = self._gate.endpoint(self._answer, reshape=_json_rpc_error)
        return [Route("/mcp", endpoint, methods=["GET", "POST", "DELETE"])]

    async def __aenter__(self) -> Self:
        # Entered by hand, as it stays open until `__aexit__`, which the owner calls in the same task.
        group = anyio.create_task_group()
        await group.__aenter__()
        # Both belong to the event loop that serves, which may not be that of the constructor.
        self._group, self._starting = group, anyio.Lock()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        group, self._group, self._http = self._group, None, None
        assert group is not None
        group.cancel_scope.cancel()
        await group.__aexit__(kind, error, traceback)

    async def _answer(self, request: Request, sessions: OwnerSessions) -> ASGIApp:
        leave = read_on_disconnect(request)
        body, method = b"", None
        if request.method == "POST":
            body, message = await read_object(request, self._gate.limits, items=("params",))
            method = message.get("method")
        http, runners = await self._start(), self._gate.runners
        if "agent" in request.query_params:
            runners = {sessions.agent.name: runners[sessions.agent.name]}
        # A call and a GET are streams, and count. An answer to a form does not: it must reach the call that waits.
        if request.method == "GET" or method == "tools/call":
            sessions.take_place("streams")

        async def answer(scope: Scope, receive: Receive, send: Send) -> None:
            connection = scope, _replay(body, receive), send
            await http.answer(sessions.owner, runners, method, interrupts=leave == "interrupt", connection=connection)

        return answer

    async def _start(self) -> Any:
        group = self._group
        if group is None:
            raise ApiError(503, "not_open", "this application is not running", headers={"Retry-After": "1"})
        async with self._starting:
            if self._http is None:
                try:
                    # In a thread, since it takes a second, in which other requests are answered.
                    module = await anyio.to_thread.run_sync(import_module, "agentrt.serving.mcp.http")
                except ModuleNotFoundError as error:
                    if error.name != "mcp":
                        raise
                    raise ApiError(
                        501, "no_mcp", "this server needs the extra 'mcp' for this: pip install \"agentrt[mcp]\""
                    ) from None
                http = module.McpHttp(self._gate.limits)
                await group.start(http.run)
                self._http = http
            return self._http


def _replay(body: bytes, receive: Receive) -> Receive:
    is_read = False

    async def receive_again() -> Message:
        nonlocal is_read
        if is_read:
            return await receive()
        is_read = True
        return {"type": "http.request", "body": body, "more_body": False}

    return receive_again


def _json_rpc_error(error: ApiError) -> ApiError:
    """Return the same refusal with the body of a JSON-RPC error."""
    failure = error.body["error"]
    refusal = ApiError(error.status, failure["code"], failure["message"], headers=error.headers)
    data = {name: value for name, value in failure.items() if name != "message"}
    refusal.body = {
        "jsonrpc": "2.0",
        "id": None,
        "error": {"code": _SERVER_ERROR, "message": failure["message"], "data": data},
    }
    return refusal
