"""The routes under `/api/runs`."""

import logging
from collections.abc import AsyncGenerator
from functools import partial
from typing import Any

import anyio
from anyio import to_thread
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from agentrt._runtime.block import new_name
from agentrt.errors import AgentRTError, ConfigError, RunCorrupt, StateError, UsageError
from agentrt.runs import Run, RunInfo, RunStore
from agentrt.runs.run import read_line
from agentrt.runs.store import RUN_STATUSES, is_cursor
from agentrt.serving.bodies import read_after, read_query_number
from agentrt.serving.budget import read_json
from agentrt.serving.failure import ApiError, as_api_error
from agentrt.serving.gate import Gate, RouteHandler
from agentrt.serving.owners.runs import find_run, no_run, with_public_ids
from agentrt.serving.owners.sessions import OwnerSessions, check_sent_id
from agentrt.serving.responses import AwaitedResponse, JsonResponse
from agentrt.serving.runs.playground import CHANGE_FIELDS, Playground
from agentrt.serving.runs.query import read_label_filters, read_since
from agentrt.serving.runs.run_page import browser_json, describe_replay, describe_run, dump_run
from agentrt.serving.sse import EventStream
from agentrt.serving.submission import path_of_events, submit_fork

_logger = logging.getLogger("agentrt")
_MAX_RUNS = 1_000
_MAX_REPLAY_SECONDS = 60.0
_MAX_FILTER = 500  # characters
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 1.0  # between two reads of a growing run


class RunRoutes:
    """Answers requests for the recorded runs of the agent in `?agent=`, by default the first one.

    A run belongs to the owner of its session, by the label of the session when the run started.
    """

    def __init__(self, gate: Gate, playground: Playground, runs: bool | None) -> None:
        if runs is not None and not isinstance(runs, bool):  # such as "no", which counts as true
            raise ConfigError(f"create_app(runs=...) must be True or False, not {runs!r:.100}")
        self._gate = gate
        self._limits = gate.limits
        self._playground = playground
        self.are_open = gate.auth is None if runs is None else runs

    def routes(self) -> list[Route]:
        """Return the routes; a session id may hold slashes."""
        run = "/api/runs/{session_id:path}/{reply_id}"
        table: list[tuple[str, str, RouteHandler]] = [
            ("GET", "/api/runs", self._list),
            ("GET", f"{run}/lines", self._read_lines),
            ("POST", f"{run}/fork", self._fork),
            ("POST", f"{run}/replay", self._replay),
            ("GET", run, self._read),
            ("DELETE", run, self._delete),
        ]
        endpoint = self._gate.endpoint
        return [
            Route(path, endpoint(handler if self.are_open else _refuse), methods=[method])
            for method, path, handler in table
        ]

    async def _list(self, request: Request, sessions: OwnerSessions) -> Response:
        query = request.query_params
        limit = read_query_number(request, "limit", 100, _MAX_RUNS)
        if limit == 0:
            raise ApiError(400, "limit", f"?limit= must be a number from 1 to {_MAX_RUNS}")
        cursor = query.get("cursor") or None
        if cursor is not None and not is_cursor(cursor):
            raise ApiError(400, "cursor", "?cursor= must be the cursor of the page before")
        status = query.get("status") or None
        if status not in (None, *RUN_STATUSES):
            raise ApiError(400, "status", f"?status= must be one of {', '.join(RUN_STATUSES)}")
        names = ("text", "agent", "tool", "layer")
        words = {name: query[name] for name in names if query.get(name)}
        if any(len(text) > _MAX_FILTER or not text.isprintable() for text in words.values()):
            raise ApiError(400, "filter", f"?text=, ?tool= and ?layer= must be text of up to {_MAX_FILTER} characters")
        runs, found = sessions.runs, None
        if runs is not None:
            found = await runs.list(
                labels={**read_label_filters(request), **sessions.owner.labels},
                status=status,
                since=read_since(query.get("since")),
                limit=limit,
                cursor=cursor,
                **words,
            )
        listed = [] if found is None else [describe_run(info) for info in found.runs]
        return _answer(sessions, {"runs": listed, "cursor": None if found is None else found.cursor})

    async def _read(self, request: Request, sessions: OwnerSessions) -> Response:
        runs, info = await _find(request, sessions)
        return _answer(sessions, await to_thread.run_sync(dump_run, await _load(runs, info)))

    async def _read_lines(self, request: Request, sessions: OwnerSessions) -> ASGIApp:
        after = read_after(request)
        runs, info = await _find(request, sessions)
        if "text/event-stream" in request.headers.get("accept", ""):
            sessions.take_place("streams")
            return EventStream(
                partial(_follow_lines, sessions, runs, info, after),
                self._limits,
                name=f"run {info.reply_id}",
                on_leave=None,
                headers={},
            )
        limit = read_query_number(request, "limit", _MAX_RUNS, _MAX_RUNS)
        lines = await runs.raw_lines(info.session_id, info.reply_id, after)
        found = [read_line(line, number) for number, line in enumerate(lines[:limit], after + 1)]
        return _answer(sessions, {"lines": found, "status": info.status})

    async def _delete(self, request: Request, sessions: OwnerSessions) -> Response:
        runs, info = await _find(request, sessions)
        if _is_of_subagent(info):
            raise ApiError(409, "nested", "a run of a sub-agent is deleted with the run around it")
        recorded = await _load(runs, info)
        for run in [recorded, *recorded.tasks]:
            if run.status == "running":
                session = await sessions.find(sessions.owner.public_id(run.session_id))
                # Without a running session, the process of the run has died.
                if session is not None and session.status == "running":
                    raise ApiError(409, "running", "a reply or background call is in progress: interrupt it first")
        await runs.delete(info.session_id, info.reply_id)
        return Response(status_code=204)

    async def _fork(self, request: Request, sessions: OwnerSessions) -> Response:
        runs, info = await _find(request, sessions)
        body = await read_json(request, self._limits, (*CHANGE_FIELDS, "session_id"), items=())
        agent = self._playground.vary(sessions, info.agent, body)
        session_id = sessions.new_id(check_sent_id(body.get("session_id", new_name()), "'session_id'"), "'session_id'")
        at = body.get("at")
        if type(at) is not int:
            raise ApiError(400, "invalid_body", "'at' must be the number of an event, such as the 'seq' of a step")
        if session_id == info.session_id:
            raise ApiError(409, "exists", "a session with this id already exists")
        run = await _load(runs, info)
        try:
            if _is_of_subagent(info):  # alone, its agent would lack the layers that it inherits
                raise UsageError("a run of a sub-agent")
            fork = run.fork(agent, at, session_id=session_id, effects=body.get("effects", "ask"))
        except UsageError:
            raise ApiError(
                409,
                "fork",
                "a fork cannot start there: the run needs content and a step at or before 'at', the agent the tools "
                "that were called before, and a sub-agent is forked with the run around it",
            ) from None
        handle = await submit_fork(sessions, fork)
        place = path_of_events(request, handle)
        body = {"reply_id": handle.reply_id, "session_id": handle.session_id, "events": place}
        return JsonResponse(body, 201, {"Location": place})

    async def _replay(self, request: Request, sessions: OwnerSessions) -> ASGIApp:
        runs, info = await _find(request, sessions)
        body = await read_json(request, self._limits, (*CHANGE_FIELDS, "after"), items=())
        agent = self._playground.vary(sessions, info.agent, body)
        after = body.get("after", "stop")
        # "ask" would call a model, which only a fork may do.
        if after not in ("stop", "keep"):
            raise ApiError(400, "invalid_body", "'after' must be 'stop' or 'keep'")
        if _is_of_subagent(info):
            raise ApiError(409, "replay", "a run of a sub-agent is replayed with the run around it")
        sessions.take_place("streams")

        async def replay() -> Response:
            try:
                run = await _load(runs, info)
                with anyio.fail_after(_MAX_REPLAY_SECONDS):
                    found = await run.replay(agent, after=after)
                return _answer(sessions, describe_replay(found))
            except (UsageError, TimeoutError):
                refusal = ApiError(409, "replay", "this run has no content, or its replay takes too long")
            except (ApiError, StateError, OSError) as error:
                refusal = as_api_error(error, "a replay")
            return JsonResponse(refusal.body, refusal.status, refusal.headers)

        # The client may disconnect during a long replay.
        return AwaitedResponse(replay)


def _is_of_subagent(info: RunInfo) -> bool:
    return info.parent is not None and not info.is_task


async def _load(runs: RunStore, info: RunInfo) -> Run:
    try:
        return await runs.load(info.session_id, info.reply_id)
    except UsageError:  # deleted meanwhile
        raise no_run() from None


async def _refuse(request: Request, sessions: OwnerSessions) -> Response:
    raise ApiError(403, "runs", "this server shows no recorded runs: see create_app(runs=...)")


async def _find(request: Request, sessions: OwnerSessions) -> tuple[RunStore, RunInfo]:
    return await find_run(sessions, request.path_params["session_id"], request.path_params["reply_id"])


async def _follow_lines(
    sessions: OwnerSessions, runs: RunStore, run: RunInfo, after: int
) -> AsyncGenerator[bytes, None]:
    """Yield the lines as they are written, until the run ends or waits; the last message has its status."""
    pause, status = _FIRST_PAUSE, ""
    try:
        while not status:
            # Read before the lines, so that an ended run has all of them.
            info = await runs.describe(run.session_id, run.reply_id)
            if info is None:
                return
            lines = await runs.raw_lines(run.session_id, run.reply_id, after)
            for line in lines:
                after += 1
                yield b"id: %d\ndata: %s\n\n" % (after, with_public_ids(sessions, browser_json(read_line(line, after))))
            if info.status != "running":
                status = info.status
            elif lines:
                pause = _FIRST_PAUSE
            else:
                # Another process may write it, so it is polled.
                await anyio.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE)
    except RunCorrupt:
        status = "unreadable"
    except (AgentRTError, OSError) as error:
        # The store failed. Without "done", a reader reconnects.
        _logger.warning("a reader of run %s was left: %s", run.reply_id, type(error).__name__)
        return
    yield b"event: done\ndata: %s\n\n" % browser_json({"status": status})


def _answer(sessions: OwnerSessions, content: dict[str, Any] | bytes) -> Response:
    text = content if isinstance(content, bytes) else browser_json(content)
    return Response(with_public_ids(sessions, text), media_type="application/json")
