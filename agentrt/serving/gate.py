"""The entrance of all routes: who asks, for which agent, and how many streams that owner may have."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from starlette.requests import Request
from starlette.types import ASGIApp

from agentrt.runner.base import RunnerBase
from agentrt.serving.auth import Authenticate, identify
from agentrt.serving.failure import ApiError
from agentrt.serving.limits import Limits, StreamSlots
from agentrt.serving.sessions import Visitor

__all__ = ["Gate", "RouteHandler"]

RouteHandler = Callable[[Request, Visitor], Awaitable[ASGIApp]]


class Gate:
    """Admits requests for the agents of `runners`; `slots` counts the streams of all routes together."""

    def __init__(self, runners: Mapping[str, RunnerBase], auth: Authenticate | None, limits: Limits) -> None:
        self.runners = runners
        self.limits = limits
        self.slots = StreamSlots(limits.streams_per_owner)
        self._auth = auth

    def endpoint(
        self, handler: RouteHandler, *, reshape: Callable[[ApiError], ApiError] | None = None
    ) -> Callable[[Request], Awaitable[ASGIApp]]:
        """Return an endpoint that knows its visitor; `reshape` gives a refusal the form of another protocol."""

        async def endpoint(request: Request) -> ASGIApp:
            try:
                # First, so that nobody unknown learns which agents there are.
                owner = await identify(self._auth, request)
                name = request.query_params.get("agent", next(iter(self.runners)))
                return await handler(request, Visitor(owner, self.open_runner(name)))
            except ApiError as error:
                if reshape is None:
                    raise
                raise reshape(error) from None

        return endpoint

    def open_runner(self, name: object, **details: Any) -> RunnerBase:
        """Return the runner of the agent of that name; raises `ApiError` where there is none, or it is not open."""
        if not isinstance(name, str) or name not in self.runners:
            raise ApiError(404, "no_agent", "this server has no agent of this name", details=details)
        runner = self.runners[name]
        if not runner.is_open:
            raise ApiError(503, "not_open", "the runner of this server is not open", headers={"Retry-After": "1"})
        return runner
