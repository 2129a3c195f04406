"""One connection with an MCP server, in a task of its own.

So the toolset may be opened in one task and closed in another, and no scope of the SDK is open in a task of the user's.
Each call is a task of the connection as well, so a call whose server has asked the user something can wait there while
its reply is parked.
"""

import logging
import math
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any

import anyio
from mcp import Client, MCPError
from mcp_types import (
    CONNECTION_CLOSED,
    PARSE_ERROR,
    CallToolRequest,
    CallToolRequestParams,
    CallToolResult,
    ElicitRequestParams,
    ElicitResult,
    Implementation,
    InputRequiredResult,
    ToolListChangedNotification,
)
from pydantic import TypeAdapter

from agentrt._runtime.concurrency.event_loop import run_shielded, spawn
from agentrt._runtime.text import first_error, mask, one_line
from agentrt.errors import ToolError
from agentrt.tool.mcp.http import NOT_SENT, ServerURL
from agentrt.tool.mcp.stdio import ServerProcess
from agentrt.tool.mcp.text import clean_text, redact_sdk_logs

__all__ = ["ActiveCall", "Connection", "ConnectionLost"]

_logger = logging.getLogger("agentrt")
_SECONDS_TO_CLOSE = 10.0
_SECONDS_TO_STOP_CALL = 2.0
_MAX_PARKED = 100
_MAX_PARKED_SECONDS = 60 * 60.0
_RESULT: Any = TypeAdapter(CallToolResult | InputRequiredResult)


class ConnectionLost(Exception):
    """The server has ended, or is unreachable; `was_sent` says whether it may have started the call."""

    def __init__(self, was_sent: bool) -> None:
        super().__init__("the connection with the server was lost")
        self.was_sent = was_sent


class ActiveCall:
    """A call that a server works on; `wait` returns when the call has ended, or its server asks something."""

    def __init__(
        self, request: CallToolRequestParams, answer_known: Callable[[ElicitRequestParams], ElicitResult | None]
    ) -> None:
        self.request = request
        self.outcome: CallToolResult | InputRequiredResult | Exception | None = None
        self.question: ElicitRequestParams | None = None
        self.on_progress: Any = None
        self.scope = anyio.CancelScope()
        self._answer_known = answer_known
        self._answer: ElicitResult | None = None
        self._answered = anyio.Event()
        self._changed = anyio.Event()
        self.ended = anyio.Event()

    async def wait(self) -> None:
        """Wait until the call has ended or its server asks something; if this is cancelled, so is the call."""
        try:
            await self._changed.wait()
        except BaseException:
            # The SDK tells the server, in the task of the call. That task must not outlive its reply.
            self.scope.cancel()
            await run_shielded(_SECONDS_TO_STOP_CALL, self.ended.wait)
            raise
        self._changed = anyio.Event()  # for the next wait, after an answer

    def settle(self) -> None:
        self._changed.set()

    async def ask(self, question: ElicitRequestParams) -> ElicitResult:
        """Return the answer to what the server asks, and wait until there is one."""
        # The server of a call that was sent again asks again.
        known = self._answer_known(question)
        if known is not None:
            return known
        self.question, self._answered = question, anyio.Event()
        self._changed.set()
        await self._answered.wait()
        assert self._answer is not None
        return self._answer

    def answer(self, result: ElicitResult) -> None:
        """Give the server the answer, so that it continues its work."""
        self.scope.deadline = math.inf
        self.question, self._answer = None, result
        self._answered.set()


class Connection:
    """A connection with a server, from `open` to `close` or until it `is_dead`."""

    def __init__(self, name: str, target: Any, on_change: Callable[[], None]) -> None:
        redact_sdk_logs()
        self._name = name
        self._target = target
        self._on_change = on_change
        self._client: Client | None = None
        self._group: Any = None
        self._error: BaseException | None = None
        self._scope = anyio.CancelScope()
        self._settled = anyio.Event()
        self._stop = anyio.Event()
        self._ended = anyio.Event()
        self._calls: list[ActiveCall] = []
        self._takes_turns = False
        self._has_asked_outside = False
        self._turn = anyio.Lock()
        self.parked: dict[str, ActiveCall] = {}
        self.is_dead = False

    async def open(self, seconds: float) -> None:
        """Start the server, and agree with it on a protocol version; raises `ToolError` with what went wrong."""
        # Not in a task group of the caller, which would have to be closed in the task that opened it.
        spawn(self._run)
        try:
            with anyio.move_on_after(seconds) as scope:
                await self._settled.wait()
        except BaseException:
            await self.close()
            raise
        if scope.cancelled_caught:
            await self.close()
            raise ToolError(self.describe(f"did not answer within {seconds:g} seconds"))
        if self._client is None:
            await self.close()
            raise ToolError(self.describe(self._reason())) from None

    async def close(self) -> None:
        """End the server and everything that belongs to the connection, even if this is cancelled meanwhile."""
        self._stop.set()
        if self._client is None:  # it may still be connecting
            self._scope.cancel()
        if await run_shielded(_SECONDS_TO_CLOSE, self._ended.wait):
            return
        self._scope.cancel()
        if not await run_shielded(_SECONDS_TO_CLOSE, self._ended.wait):
            _logger.error("the connection with the MCP server %r did not end", self._name)

    def describe(self, problem: str) -> str:
        """Return the message about a problem: with the server's command or URL, and without secrets."""
        return mask(self._describe(problem), getattr(self._target, "secrets", ()))

    def _describe(self, problem: str) -> str:
        target = self._target
        if isinstance(target, ServerProcess):
            command = target.shown_command
            # The most common mistake has its own remedy.
            if isinstance(self._error, FileNotFoundError | NotADirectoryError | PermissionError):
                return (
                    f"the MCP server {self._name!r} cannot be started: the program {target.command[0]!r} of "
                    f"{command!r:.300} cannot be run ({type(self._error).__name__}): install it, or give its path"
                )
            code = "" if target.exit_code is None else f"; it ended with the exit code {target.exit_code}"
            last = f"; its standard error ends with {target.last_lines!r:.1200}" if target.last_lines else ""
            return f"the MCP server {self._name!r}, started by {command!r:.300}, {problem}{code}{last}"
        if isinstance(target, ServerURL):
            where = f"the MCP server {self._name!r} at {target.shown_url}"
            if target.refusal:
                return target.refusal
            if target.status in (401, 403):
                remedy = "give it a token with headers={...} or auth=..."
                return f"{where} refused us with the status {target.status}: {remedy}"
            if target.status is not None:
                return f"{where} answered with the status {target.status}: is that the URL of its MCP endpoint?"
            if target.problem:
                return f"{where} cannot be reached ({target.problem}): is it running, and is the URL right?"
            return f"{where} {problem}"
        return f"the MCP server {self._name!r} {problem}"

    @property
    def client(self) -> Client:
        """The client of the SDK; raises `ConnectionLost` if the connection has ended."""
        if self._client is None or self.is_dead:
            raise ConnectionLost(was_sent=False)
        return self._client

    async def run_call(self, call: ActiveCall, *, is_begun: bool = False) -> None:
        """Send the call, unless that is done, and wait until its `outcome` or its `question` is set."""
        if not self._takes_turns:
            await self._send_and_wait(call, is_begun)
            return
        async with self._turn:
            await self._send_and_wait(call, is_begun)

    async def _send_and_wait(self, call: ActiveCall, is_begun: bool) -> None:
        if not is_begun:
            session = self.client.session
            self._group.start_soon(self._request, session, call)
        # Listed while it is in progress, so that a question of the server is matched with its call.
        self._calls.append(call)
        try:
            await call.wait()
        finally:
            self._calls.remove(call)

    def park(self, key: str, call: ActiveCall) -> None:
        """Keep a call that waits for an answer; if there are too many, the oldest is cancelled."""
        call.scope.deadline = anyio.current_time() + _MAX_PARKED_SECONDS
        self.parked[key] = call
        # A server may ask without end, and the connection does not learn that a reply was interrupted.
        if len(self.parked) > _MAX_PARKED:
            self.parked.pop(next(iter(self.parked))).scope.cancel()

    def mark_dead(self) -> None:
        """Note that the server has ended."""
        self.is_dead = True
        self._stop.set()

    async def _run(self) -> None:
        try:
            with self._scope:
                async with AsyncExitStack() as stack:
                    client = await stack.enter_async_context(self._connected_client())
                    self._group = await stack.enter_async_context(anyio.create_task_group())
                    self._client = client
                    self._group.start_soon(self._listen)
                    self._settled.set()
                    await self._stop.wait()
                    self._group.cancel_scope.cancel()
        except Exception as error:  # noqa: BLE001  # `open` raises it, or the next call notices the end
            self._error = error
        finally:
            self.is_dead = True
            self._settled.set()
            self._ended.set()

    def _connected_client(self) -> Client:
        target = self._target
        if isinstance(target, ServerProcess):
            target = target.connect(self.mark_dead)
        elif isinstance(target, ServerURL):
            target = target.connect()
        return Client(
            target,
            client_info=Implementation(name="agentrt", version="1"),
            elicitation_callback=self._on_elicitation,
            message_handler=self._on_message,
            cache=None,
        )

    async def _listen(self) -> None:
        # Servers of the newer protocol say that their list has changed only to those who listen.
        assert self._client is not None
        try:
            async with self._client.listen(tools_list_changed=True) as changes:
                async for _ in changes:
                    self._on_change()
        except Exception:  # noqa: BLE001  # one that cannot be listened to has a list that does not change
            _logger.debug("the MCP server %r cannot be listened to", self._name)

    async def _on_message(self, message: object) -> None:
        if isinstance(message, ToolListChangedNotification):
            self._on_change()

    async def _on_elicitation(self, context: Any, params: ElicitRequestParams) -> ElicitResult:
        asking = [call for call in self._calls if call.question is None]
        if len(asking) == 1:
            return await asking[0].ask(params)
        # The protocol does not say which call asks, and the wrong user must not be asked. There is one warning of each
        # kind, since a server may ask without end.
        if not asking and not self._has_asked_outside:
            self._has_asked_outside = True
            _logger.warning("the MCP server %r asked the user something outside of a call: cancelled", self._name)
        elif asking and not self._takes_turns:
            self._takes_turns = True
            _logger.warning(
                "the MCP server %r asked the user something while %d calls were in progress, which the protocol does "
                "not tell apart: the question was cancelled, and from now on it gets one call at a time",
                self._name,
                len(asking),
            )
        return ElicitResult(action="cancel")

    async def _request(self, session: Any, call: ActiveCall) -> None:
        try:
            with call.scope:
                call.outcome = await session.send_request(
                    CallToolRequest(params=call.request), _RESULT, progress_callback=call.on_progress
                )
        except Exception as error:  # noqa: BLE001  # raised where the call is waited for
            # When a connection ends, the SDK raises this error for all calls in progress.
            code = error.code if isinstance(error, MCPError) else None
            # A server may send this code too; then its transport has no problem.
            is_refused = (
                code == NOT_SENT
                and isinstance(self._target, ServerURL)
                and bool(self._target.problem or self._target.refusal)
            )
            is_lost = is_refused or code == CONNECTION_CLOSED
            call.outcome = ConnectionLost(was_sent=not is_refused) if is_lost else error
        finally:
            # Cancelled: by the connection, which has ended, or by the caller, who does not read the outcome.
            if call.outcome is None:
                call.outcome = ConnectionLost(was_sent=True)
            call.ended.set()
            call.settle()

    def _reason(self) -> str:
        if self._error is None:
            return "ended before it answered"
        error = first_error(self._error)
        if isinstance(error, MCPError):
            if error.code == CONNECTION_CLOSED:
                return "ended before it answered"
            if error.code == PARSE_ERROR:  # which quotes the answer
                return "answered with something that is not MCP"
            return f"refused us: {one_line(clean_text(error.message), 300)}"
        if isinstance(error, OSError):
            return f"cannot be started ({type(error).__name__})"
        return f"answered with something that is not MCP ({type(error).__name__})"
