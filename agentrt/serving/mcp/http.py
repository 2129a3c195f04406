"""Streamable HTTP: the SDK's sessions of the protocol, each for the owner that opened it."""

from collections import Counter
from collections.abc import Mapping, Sequence
from time import monotonic

import anyio
from anyio.abc import TaskStatus
from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from starlette.types import Message, Receive, Scope, Send

from agentrt.runner.base import RunnerBase
from agentrt.serving.failure import ApiError
from agentrt.serving.limits import Limits
from agentrt.serving.mcp.server import CALLER, Caller, interrupt_call, make_server
from agentrt.serving.sessions import Visitor

__all__ = ["McpHttp"]

_IDLE_SECONDS = 1800.0
_CONNECTIONS_PER_OWNER = 100
"""Limited, since most clients never end theirs, and one owner must not take the place of others."""
_RUNNER_LOOK_SECONDS = 0.5
_SESSION_HEADER = b"mcp-session-id"


class McpHttp:
    """Answers requests of clients while `run` is running."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._connections = _Connections()
        self._manager = StreamableHTTPSessionManager(
            make_server(Caller(None, {})),
            session_idle_timeout=_IDLE_SECONDS,
            max_request_body_size=limits.body_bytes,
            max_sessions=limits.connections,
        )

    async def run(self, *, task_status: TaskStatus[None]) -> None:
        """Keep the sessions, until this is cancelled."""
        async with self._manager.run():
            task_status.started()
            await anyio.sleep_forever()

    async def answer(
        self,
        visitor: Visitor,
        runners: Mapping[str, RunnerBase],
        method: str | None,
        *,
        interrupts: bool,
        connection: tuple[Scope, Receive, Send],
    ) -> None:
        """Answer one request; with `interrupts`, the reply of a call is interrupted if its client leaves."""
        scope, receive, send = connection
        caller = Caller(visitor.owner, runners)
        opened = dict(scope["headers"]).get(_SESSION_HEADER, b"").decode("latin-1")
        if caller.owner is not None:
            # This tells the SDK whose session it is, so that other owners do not find it.
            token = AccessToken(token="", client_id=caller.owner, scopes=[])
            scope = {**scope, "user": AuthenticatedUser(token)}
            if method == "initialize":
                self._connections.check(caller.owner)
            elif opened:
                self._connections.note(opened, caller.owner, is_new=False)
        scope[CALLER] = caller

        async def note_and_send(message: Message) -> None:
            if message["type"] == "http.response.start" and caller.owner is not None:
                self._note_session(message, scope, opened, caller.owner)
            await send(message)

        exchange = _HttpExchange(receive, note_and_send, self._limits.stall_seconds)
        async with anyio.create_task_group() as group:
            exchange.scope = group.cancel_scope
            group.start_soon(exchange.end_with_runners, list(runners.values()))
            await self._manager.handle_request(scope, exchange.receive, exchange.send)
            group.cancel_scope.cancel()
        await exchange.finish()
        # A connection that is lost and one that is closed on purpose look the same.
        if interrupts and exchange.is_left and caller.call is not None:
            await interrupt_call(caller.call)

    def _note_session(self, message: Message, scope: Scope, opened: str, owner: str) -> None:
        # The SDK does not say which sessions it has, so they are read from its answers.
        new = dict(message.get("headers", ())).get(_SESSION_HEADER, b"").decode("latin-1")
        if new and not opened:
            self._connections.note(new, owner, is_new=True)
        if opened and (scope["method"] == "DELETE" or message["status"] == 404):
            self._connections.forget(opened, owner)


class _HttpExchange:
    """A request and its response, which ends early if its reader stalls, or the server stops."""

    def __init__(self, receive: Receive, send: Send, stall_seconds: float) -> None:
        self.is_left = False
        self.scope: anyio.CancelScope
        self._receive = receive
        self._send = send
        self._stall_seconds = stall_seconds
        self._is_open = False  # between the beginning and the end of the response

    async def receive(self) -> Message:
        message = await self._receive()
        self.is_left = self.is_left or message["type"] == "http.disconnect"
        return message

    async def send(self, message: Message) -> None:
        with anyio.move_on_after(self._stall_seconds) as limit:
            await self._send(message)
        if limit.cancelled_caught:
            # The reply continues, and the client may come back.
            self.is_left = True
            self.scope.cancel()
        self._is_open = message["type"] == "http.response.start" or message.get("more_body", False)

    async def end_with_runners(self, runners: Sequence[RunnerBase]) -> None:
        """End the response when the runners are closed; that of a GET has no other end."""
        while any(runner.is_open for runner in runners):  # noqa: ASYNC110  # a runner has no event for it
            await anyio.sleep(_RUNNER_LOOK_SECONDS)
        # Time for calls to say by themselves that the server stops.
        await anyio.sleep(_RUNNER_LOOK_SECONDS)
        self.scope.cancel()

    async def finish(self) -> None:
        """Send the end of a response that was cut, if its reader is still there."""
        if self._is_open and not self.is_left:
            await self._send({"type": "http.response.body", "body": b""})


class _Connections:
    """Counts the sessions of the protocol that each owner has in use."""

    def __init__(self) -> None:
        self._used: dict[tuple[str, str], float] = {}

    def check(self, owner: str) -> None:
        """Raise `ApiError` if the owner has as many as are allowed."""
        oldest = monotonic() - _IDLE_SECONDS
        self._used = {key: used for key, used in self._used.items() if used > oldest}
        if Counter(name for _, name in self._used)[owner] >= _CONNECTIONS_PER_OWNER:
            raise ApiError(
                429,
                "too_many_connections",
                f"you have {_CONNECTIONS_PER_OWNER} sessions of MCP open, as many as you may: end one by DELETE",
                headers={"Retry-After": "60"},
            )

    def note(self, session: str, owner: str, *, is_new: bool) -> None:
        if is_new or (session, owner) in self._used:
            self._used[session, owner] = monotonic()

    def forget(self, session: str, owner: str) -> None:
        self._used.pop((session, owner), None)
