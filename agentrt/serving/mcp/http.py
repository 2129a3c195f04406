"""Streamable HTTP: the SDK's sessions of the protocol, each for the owner that opened it."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from time import monotonic

import anyio
from anyio.abc import TaskStatus
from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from starlette.types import Message, Receive, Scope, Send

from agentrt.runner.base import RunnerBase
from agentrt.serving.limits import Limits
from agentrt.serving.mcp.server import CALLER, Caller, interrupt_call, make_server
from agentrt.serving.owners.owner import Owner

_IDLE_SECONDS = 1800.0
_RUNNER_LOOK_SECONDS = 0.5
_SESSION_HEADER = b"mcp-session-id"


class McpHttp:
    """Answers requests of clients while `run` is running."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._sessions = _ProtocolSessions()
        self._manager = StreamableHTTPSessionManager(
            make_server(Caller(Owner(None), {})),
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
        owner: Owner,
        runners: Mapping[str, RunnerBase],
        method: str | None,
        *,
        interrupts: bool,
        connection: tuple[Scope, Receive, Send],
    ) -> None:
        """Answer one request; with `interrupts`, the reply of a call is interrupted if its client leaves."""
        scope, receive, send = connection
        caller = Caller(owner, runners)
        opened = dict(scope["headers"]).get(_SESSION_HEADER, b"").decode("latin-1")
        if owner.name is not None:
            # This tells the SDK whose session it is, so that other owners do not find it.
            token = AccessToken(token="", client_id=owner.name, scopes=[])
            scope = {**scope, "user": AuthenticatedUser(token)}
            self._sessions.note(opened, owner)
        scope[CALLER] = caller
        places = ExitStack()

        async def note_and_send(message: Message) -> None:
            if message["type"] == "http.response.start":
                # The SDK does not say which sessions it has, so they are read from its answers.
                new = dict(message.get("headers", ())).get(_SESSION_HEADER, b"").decode("latin-1")
                if new and not opened:
                    self._sessions.begin(new, owner, places)
                if opened and (scope["method"] == "DELETE" or message["status"] == 404):
                    self._sessions.forget(opened, owner)
            await send(message)

        exchange = _HttpExchange(receive, note_and_send, self._limits.stall_seconds)
        with places:
            if method == "initialize":
                self._sessions.forget_idle()
                places.enter_context(owner.place("mcp_sessions"))
            async with anyio.create_task_group() as group:
                exchange.scope = group.cancel_scope
                group.start_soon(exchange.end_with_runners, list(runners.values()))
                await self._manager.handle_request(scope, exchange.receive, exchange.send)
                group.cancel_scope.cancel()
            await exchange.finish()
        # A connection that is lost and one that is closed on purpose look the same.
        if interrupts and exchange.is_left and caller.call is not None:
            await interrupt_call(caller.call)


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


class _ProtocolSessions:
    """The sessions of the protocol that owners have in use. Most clients never end theirs: idle ones are forgotten."""

    def __init__(self) -> None:
        self._places: dict[tuple[str, Owner], ExitStack] = {}
        self._used: dict[tuple[str, Owner], float] = {}

    def forget_idle(self) -> None:
        """Give back the places of those that the SDK has ended by itself."""
        oldest = monotonic() - _IDLE_SECONDS
        for key in [key for key, used in self._used.items() if used <= oldest]:
            self.forget(*key)

    def begin(self, session: str, owner: Owner, places: ExitStack) -> None:
        """Note a new session, which keeps the places that its first request has taken."""
        self._places[session, owner] = places.pop_all()
        self._used[session, owner] = monotonic()

    def note(self, session: str, owner: Owner) -> None:
        """Note that a session is used."""
        if (session, owner) in self._used:
            self._used[session, owner] = monotonic()

    def forget(self, session: str, owner: Owner) -> None:
        self._used.pop((session, owner), None)
        self._places.pop((session, owner), ExitStack()).close()
