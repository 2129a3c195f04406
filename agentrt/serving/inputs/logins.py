"""The route that browsers come back to after a login at an MCP server."""

import logging
from collections.abc import Iterator
from contextlib import suppress

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from agentrt.errors import AgentRTError, StoreError, ToolError
from agentrt.event import RequireUserConfirmEvent
from agentrt.runner.base import RunnerBase
from agentrt.serving.failure import ApiError
from agentrt.serving.gate import Gate
from agentrt.serving.owners.auth import identify
from agentrt.tool import FinishedLogin, MCPToolset, OAuth

_logger = logging.getLogger("agentrt")

_CALLBACK_HEADERS = {"Cache-Control": "no-store", "Referrer-Policy": "no-referrer"}  # its own URL has a code


class LoginRoute:
    """Stores the tokens of a user who agreed, and lets the reply that asked continue.

    A browser that was sent by another site has no token of this application, so what admits it is the secret in the
    URL that only the asked user got. Where `auth` knows the browser, by a cookie for instance, it must be that user's.
    """

    def __init__(self, gate: Gate) -> None:
        self._gate = gate

    def routes(self) -> list[Route]:
        return [Route("/oauth/callback", self._finish)]

    async def _finish(self, request: Request) -> Response:
        owner = None
        with suppress(ApiError):
            owner = (await identify(self._gate.auth, self._gate.owners, request)).name
        parameters = dict(request.query_params)
        for runner, login, server_url in self._logins():
            try:
                finished = await login.finish(parameters, server_url=server_url, owner=owner)
            except ToolError as error:
                return PlainTextResponse(f"Not logged in: {error}.", 400, _CALLBACK_HEADERS)
            except StoreError as error:
                _logger.warning("a login was not finished: %s", error)
                text = "Not logged in: the tokens cannot be stored now. Try again."
                return PlainTextResponse(text, 503, _CALLBACK_HEADERS)
            if finished is not None:
                await self._continue_reply(runner, finished)
                return PlainTextResponse("You are logged in. You may close this page.", headers=_CALLBACK_HEADERS)
        text = "Not logged in: this login is unknown, has expired, or was already used. Begin it again."
        return PlainTextResponse(text, 400, _CALLBACK_HEADERS)

    def _logins(self) -> Iterator[tuple[RunnerBase, OAuth, str]]:
        for runner in self._gate.runners.values():
            toolkits = runner.agent.toolkit.toolkits_to_open(set())
            for toolset in (toolset for toolkit in toolkits for toolset in toolkit.toolsets):
                if isinstance(toolset, MCPToolset) and toolset.login is not None and toolset.server_url is not None:
                    yield runner, toolset.login, toolset.server_url

    async def _continue_reply(self, runner: RunnerBase, login: FinishedLogin) -> None:
        """Answer the question that asked for the login, if it still waits; its user may also do so."""
        # Whatever fails here, the user is logged in.
        with suppress(AgentRTError, OSError):
            state = await runner.store.load(login.session_id)
            question = None if state is None else runner.agent.with_state(state).waiting()
            if isinstance(question, RequireUserConfirmEvent):
                calls = [call for call in question.tool_calls if f"/{call.id}".endswith(f"/{login.call_id}")]
                if len(calls) == 1:
                    await runner.submit(login.session_id, question.approve(*calls))
