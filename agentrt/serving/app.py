"""The application: agents, their runners, and what stands between them and the network."""

import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict
from functools import partial
from os import PathLike
from types import TracebackType
from typing import Any

import anyio
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from agentrt.agent import Agent, Health
from agentrt.errors import ConfigError
from agentrt.runner import Runner
from agentrt.runner.base import RunnerBase
from agentrt.runner.supervisor import Supervisor
from agentrt.runs import run_stores
from agentrt.serving.a2a.endpoint import A2ARoutes
from agentrt.serving.agui.endpoint import AgUi
from agentrt.serving.api import Api
from agentrt.serving.failure import ApiError, failure_body
from agentrt.serving.gate import Gate
from agentrt.serving.guard import RequestGuard, check_origins
from agentrt.serving.inputs.board import InputBoard
from agentrt.serving.inputs.logins import LoginRoute
from agentrt.serving.inputs.routes import InputRoutes
from agentrt.serving.limits import Limits
from agentrt.serving.mcp.route import McpRoute
from agentrt.serving.openai.endpoint import OpenAIApi
from agentrt.serving.owners.auth import Authenticate, identify
from agentrt.serving.responses import JsonResponse
from agentrt.serving.runs.playground import Playground, PlaygroundSetting
from agentrt.serving.runs.routes import RunRoutes
from agentrt.serving.studio.page import StudioPage
from agentrt.serving.studio.reports import ReportRoutes
from agentrt.serving.studio.times import LayerRoutes
from agentrt.state import InMemoryStateStore, SessionStore
from agentrt.state.store import find_session

_logger = logging.getLogger("agentrt")
_EXPIRY_SECONDS = 3600
_READY_SECONDS = 5.0
_REUSE_SECONDS = 1.0  # of what the parts have answered, since everyone may ask
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
    runs: bool | None = None,
    playground: PlaygroundSetting = False,
    reports: str | PathLike[str] | None = None,
) -> Starlette:
    """Return an application that serves the agents; needs the extra `serve`.

    Each agent has a runner, which works while the application runs. It is `runner`, or one over `store`, the store of
    the agent, or memory; several agents need a store each. A runner that is open already is left as it is. In another
    application, enter `app.router.lifespan_context(app)` in its lifespan, since a mounted one has none.

    Without `auth` it answers only to this machine. With it, each session belongs to the owner that `auth` returned for
    the request that began it, by its label "owner", and is not there for others: each owner has session ids of its own.
    Pages of `allow_origins` may use it, besides its own. With `studio` it has a page at `/studio`, where all of this is
    done and seen. `reports` is a folder with saved reports of evaluations for that page, which belong to no owner: it
    cannot be combined with `auth`. `runs` says whether clients read their recorded runs, which show the system prompt
    and what layers withheld: by default only without `auth`. `playground` lets them run these again: a list of classes
    and keys of middlewares at most without these, `True`, which excludes `auth`, with any change and with tools that do
    not ask.
    """
    runners = _make_runners(agents, runner, store)
    if auth is not None and not callable(auth):
        raise ConfigError(f"create_app(auth=...) must be BearerTokens or an async function, not {type(auth).__name__}")
    limits = Limits() if limits is None else limits
    if not isinstance(limits, Limits):
        raise ConfigError(f"create_app(limits=...) must be Limits, not {limits!r:.200}")
    playground_rules = Playground(playground, runners, has_owners=auth is not None)
    gate = Gate(runners, auth, limits)
    report_routes, run_routes = ReportRoutes(gate, reports), RunRoutes(gate, playground_rules, runs)
    board = InputBoard(gate.owners)
    mcp = McpRoute(gate)
    app = Starlette(
        routes=[
            *Api(gate, playground_rules, has_reports=report_routes.has_folder, has_runs=run_routes.are_open).routes(),
            *InputRoutes(gate, board).routes(),
            *LoginRoute(gate).routes(),
            *LayerRoutes(gate).routes(),
            *run_routes.routes(),
            *report_routes.routes(),
            *(StudioPage().routes() if studio else ()),
            *AgUi(gate).routes(),
            *OpenAIApi(gate, has_studio=studio).routes(),
            *mcp.routes(),
            *A2ARoutes(gate).routes(),
            *_HealthRoutes(gate).routes(),
        ],
        middleware=_make_middleware(check_origins(allow_origins), limits, is_local=auth is None),
        exception_handlers={ApiError: _answer_api_error, HTTPException: _answer_http_exception},
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
            "several agents need separate stores, since their sessions differ: give each its own Agent(state_store=...)"
        )
    return {agent.name: Runner(agent, own) for agent, own in zip(listed, stores, strict=True)}  # type: ignore[arg-type]


def _list_agents(agents: object) -> list[Agent]:
    listed = [agents] if isinstance(agents, Agent) else list(agents) if isinstance(agents, Sequence) else []
    if not listed or not all(isinstance(agent, Agent) for agent in listed):
        raise ConfigError(f"create_app takes an Agent, or a list of them, not {agents!r:.200}")
    if len({agent.name for agent in listed}) < len(listed):
        raise ConfigError("create_app needs agents with different names: ?agent= chooses between them")
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
            group.start_soon(_keep_running, repr(runner), partial(self._work, runner))
            self._helpers.start_soon(_keep_running, "the removal of sessions", partial(_expire_hourly, runner))

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        # Set first, since a worker may not have started yet.
        self._is_stopping = True
        self._helpers.cancel_scope.cancel()
        for runner in self._runners:
            await runner.drain()
        await self._stack.__aexit__(kind, error, traceback)

    async def _work(self, runner: RunnerBase) -> None:
        if not self._is_stopping:  # a runner that is drained before it works would not know it
            await runner.work()


async def _keep_running(name: str, work: Callable[[], Awaitable[None]]) -> None:
    """Run a background task of the application, which starts again where it fails, and ends no other one."""
    try:
        await Supervisor().run(name, work, anyio.Event())
    except Exception as error:  # noqa: BLE001  # it would cancel the application; `/readyz` says which worker is missing
        _logger.error("%s has ended: %s", name, type(error).__name__)


async def _expire_hourly(runner: RunnerBase) -> None:
    """Delete the sessions and the recorded runs that have expired, now and every hour."""
    # A custom store may lack it.
    stores = [part for part in (runner.store, *run_stores(runner.agent)) if hasattr(part, "expire")]
    while stores:
        for store in stores:
            await store.expire()
        await anyio.sleep(_EXPIRY_SECONDS)


class _HealthRoutes:
    """Answers everyone; only authenticated clients see which part has a problem, and what it is."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate
        self._asked_at = float("-inf")
        self._health: dict[str, Health] = {}
        self._lock: anyio.Lock | None = None

    def routes(self) -> list[Route]:
        """Return the routes."""
        return [
            Route("/healthz", self._answer),
            Route("/readyz", self._answer_ready),
            Route("/api/health", self._answer_health),
        ]

    async def _answer(self, _: Request) -> Response:
        return JsonResponse({"status": "ok"})

    async def _answer_ready(self, _: Request) -> Response:
        for runner in self._gate.runners.values():
            try:
                # A store that hangs is not ready either, and who asks has a limit of its own.
                with anyio.fail_after(_READY_SECONDS):
                    if not runner.is_open:
                        return JsonResponse({"status": "not_open"}, 503)
                    if runner.worker_failure is not None:
                        return JsonResponse({"status": "no_worker", "reason": runner.worker_failure}, 503)
                    await find_session(runner.store, "readyz")  # a list would open each file of a folder
            except Exception as error:  # noqa: BLE001  # whatever a store raises, it is not ready
                _logger.warning("not ready: the store of %.100r failed: %s", runner.agent.name, type(error).__name__)
                return JsonResponse({"status": "no_store"}, 503)
        return JsonResponse({"status": "ready"})

    async def _answer_health(self, request: Request) -> Response:
        health = await self._ask_agents()
        is_ok = all(one.is_ok for one in health.values())
        body: dict[str, Any] = {"status": "ok" if is_ok else "failed"}
        try:
            await identify(self._gate.auth, self._gate.owners, request)
        except ApiError:
            pass
        else:
            body["agents"] = {name: [asdict(part) for part in one.parts] for name, one in health.items()}
        return JsonResponse(body, 200 if is_ok else 503)

    async def _ask_agents(self) -> dict[str, Health]:
        if self._lock is None:
            self._lock = anyio.Lock()
        async with self._lock:
            if anyio.current_time() - self._asked_at >= _REUSE_SECONDS:
                runners = self._gate.runners.items()
                self._health = {name: await runner.agent.health() for name, runner in runners}
                self._asked_at = anyio.current_time()
            return self._health


async def _answer_api_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return JsonResponse(error.body, error.status, error.headers)


async def _answer_http_exception(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    code, message = _HTTP_CODES.get(error.status_code, ("invalid_request", "this request cannot be answered"))
    return JsonResponse(failure_body(code, message), error.status_code, error.headers)
