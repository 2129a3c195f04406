"""The server of the SDK, whose tools are agents."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import anyio
from mcp import MCPError
from mcp.server import Server, ServerRequestContext
from mcp.types import (
    INVALID_PARAMS,
    CallToolRequestParams,
    CallToolResult,
    CancelledNotificationParams,
    InputRequiredResult,
    ListToolsResult,
    PaginatedRequestParams,
    Tool,
)

import agentrt
from agentrt import Agent
from agentrt.errors import AgentRTError
from agentrt.runner.base import RunnerBase
from agentrt.serving.failure import ApiError, as_api_error
from agentrt.serving.mcp.call import AgentCall, has_forms
from agentrt.serving.mcp.result import OUTPUT_SCHEMA, error_result
from agentrt.serving.owners.owner import Owner
from agentrt.serving.owners.sessions import OwnerSessions

_logger = logging.getLogger("agentrt")
CALLER = "agentrt.mcp_caller"
"""The key of the `Caller` in the scope of a request."""
_MAX_CALLS = 1_000
_INTERRUPT_SECONDS = 5.0
_MAX_TOOL_NAME = 64
_ONLY_TOOL = "ask"


@dataclass(slots=True)
class Caller:
    """The owner who calls, and the agents for it; `call` is the call that this request runs."""

    owner: Owner
    runners: Mapping[str, RunnerBase]
    call: AgentCall | None = None


def make_server(caller: Caller) -> Server[Any]:
    """Return a server for one transport; a call that came in an HTTP request has the `Caller` of that request."""
    return _AgentTools(caller).server()


async def interrupt_call(call: AgentCall) -> None:
    """Interrupt the reply of a call whose client has left or cancelled it."""
    # The connection may be about to close, and nobody would end the reply then.
    with anyio.move_on_after(_INTERRUPT_SECONDS, shield=True):
        try:
            await call.interrupt()
        except AgentRTError as error:
            _logger.warning("a reply was not interrupted: %s", type(error).__name__)


class _AgentTools:
    """Lists the agents as tools, and calls them."""

    def __init__(self, caller: Caller) -> None:
        self._caller = caller
        self._calls: dict[tuple[str, str], AgentCall] = {}

    def server(self) -> Server[Any]:
        server: Server[Any] = Server(
            "agentrt", version=agentrt.__version__, on_list_tools=self._list_tools, on_call_tool=self._call_tool
        )
        # The SDK cancels the call by itself. Only the notice says that the client wanted that, and did not just leave.
        server.add_notification_handler(
            "notifications/cancelled", CancelledNotificationParams, self._interrupt_cancelled
        )
        return server

    async def _list_tools(
        self, ctx: ServerRequestContext[Any, Any], _: PaginatedRequestParams | None
    ) -> ListToolsResult:
        takes_answers = not has_forms(ctx)
        runners = self._caller_of(ctx).runners
        return ListToolsResult(
            tools=[
                self._describe(tool, runners[name].agent, takes_answers=takes_answers)
                for tool, name in tool_names(runners).items()
            ]
        )

    def _describe(self, tool: str, agent: Agent, *, takes_answers: bool) -> Tool:
        purpose = agent.description or f"Ask the agent {agent.name!r}, which may use tools of its own."
        properties: dict[str, Any] = {
            "message": {"type": "string", "description": "What to say to the agent."},
            "session_id": {
                "type": "string",
                "description": "The conversation to continue, from an earlier result. Leave it out to begin a new "
                "one; give it without a message to read on what the agent is doing, or what it said last.",
            },
        }
        if takes_answers:
            properties["answer"] = {
                "type": "object",
                "additionalProperties": {"type": "string"},
                "description": "In place of a message: the user's answer to what the agent asks, by the ids of its "
                'calls: "approve" or "deny", or the result. Ask the user first.',
            }
        return Tool(
            name=tool,
            description=f"{purpose} Returns its answer, and the session_id with which the conversation continues.",
            input_schema={"type": "object", "properties": properties, "additionalProperties": False},
            output_schema=OUTPUT_SCHEMA,
        )

    async def _call_tool(
        self, ctx: ServerRequestContext[Any, Any], params: CallToolRequestParams
    ) -> CallToolResult | InputRequiredResult:
        caller = self._caller_of(ctx)
        agent = tool_names(caller.runners).get(params.name)
        if agent is None:
            # A protocol error and not a result: the mistake is one of the client, and not of its model.
            raise MCPError(INVALID_PARAMS, f"this server has no tool {params.name!r:.100}")
        runner = caller.runners[agent]
        if not runner.is_open:
            return error_result(ApiError(503, "not_open", "the runner of this server is not open"), None)
        call = caller.call = AgentCall(ctx, OwnerSessions(caller.owner, runner))
        key = _key(ctx, ctx.request_id)
        # A call that is cancelled stays here, since the notice of the client may come just after that.
        self._calls[key] = call
        if len(self._calls) > _MAX_CALLS:
            del self._calls[next(iter(self._calls))]
        result = await self._run(call, params)
        self._calls.pop(key, None)
        caller.call = None
        return result

    async def _run(self, call: AgentCall, params: CallToolRequestParams) -> CallToolResult | InputRequiredResult:
        try:
            return await call.run(params)
        except ApiError as error:
            return await self._explain(call, error)
        except (AgentRTError, OSError) as error:
            return error_result(as_api_error(error, "a call by MCP"), call.session_id)
        except Exception as error:  # noqa: BLE001  # the SDK would send its message to the client
            _logger.error("a call by MCP failed: %s", type(error).__name__)
            return error_result(ApiError(500, "internal", "this server failed"), call.session_id)

    async def _explain(self, call: AgentCall, error: ApiError) -> CallToolResult:
        try:
            return await call.explain(error)
        except (ApiError, AgentRTError):
            return error_result(error, call.session_id)

    async def _interrupt_cancelled(
        self, ctx: ServerRequestContext[Any, Any], params: CancelledNotificationParams
    ) -> None:
        call = self._calls.pop(_key(ctx, params.request_id), None)
        if call is not None:
            await interrupt_call(call)

    def _caller_of(self, ctx: ServerRequestContext[Any, Any]) -> Caller:
        if ctx.request is None:
            return self._caller
        caller: Caller = ctx.request.scope[CALLER]
        return caller


def tool_names(runners: Mapping[str, RunnerBase]) -> dict[str, str]:
    """Return the names of the agents by the names of their tools, which may have fewer kinds of characters."""
    # One tool needs no name of its own: the client has a name for the server.
    if len(runners) == 1:
        return {_ONLY_TOOL: next(iter(runners))}
    names: dict[str, str] = {}
    for agent in runners:
        base = "".join(char if char.isascii() and (char.isalnum() or char in "_-") else "_" for char in agent)
        base = base[:_MAX_TOOL_NAME] or _ONLY_TOOL
        name, number = base, 1
        while name in names:
            number += 1
            name = f"{base[: _MAX_TOOL_NAME - 4]}_{number}"
        names[name] = agent
    return names


def _key(ctx: ServerRequestContext[Any, Any], request_id: object) -> tuple[str, str]:
    """Return a key for a call that is unique among all connections; clients may write a number as text."""
    connection = "" if ctx.request is None else ctx.request.headers.get("mcp-session-id", "")
    return connection, str(request_id)
