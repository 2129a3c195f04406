"""One connection with an MCP server, in a task of its own.

So the toolset may be opened in one task and closed in another, and no scope of the SDK is open in a task of the user's.
Each call is a task of the connection as well, so a call whose server has asked the user something can wait there while
its reply is parked.
"""

import logging
import math
from collections.abc import Callable
from contextlib import AsyncExitStack
from functools import partial
from typing import Any, Literal, get_args

import anyio
from mcp import Client, MCPError
from mcp_types import (
    CONNECTION_CLOSED,
    METHOD_NOT_FOUND,
    PARSE_ERROR,
    CallToolRequest,
    CallToolRequestParams,
    CallToolResult,
    ElicitRequestParams,
    ElicitResult,
    EmptyResult,
    Implementation,
    InputRequiredResult,
    LoggingLevel,
    LoggingMessageNotificationParams,
    PromptListChangedNotification,
    ResourceListChangedNotification,
    SetLevelRequest,
    SetLevelRequestParams,
    ToolListChangedNotification,
)
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import TypeAdapter

from agentrt._runtime.concurrency.event_loop import run_shielded, spawn
from agentrt._runtime.text import first_error, mask, one_line
from agentrt.errors import ToolError
from agentrt.tool.mcp.notes import CallNotes
from agentrt.tool.mcp.oauth.needed import LoginNeeded
from agentrt.tool.mcp.text import clean_text, redact_sdk_logs
from agentrt.tool.mcp.transport.http import LOGIN_NEEDED, NOT_SENT, ServerURL
from agentrt.tool.mcp.transport.stdio import ServerProcess

ListKind = Literal["tools", "prompts", "resources"]

_logger = logging.getLogger("agentrt")
_SECONDS_TO_CLOSE = 10.0
_SECONDS_TO_STOP_CALL = 2.0
_MAX_PARKED = 100
_MAX_PARKED_SECONDS = 60 * 60.0
_MAX_PAGES = 100
_MAX_IN_LIST = 1_000
_RESULT: Any = TypeAdapter(CallToolResult | InputRequiredResult)
_CHANGED_LISTS: dict[type, ListKind] = {
    ToolListChangedNotification: "tools",
    PromptListChangedNotification: "prompts",
    ResourceListChangedNotification: "resources",
}
_LEVELS: tuple[LoggingLevel, ...] = get_args(LoggingLevel)


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
        self.outcome: CallToolResult | InputRequiredResult | Exception | LoginNeeded | None = None
        self.question: ElicitRequestParams | None = None
        self.notes: CallNotes | None = None
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

    def __init__(
        self,
        name: str,
        target: Any,
        on_change: Callable[[ListKind], None],
        *,
        begins_with_handshake: bool = False,
        log_level: LoggingLevel | None = None,
    ) -> None:
        redact_sdk_logs()
        self._name = name
        self._target = target
        self._on_change = on_change
        self._begins_with_handshake = begins_with_handshake
        self._log_level = log_level
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
        self._reads = 0  # of resources and prompts, which are in progress
        self._turn = anyio.Lock()
        self.parked: dict[str, ActiveCall] = {}
        self.is_dead = False
        self.has_answered = False  # a call: the server works

    @property
    def is_idle(self) -> bool:
        """Whether nothing is in progress, and no call waits for the user's answer."""
        return not self._calls and not self.parked and not self._reads

    async def open(self, seconds: float) -> None:
        """Start the server, and agree with it on a protocol version.

        Raises `ToolError` with what went wrong, and `LoginNeeded` if its user must log in first.
        """
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
            login = None if self._error is None else self.login_of(first_error(self._error))
            raise ToolError(self.describe(self._reason())) if login is None else login from None

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

    def login_of(self, error: BaseException) -> LoginNeeded | None:
        """Return the login that a request waits for which failed with `error`, `None` for any other failure."""
        is_login = isinstance(error, MCPError) and error.code == LOGIN_NEEDED and isinstance(self._target, ServerURL)
        data = error.data if is_login else None  # type: ignore[attr-defined]  # an MCPError
        number = data.get("login") if isinstance(data, dict) else None
        # A server may send this code too, with any number or none; it finds a login only where one is needed.
        return self._target.logins.pop(number, None) if isinstance(number, int) else None

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
                remedy = "give it a token with headers={...}, or auth=OAuth() for a login"
                return f"{where} refused us with the status {target.status}: {remedy}"
            if target.status is not None:
                older = "" if target.is_sse else ' A server of 2024 needs protocol="sse"'
                return f"{where} answered with the status {target.status}: is that the URL of its MCP endpoint?{older}"
            if target.problem:
                why = f"({target.problem}): is it running, and is the URL right?"
                return f"{where} cannot be reached {why}{target.proxy_question}"
            return f"{where} {problem}"
        return f"the MCP server {self._name!r} {problem}"

    @property
    def client(self) -> Client:
        """The client of the SDK; raises `ConnectionLost` if the connection has ended."""
        if self._client is None or self.is_dead:
            raise ConnectionLost(was_sent=False)
        return self._client

    async def ask(self, method: str, *arguments: Any, **options: Any) -> Any:
        """Return the result of a method of the SDK's client; raises `ToolError` for a refusal, and `LoginNeeded`."""
        is_list = method.startswith("list_")
        self._reads += not is_list
        try:
            return await getattr(self.client, method)(*arguments, **options)
        except ConnectionLost:
            raise ToolError(self.describe("has ended")) from None
        except MCPError as error:
            login = self.login_of(error)
            if login is not None:
                raise login from None
            if error.code == METHOD_NOT_FOUND and is_list:
                return None
            why = one_line(clean_text(error.message), 300)
        except Exception as error:  # noqa: BLE001  # whatever the SDK raises for what a server says
            why = type(error).__name__
        finally:
            self._reads -= not is_list
        raise ToolError(self.describe(f"refused {method}: {why}"))

    async def list_all(self, kind: str, seconds: float) -> list[Any]:
        """Return all that the server lists of a kind, such as "tools"; nothing if it has no such list.

        Raises as `ask` does, and `ToolError` after this time.
        """
        listed: list[Any] = []
        cursor: str | None = None
        # One limit for all pages together, since a server may send any number of them.
        with anyio.move_on_after(seconds) as scope:
            for _ in range(_MAX_PAGES):
                page = await self.ask(f"list_{kind}", cursor=cursor)
                if page is None:
                    break
                listed += getattr(page, kind)
                cursor = page.next_cursor
                if cursor is None or len(listed) >= _MAX_IN_LIST:
                    break
        if scope.cancelled_caught:
            raise ToolError(self.describe(f"did not list its {kind} within {seconds:g} seconds"))
        if len(listed) > _MAX_IN_LIST or cursor is not None:
            text = "the MCP server %r has more than %d %s: the others are left out"
            _logger.warning(text, self._name, _MAX_IN_LIST, kind)
        return listed[:_MAX_IN_LIST]

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
                    await self._ask_for_logs(client)
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
            target = target.connect(self._end)
        return Client(
            target,
            mode="legacy" if self._begins_with_handshake else "auto",
            client_info=Implementation(name="agentrt", version="1"),
            elicitation_callback=self._on_elicitation,
            message_handler=self._on_message,
            logging_callback=self._on_log,
            log_level=self._log_level,
            cache=None,
        )

    def _end(self) -> None:
        self.mark_dead()
        if self._client is None:  # nothing else would end the handshake
            self._scope.cancel()

    async def _ask_for_logs(self, client: Client) -> None:
        # Servers of the newer protocol read the level from each request.
        can_log = client.server_capabilities.logging is not None
        if self._log_level is None or not can_log or client.protocol_version in MODERN_PROTOCOL_VERSIONS:
            return
        try:
            request = SetLevelRequest(params=SetLevelRequestParams(level=self._log_level))
            await client.session.send_request(request, EmptyResult)
        except MCPError as error:
            _logger.warning("the MCP server %r refused the log level (%d)", self._name, error.code)

    async def _listen(self) -> None:
        # Servers of the newer protocol say that a list has changed only to those who listen.
        assert self._client is not None
        listen = partial(self._client.listen, tools_list_changed=True)
        try:
            async with listen(prompts_list_changed=True, resources_list_changed=True) as changes:
                async for _ in changes:
                    pass  # `_on_message` gets the same
        except Exception:  # noqa: BLE001  # one that cannot be listened to has a list that does not change
            _logger.debug("the MCP server %r cannot be listened to", self._name)

    async def _on_message(self, message: object) -> None:
        kind = _CHANGED_LISTS.get(type(message))
        if kind is not None:
            self._on_change(kind)

    async def _on_log(self, params: LoggingMessageNotificationParams) -> None:
        # Many servers send all that they log, whatever level they were given.
        if self._log_level is None or _LEVELS.index(params.level) < _LEVELS.index(self._log_level):
            return
        # The protocol does not say of which call it is, and no other conversation may see it.
        calls = [*self._calls, *self.parked.values()]
        if len(calls) == 1 and calls[0].notes is not None:
            await calls[0].notes.report_log(params)

    async def _on_elicitation(self, context: Any, params: ElicitRequestParams) -> ElicitResult:
        asking = [call for call in self._calls if call.question is None]
        if len(asking) == 1 and not self._reads:
            return await asking[0].ask(params)
        # The protocol does not say which request asks, and the wrong user must not be asked. There is one warning of
        # each kind, since a server may ask without end.
        if len(asking) < 2 and not self._has_asked_outside:
            self._has_asked_outside = True
            _logger.warning("the MCP server %r asked the user something outside of a call: cancelled", self._name)
        elif len(asking) > 1 and not self._takes_turns:
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
                report = None if call.notes is None else call.notes.report_progress
                request = CallToolRequest(params=call.request)
                call.outcome = await session.send_request(request, _RESULT, progress_callback=report)
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
            call.outcome = ConnectionLost(was_sent=not is_refused) if is_lost else self.login_of(error) or error
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
