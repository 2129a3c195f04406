"""The application: agents, their runners, and what stands between them and the network."""

import logging
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from types import TracebackType

import anyio
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from agentrt.agent import Agent
from agentrt.errors import ConfigError, SessionIOError
from agentrt.runner import Runner
from agentrt.runner.base import RunnerBase
from agentrt.serving.a2a import A2ARoutes
from agentrt.serving.agui import AgUi
from agentrt.serving.api import Api
from agentrt.serving.auth import Authenticate
from agentrt.serving.failure import ApiError, failure_body
from agentrt.serving.gate import Gate
from agentrt.serving.guard import RequestGuard, check_origins
from agentrt.serving.inputs import InputBoard, InputRoutes
from agentrt.serving.json_response import JsonResponse
from agentrt.serving.limits import Limits
from agentrt.serving.mcp.route import McpRoute
from agentrt.serving.openai import OpenAIApi
from agentrt.serving.studio import LayerRoutes, StudioPage
from agentrt.state import InMemoryStateStore, SessionStore

__all__ = ["create_app"]

_logger = logging.getLogger("agentrt")
_EXPIRY_SECONDS = 3600
_READY_SECONDS = 5.0
_CLIENT_HEADERS = (
    *("A2A-Version", "Authorization", "Content-Type", "Idempotency-Key", "If-None-Match", "Last-Event-ID"),
    *("Mcp-Session-Id", "Mcp-Protocol-Version", "Mcp-Method", "Mcp-Name"),
)
_SERVER_HEADERS = ("ETag", "Location", "Mcp-Session-Id", "Retry-After")
_HTTP_CODES = {404: ("not_found", "there is nothing at this path"), 405: ("method", "this path has other methods")}


def create_app(
    agents: Agent | Sequence[Agent],
    *,
    runner: RunnerBase | None = None,
    store: SessionStore | None = None,
    auth: Authenticate | None = None,
    allow_origins: Sequence[str] = (),
    limits: Limits | None = None,
    studio: bool = True,
) -> Starlette:
    """Return an application that serves the agents; needs the extra `serve`.

    Each agent has a runner, which works while the application runs. It is `runner`, or one over `store`, the store of
    the agent, or memory; several agents need a store each. A runner that is open already is left as it is. In another
    application, enter `app.router.lifespan_context(app)` in its lifespan, since a mounted one has none.

    Without `auth` it answers only to this machine. With it, each session belongs to the owner that `auth` returned for
    the request that began it, by its label "owner", and is not there for others. Pages of `allow_origins` may use it,
    besides its own. With `studio` it has a page at `/studio`, where all of this can be done and seen.
    """
    runners = _make_runners(agents, runner, store)
    if auth is not None and not callable(auth):
        raise ConfigError(f"create_app(auth=...) must be BearerTokens or an async function, not {type(auth).__name__}")
    limits = Limits() if limits is None else limits
    if not isinstance(limits, Limits):
        raise ConfigError(f"create_app(limits=...) must be Limits, not {limits!r:.200}")
    origins = check_origins(allow_origins)
    health = _Health(runners)
    gate = Gate(runners, auth, limits)
    board = InputBoard(has_owners=auth is not None)
    mcp = McpRoute(gate)
    app = Starlette(
        routes=[
            *Api(gate).routes(),
            *InputRoutes(gate, board).routes(),
            *LayerRoutes(gate).routes(),
            *(StudioPage().routes() if studio else ()),
            *AgUi(gate).routes(),
            *OpenAIApi(gate, has_studio=studio).routes(),
            *mcp.routes(),
            *A2ARoutes(gate, has_owners=auth is not None).routes(),
            Route("/healthz", health.answer),
            Route("/readyz", health.answer_ready),
        ],
        middleware=_make_middleware(origins, limits, is_local=auth is None),
        exception_handlers={
            ApiError: _answer_api_error,
            HTTPException: _answer_http_exception,
            SessionIOError: _answer_store_error,
            OSError: _answer_store_error,  # of a store by others, which may raise it as it is
        },
        lifespan=lambda _: _Workers(list(runners.values()), mcp),
    )
    app.state.inputs = board  # where `RemoteUserInput(app)` asks
    return app


def _make_middleware(origins: tuple[str, ...], limits: Limits, *, is_local: bool) -> list[Middleware]:
    guard = Middleware(RequestGuard, is_local=is_local, origins=origins, max_requests=limits.connections)
    if not origins:
        return [guard]
    cors = Middleware(
        CORSMiddleware,
        allow_origins=origins,
        allow_methods=["GET", "POST", "DELETE"],
        allow_headers=_CLIENT_HEADERS,
        expose_headers=_SERVER_HEADERS,
    )
    return [cors, guard]  # the guard inside, so that a page may read its refusals too


def _make_runners(
    agents: Agent | Sequence[Agent], runner: RunnerBase | None, store: SessionStore | None
) -> dict[str, RunnerBase]:
    listed = _list_agents(agents)
    if runner is not None:
        is_whole = getattr(runner, "agent", None) is listed[0] and len(listed) == 1
        if not is_whole or store not in (None, runner.store):
            raise ConfigError("create_app(agent, runner=...) takes a Runner of this agent, and no other store")
        return {runner.agent.name: runner}
    if len(listed) == 1:
        chosen = store or listed[0].state_store or InMemoryStateStore()
        return {listed[0].name: Runner(listed[0], chosen)}  # type: ignore[arg-type]  # it looks at the store itself
    stores = [agent.state_store or InMemoryStateStore() for agent in listed]
    if store is not None or len({id(state_store) for state_store in stores}) < len(stores):
        raise ConfigError(
            "several agents need a store each, since their sessions differ: write Agent(state_store=...) in each"
        )
    return {agent.name: Runner(agent, own) for agent, own in zip(listed, stores, strict=True)}  # type: ignore[arg-type]


def _list_agents(agents: object) -> list[Agent]:
    listed = [agents] if isinstance(agents, Agent) else list(agents) if isinstance(agents, Sequence) else []
    if not listed or not all(isinstance(agent, Agent) for agent in listed):
        raise ConfigError(f"create_app takes an Agent, or a list of them, not {agents!r:.200}")
    if len({agent.name for agent in listed}) < len(listed):
        raise ConfigError("create_app needs agents of different names: ?agent= chooses by them")
    return listed


class _Workers:
    """Opens the runners, works them while the application runs, and drains them at its end."""

    def __init__(self, runners: Sequence[RunnerBase], mcp: McpRoute) -> None:
        self._runners = [runner for runner in runners if not runner.is_open]
        self._mcp = mcp
        self._stack = AsyncExitStack()
        self._is_stopping = False

    async def __aenter__(self) -> None:
        try:
            for runner in self._runners:
                await self._stack.enter_async_context(runner)
            await self._stack.enter_async_context(self._mcp)
            group = await self._stack.enter_async_context(anyio.create_task_group())
            self._helpers = await self._stack.enter_async_context(anyio.create_task_group())
        except BaseException:
            await self._stack.aclose()
            raise
        for runner in self._runners:
            group.start_soon(self._work, runner)
            self._helpers.start_soon(_expire_sessions, runner.store)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        # Set first, since a worker may not have begun yet.
        self._is_stopping = True
        self._helpers.cancel_scope.cancel()
        for runner in self._runners:
            await runner.drain()
        await self._stack.__aexit__(kind, error, traceback)

    async def _work(self, runner: RunnerBase) -> None:
        if not self._is_stopping:  # a runner that is drained before it works would not know it
            await runner.work()


async def _expire_sessions(store: SessionStore) -> None:
    """Call the store's `expire` now and every hour."""
    expire = getattr(store, "expire", None)  # a custom store may lack it
    while expire is not None:
        try:
            await expire()
        except Exception as error:  # noqa: BLE001  # a store may raise anything, and the next call may succeed
            _logger.warning("could not remove expired sessions from %.200r: %s", store, type(error).__name__)
        await anyio.sleep(_EXPIRY_SECONDS)


class _Health:
    """Says that the process is there, and whether it can take requests."""

    def __init__(self, runners: Mapping[str, RunnerBase]) -> None:
        self._runners = runners

    async def answer(self, _: Request) -> Response:
        return JsonResponse({"status": "ok"})

    async def answer_ready(self, _: Request) -> Response:
        for runner in self._runners.values():
            try:
                # A store that hangs is not ready either, and who asks has a limit of its own.
                with anyio.fail_after(_READY_SECONDS):
                    if not runner.is_open:
                        return JsonResponse({"status": "not_open"}, 503)
                    await runner.store.list(limit=1)
            except Exception as error:  # noqa: BLE001  # whatever a store raises, it is not ready
                _logger.warning("not ready: the store of %.100r failed: %s", runner.agent.name, type(error).__name__)
                return JsonResponse({"status": "no_store"}, 503)
        return JsonResponse({"status": "ready"})


async def _answer_api_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return JsonResponse(error.body, error.status, error.headers)


async def _answer_http_exception(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    code, message = _HTTP_CODES.get(error.status_code, ("invalid_request", "this request cannot be answered"))
    return JsonResponse(failure_body(code, message), error.status_code, error.headers)


async def _answer_store_error(request: Request, error: Exception) -> Response:
    _logger.warning("%s %.200r: %s", request.method, request.url.path, type(error).__name__)
    return JsonResponse(
        failure_body("store", "the store of the sessions does not answer: try again"), 503, {"Retry-After": "1"}
    )
