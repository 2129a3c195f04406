"""Reports of evaluations: the files of one folder, with the figures that the page shows."""

import logging
import os
import stat
from dataclasses import asdict
from heapq import nlargest
from itertools import islice
from os import PathLike
from pathlib import Path
from typing import Any

import anyio
from anyio import to_thread
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from agentrt._runtime.timestamp import timestamp_text
from agentrt.errors import ConfigError
from agentrt.serving.failure import ApiError
from agentrt.serving.gate import Gate
from agentrt.serving.owners.runs import find_run
from agentrt.serving.owners.sessions import OwnerSessions
from agentrt.serving.responses import JsonResponse

_logger = logging.getLogger("agentrt")
_MAX_REPORTS = 1_000
_MAX_FOLDER_ENTRIES = 100_000  # of the folder that are looked at
_MAX_REPORT_BYTES = 16_000_000
_MAX_KS = 10  # each is a row of the page
_MAX_LINKED_RUNS = 200  # which are looked for in the store, those of failed trials first
# Everything that figures of a file raise in which a value has another type than reports have.
_UNREADABLE = (ArithmeticError, AttributeError, ConfigError, LookupError, RecursionError, TypeError, ValueError)


class ReportRoutes:
    """Answers the requests for reports, which belong to no owner: a server with `auth` has none."""

    def __init__(self, gate: Gate, folder: str | PathLike[str] | None) -> None:
        self.has_folder = folder is not None
        self._gate = gate
        self._one_at_a_time: anyio.CapacityLimiter | None = None
        if folder is None:
            return
        chosen: object = folder
        if not isinstance(chosen, (str, PathLike)) or not os.path.isdir(chosen):
            raise ConfigError(f"create_app(reports=...) must be the path of an existing folder, not {folder!r:.200}")
        if gate.auth is not None:
            raise ConfigError(
                "create_app(reports=...) cannot be combined with auth, since a report contains the answers of all its "
                "cases and belongs to no owner: serve it on this machine, or share the page of agentrt eval --html"
            )
        self._folder = Path(folder).resolve()

    def routes(self) -> list[Route]:
        """Return the routes, none without a folder."""
        if not self.has_folder:
            return []
        return [
            Route("/api/reports", self._gate.endpoint(self._list), methods=["GET"]),
            Route("/api/reports/{name}", self._gate.endpoint(self._read), methods=["GET"]),
        ]

    async def _list(self, _: Request, sessions: OwnerSessions) -> Response:
        return JsonResponse({"reports": await to_thread.run_sync(_list_reports, self._folder)})

    async def _read(self, request: Request, sessions: OwnerSessions) -> Response:
        name, other = request.path_params["name"], request.query_params.get("with")
        if self._one_at_a_time is None:  # the bootstraps of a large report keep a processor busy for seconds
            self._one_at_a_time = anyio.CapacityLimiter(1)
        page = await to_thread.run_sync(_describe_report, self._folder, name, other, limiter=self._one_at_a_time)
        left = _MAX_LINKED_RUNS
        for trial in sorted(page["trials"], key=lambda trial: bool(trial["passed"])):
            ids = trial["runs"][:left]
            left -= len(ids)
            trial["runs"] = [pair for pair in ids if await _is_recorded(sessions, *pair)]
        try:
            return await to_thread.run_sync(JsonResponse, page)
        except ValueError as error:  # an infinite number, which JSON does not have
            raise _unreadable(name, error) from None


def _list_reports(folder: Path) -> list[dict[str, Any]]:
    """Return the files that may be reports, newest first."""
    found: list[tuple[int, str, int]] = []
    with os.scandir(folder) as entries:
        for entry in islice(entries, _MAX_FOLDER_ENTRIES):
            if _is_report_name(entry.name) and entry.is_file(follow_symlinks=False):
                status = entry.stat(follow_symlinks=False)
                found.append((status.st_mtime_ns, entry.name, status.st_size))
    newest = nlargest(_MAX_REPORTS, found)
    return [{"name": name, "written_at": timestamp_text(time), "size": size} for time, name, size in newest]


def _is_report_name(name: str) -> bool:
    """Say whether the name is that of a file in a folder, on any system, and can be shown."""
    return name.endswith(".json") and name[0] != "." and name.isprintable() and not set(name) & set("/\\:")


def _read_report(folder: Path, name: str) -> str:
    no_report = ApiError(404, "no_report", "the folder of this server has no report of this name")
    if not _is_report_name(name):
        raise no_report
    # A link may lead out of the folder, and a pipe would never end.
    flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    try:
        if not stat.S_ISREG(os.lstat(folder / name).st_mode):
            raise no_report
        with open(folder / name, "rb", opener=lambda path, _: os.open(path, flags)) as file:
            content = file.read(_MAX_REPORT_BYTES + 1)
    except OSError:
        raise no_report from None
    if len(content) > _MAX_REPORT_BYTES:
        raise ApiError(
            413, "too_large", f"a report may have {_MAX_REPORT_BYTES} bytes: agentrt eval --html writes a page of it"
        )
    return content.decode("utf-8", "replace")


def _describe_report(folder: Path, name: str, other: str | None) -> dict[str, Any]:
    """Return the figures and the trials of a report, compared with another one if that is named."""
    from agentrt.evaluation import Report  # which loads the kit that injects faults

    texts = [_read_report(folder, found) for found in (name, other) if found is not None]
    try:
        report, *others = [Report.from_json(text) for text in texts]
        most_tries = min(report.repeats, *map(len, report.passes.values()))
        ks = sorted({*range(1, min(most_tries, _MAX_KS) + 1), most_tries})
        spending = {
            "agents": (report.usage, report.cost),
            "judges": (report.judge_usage, report.judge_cost),
            "users": (report.user_usage, report.user_cost),
        }
        return {
            "name": name,
            "title": report.name,
            "repeats": report.repeats,
            "seed": report.seed,
            "quality": report.quality,
            "interval": report.interval,
            "seconds": report.seconds,
            "estimates": [{"k": k, "pass_at": report.pass_at(k), "pass_hat": report.pass_hat(k)} for k in ks],
            "evaluators": list(map(asdict, report.by_evaluator)),
            "labels": list(map(asdict, report.by_label)),
            "spending": {
                side: {"input_tokens": usage.input_tokens, "output_tokens": usage.output_tokens, "cost": cost}
                for side, (usage, cost) in spending.items()
            },
            "ablation": [worth.to_json(times=True) for worth in report.ablation],
            "cases": [
                {"name": case, "passed": passed, "interval": report.case_interval(case)}
                for case, passed in report.passes.items()
            ],
            "trials": [trial.to_json(times=True) for trial in report.trials],
            "comparison": {"with": other, **asdict(report.compare(others[0]))} if others else None,
        }
    except _UNREADABLE as error:
        raise _unreadable(name, error) from None


def _unreadable(name: str, error: Exception) -> ApiError:
    _logger.warning("the report %.100r cannot be read: %s", name, type(error).__name__)
    return ApiError(500, "unreadable", "this file is not a report that agentrt eval --json wrote with this version")


async def _is_recorded(sessions: OwnerSessions, session_id: str, reply_id: str) -> bool:
    try:
        await find_run(sessions, session_id, reply_id)
    except ApiError:
        return False
    return True
