"""The entrance of all routes: who asks, for which agent, and how much that owner has taken already."""

from collections.abc import Awaitable, Callable, Mapping
from contextlib import ExitStack
from typing import Any

from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from agentrt.errors import StateError
from agentrt.runner.base import RunnerBase
from agentrt.serving.failure import ApiError, as_api_error
from agentrt.serving.limits import Limits
from agentrt.serving.owners.auth import Authenticate, identify
from agentrt.serving.owners.owner import Owners
from agentrt.serving.owners.sessions import OwnerSessions

RouteHandler = Callable[[Request, OwnerSessions], Awaitable[ASGIApp]]


class Gate:
    """Admits requests for the agents of `runners`; `owners` have what all routes together count."""

    def __init__(self, runners: Mapping[str, RunnerBase], auth: Authenticate | None, limits: Limits) -> None:
        self.runners = runners
        self.limits = limits
        self.owners = Owners(limits, are_known=auth is not None)
        self.auth = auth

    def endpoint(self, handler: RouteHandler, *, reshape: Callable[[ApiError], ApiError] | None = None) -> ASGIApp:
        """Return an endpoint that knows who asks; `reshape` gives a refusal the form of another protocol."""
        return _Endpoint(self, handler, reshape)

    def open_runner(self, name: object, **details: Any) -> RunnerBase:
        """Return the runner of the agent of that name; raises `ApiError` if it does not exist, or is not open."""
        if not isinstance(name, str) or name not in self.runners:
            raise ApiError(404, "no_agent", "this server has no agent with this name", details=details)
        runner = self.runners[name]
        if not runner.is_open:
            raise ApiError(503, "not_open", "the runner of this server is not open", headers={"Retry-After": "1"})
        return runner


class _Endpoint:
    """One route, as an application: it holds the places of a request until its response has ended."""

    def __init__(self, gate: Gate, handler: RouteHandler, reshape: Callable[[ApiError], ApiError] | None) -> None:
        self._gate = gate
        self._handler = handler
        self._reshape = reshape

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request, gate, places = Request(scope, receive, send), self._gate, ExitStack()

        async def send_and_release(message: Message) -> None:
            await send(message)
            # Its client may ask again at once, before everything here is tidied up.
            if message["type"] == "http.response.body" and not message.get("more_body", False):
                places.close()

        try:
            # First, so that nobody unknown learns which agents there are.
            owner = await identify(gate.auth, gate.owners, request)
            with places:
                places.enter_context(owner.place("connections"))
                name = request.query_params.get("agent", next(iter(gate.runners)))
                response = await self._handler(request, OwnerSessions(owner, gate.open_runner(name), places))
                await response(scope, receive, send_and_release)
        # A store by others may raise an `OSError` as it is.
        except (ApiError, StateError, OSError) as error:
            refusal = as_api_error(error, f"{request.method} {request.url.path!r:.200}")
            raise (refusal if self._reshape is None else self._reshape(refusal)) from None
