"""The recorded runs of a session store: loaded, listed, verified and deleted."""

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from time import time_ns
from typing import Any, TypeVar

from anyio import CancelScope, to_thread
from pydantic_core import from_json

from agentrt._runtime.representation import never_raises
from agentrt.errors import SessionIOError, StateError, UsageError
from agentrt.runs.contents import dump_json
from agentrt.runs.log import encode_line, usage_json
from agentrt.runs.run import Run
from agentrt.runs.verification import Verification, verify_session
from agentrt.runs.writer import RunWriter
from agentrt.state.records.rows import RunQuery, RunRow, RunRows, RunWrite
from agentrt.state.sessions import check_labels, check_session_id
from agentrt.types import ChatUsage, JSONObject

_MAX_LISTED_RUNS = 1_000
_MAX_SEARCHED_PAGES = 10
_MAX_ROW_NUMBER = 2**63 - 1  # of a row
RUN_STATUSES = ("running", "waiting", "completed", "interrupted", "failed", "died")
_RunResult = TypeVar("_RunResult")


@dataclass(frozen=True, slots=True)
class RunInfo:
    """The facts about a run that a list shows, without its lines.

    `usage`, `cost` and `calls` are totals of the whole tree, `tools` are the names of the tools that the model called,
    and `changed_by` those of the layers that changed something. Times are in nanoseconds since the epoch, `size` is in
    bytes. `parent` has the ids of the session, the reply and the tool call that started it; `is_task` says that this
    was a background call.
    """

    session_id: str
    reply_id: str
    title: str
    agent: str
    labels: dict[str, str]
    status: str
    begun_at: int
    ended_at: int | None
    usage: ChatUsage
    cost: float | None
    calls: int
    tools: list[str]
    changed_by: list[str]
    lines: int
    size: int
    parent: tuple[str, str, str | None] | None = None
    is_task: bool = False

    @classmethod
    def of_row(cls, row: RunRow) -> "RunInfo":
        """Return the facts in a row."""
        about = from_json(row.about)
        return cls(
            row.session_id,
            row.reply_id,
            row.title,
            about["agent"],
            dict(row.labels),
            row.status,
            row.begun_at,
            row.ended_at,
            ChatUsage(**about["usage"]),
            about["cost"],
            about["calls"],
            about["tools"],
            about.get("layers", []),  # older records have none
            row.lines,
            about["size"],
            None if row.parent is None else (*row.parent, about["call"]),
            about.get("is_task", False),
        )


@dataclass(frozen=True, slots=True)
class RunPage:
    """A page of a list of runs; `cursor` requests the next page, and is `None` on the last page."""

    runs: list[RunInfo] = field(default_factory=list)
    cursor: str | None = None


class RunStore:
    """The recorded runs of a session store, as `store.runs`.

    Methods that read first wait until this process has written its queued lines, for five seconds at most. If the store
    fails, they raise `SessionIOError`; recorders continue. A run that is not there, while lines still wait, is not
    called unknown: that raises `SessionIOError` too.
    """

    def __init__(self, rows: RunRows) -> None:
        self._rows = rows
        # Readers and the writer's thread take turns, since they share a connection.
        self._lock = threading.Lock()
        self.writer = RunWriter(rows, self._lock)

    @never_raises
    def __repr__(self) -> str:
        return f"<{type(self).__name__} over {type(self._rows).__name__}>"

    def __getstate__(self) -> dict[str, Any]:
        return {"rows": self._rows}  # a copy has a queue and a thread of its own

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]  # as if it were new

    async def append(self, batch: Sequence[RunWrite]) -> None:
        """Write rows, lines and contents, all or nothing, as recorders do in their thread."""
        await self._ask("write", partial(self._rows.write, batch))

    async def add_verdicts(self, session_id: str, reply_id: str, verdicts: Sequence[JSONObject]) -> None:
        """Add verdicts to the record of a finished run, a line each, after its end.

        They are in the chain of hashes, but no signature covers them. Raises `UsageError` for a run that is unknown,
        or not finished.
        """
        check_session_id(session_id)
        is_written = await self.flush()
        if not await self._ask("write", partial(self._add_verdicts, session_id, reply_id, verdicts)):
            _check_written(is_written, session_id)
            raise UsageError(f"session {session_id!r:.100} has no finished run {reply_id!r:.100} for verdicts")

    async def flush(self) -> bool:
        """Wait until the lines that are queued now are written, for five seconds at most; returns whether all are."""
        return await self.writer.flush()

    async def load(self, session_id: str, reply_id: str | None = None) -> Run:
        """Return a run, or the newest one of the session, with the runs of its sub-agents and background calls.

        Raises `UsageError` for an unknown run, and `RunCorrupt` if it cannot be read.
        """
        check_session_id(session_id)
        is_written = await self.flush()
        # In a thread: a run of an hour has thousands of lines.
        found = await self._ask("read", partial(self._read, session_id, reply_id))
        if found is None or reply_id is None:  # a newer one may wait
            _check_written(is_written, session_id)
        if found is None:
            which = "no run" if reply_id is None else f"no run {reply_id!r:.100}"
            raise UsageError(
                f"session {session_id!r:.100} has {which} here: give its agent a RunRecorder with this store, or look "
                f"into runs.list()"
            )
        return found

    async def describe(self, session_id: str, reply_id: str) -> RunInfo | None:
        """Return the facts about a run, `None` for an unknown one."""
        check_session_id(session_id)
        is_written = await self.flush()
        row = await self._ask("read", partial(self._find, session_id, reply_id))
        if row is None:
            _check_written(is_written, session_id)
        return None if row is None or row.is_deleted else RunInfo.of_row(row)

    async def lines(self, session_id: str, reply_id: str, after: int = 0) -> Sequence[JSONObject]:
        """Return the lines of a run with numbers above `after`, an empty sequence for an unknown run."""
        return [from_json(line) for line in await self.raw_lines(session_id, reply_id, after)]

    async def raw_lines(self, session_id: str, reply_id: str, after: int = 0) -> Sequence[bytes]:
        """Return the lines as they are stored, each a JSON object with its hash at the end."""
        check_session_id(session_id)
        await self.flush()
        return await self._ask("read", partial(self._rows.lines, session_id, reply_id, after))

    async def list(
        self,
        *,
        session_id: str | None = None,
        labels: Mapping[str, str] | None = None,
        status: str | None = None,
        text: str = "",
        agent: str | None = None,
        tool: str | None = None,
        layer: str | None = None,
        since: int = 0,
        limit: int = 100,
        cursor: str | None = None,
    ) -> RunPage:
        """Return a page of runs, newest first: those without a parent, or all runs of a session.

        They have all of these `labels`, this `status`, the `text` in their titles, and started at `since` or later.
        They are of the `agent` of this name, its model called the `tool`, and the `layer` changed something. With one
        of these three, also a page before the last one may be shorter than its limit.
        """
        if labels is not None:
            check_labels(labels, "list(labels=...)")
        if status is not None and status not in RUN_STATUSES:
            raise UsageError(f"list(status=...) must be one of {', '.join(RUN_STATUSES)}, not {status!r:.100}")
        if type(limit) is not int or not 1 <= limit <= _MAX_LISTED_RUNS:
            raise UsageError(f"list(limit=...) must be an int from 1 to {_MAX_LISTED_RUNS}, not {limit!r:.100}")
        if cursor is not None and not is_cursor(cursor):
            raise UsageError(f"list(cursor=...) must be the cursor of the page before, or None, not {cursor!r:.100}")
        # The number of the last run of the page before, so that new runs shift nothing.
        before = None if cursor is None else int(cursor)
        # A store knows nothing of tools and layers, and a page may need the search of many runs.
        is_searched = (agent, tool, layer) != (None, None, None)
        size = _MAX_LISTED_RUNS if is_searched else limit
        query = RunQuery(session_id, dict(labels or {}), status, text, since, size, before)
        await self.flush()
        found: list[RunInfo] = []
        for _ in range(_MAX_SEARCHED_PAGES):
            rows = await self._ask("list", partial(self._page, query))
            for row in rows[:size]:
                info = RunInfo.of_row(row)
                if agent in (None, info.agent) and _has(info.tools, tool) and _has(info.changed_by, layer):
                    found.append(info)
                # One row more than the page holds shows that there is another page.
                if len(found) == limit:
                    return RunPage(found, None if row is rows[-1] else str(row.number))
            if len(rows) <= size:
                return RunPage(found)
            query = replace(query, before=rows[size - 1].number)
        return RunPage(found, str(query.before))

    async def delete(self, session_id: str, reply_id: str | None = None) -> int:
        """Delete a run and those below it, or all of a session; returns the number of deleted runs.

        The ids, times, count and hash of a run remain, so that the chain of the session stays complete.
        """
        check_session_id(session_id)
        await self.flush()
        return await self._ask("delete", partial(self._rows.delete, session_id, reply_id))

    async def forget(self, session_id: str) -> None:
        """Remove everything recorded for a session, when the session itself is deleted."""
        await self.flush()
        await self._ask("delete", partial(self._rows.forget, session_id))

    async def expire(self) -> int:
        """Delete the runs whose `keep` time is over; returns the number of deleted runs."""
        return await self._ask("expire", partial(self._rows.expire, time_ns()))

    async def verify(
        self, session_id: str, reply_id: str | None = None, *, key: str | bytes | None = None
    ) -> Verification:
        """Check that the lines of a run, or of all runs of a session, are as they were written.

        `key` is that of `RunRecorder(sign=...)`. Without it, this finds accidental changes, and deliberate ones whose
        author did not recompute the hashes.
        """
        check_session_id(session_id)
        await self.flush()
        secret = key.encode() if isinstance(key, str) else key
        return await self._ask("verify", partial(verify_session, self._rows, session_id, reply_id, secret))

    async def aclose(self) -> None:
        """Write queued lines, and close files and connections; the next operation reopens them."""
        with CancelScope(shield=True):  # otherwise a store that a cancellation leaves keeps its thread and its files
            # In a thread, since it waits for the writer's thread.
            await to_thread.run_sync(self.writer.stop)
            await self._ask("close", self._rows.close)

    def _add_verdicts(self, session_id: str, reply_id: str, verdicts: Sequence[JSONObject]) -> bool:
        row = self._rows.find(session_id, reply_id)
        # A run that waits continues its lines elsewhere.
        if row is None or row.is_deleted or row.status in ("running", "waiting"):
            return False
        lines, count, digest = [], row.lines, row.hash
        for verdict in verdicts:
            count += 1
            line, digest = encode_line(count, time_ns(), "verdict", dump_json(verdict), digest)
            lines.append(line)
        about = from_json(row.about)
        about["size"] += sum(map(len, lines))
        self._rows.write([RunWrite(replace(row, lines=count, hash=digest, about=dump_json(about)), lines, {})])
        return True

    def _find(self, session_id: str, reply_id: str) -> RunRow | None:
        row = self._rows.find(session_id, reply_id)
        return None if row is None else self._add_tasks(row)

    def _page(self, query: RunQuery) -> Sequence[RunRow]:
        return list(map(self._add_tasks, self._rows.page(query)))

    def _add_tasks(self, row: RunRow) -> RunRow:
        """Return the row with the totals of its background calls added, which other processes may record."""
        about = from_json(row.about)
        tasks = [self._rows.find(*key) for key in about.get("tasks", ())]
        if not tasks:
            return row
        for task in tasks:
            if task is not None and not task.is_deleted:
                part = from_json(task.about)
                about["usage"] = usage_json(ChatUsage(**about["usage"]) + ChatUsage(**part["usage"]))
                about["calls"] += part["calls"]
                is_known = None not in (about["cost"], part["cost"])
                about["cost"] = about["cost"] + part["cost"] if is_known else None
        return replace(row, about=dump_json(about))

    def _read(self, session_id: str, reply_id: str | None) -> Run | None:
        if reply_id is None:
            rows = [row for row in self._rows.of_session(session_id) if not row.is_deleted]
            row = rows[-1] if rows else None
        else:
            row = self._rows.find(session_id, reply_id)
        if row is None or row.is_deleted:
            return None
        return self._read_tree(row, self._rows.of_root(row.root))

    def _read_tree(self, row: RunRow, family: Sequence[RunRow]) -> Run:
        # Only the contents that its lines name, since a session may have many.
        lines = self._rows.lines(*row.key)
        contents = self._rows.contents(row.root, self._rows.named_in(row.root, lines))
        below = [self._read_tree(child, family) for child in family if child.parent == row.key and not child.is_deleted]
        return Run(self._add_tasks(row), lines, contents, below)

    async def _ask(self, action: str, ask: Callable[[], _RunResult]) -> _RunResult:
        def ask_locked() -> _RunResult:
            with self._lock:
                return ask()

        try:
            return await to_thread.run_sync(ask_locked)
        except StateError:
            raise
        except Exception as error:  # noqa: BLE001  # any error of a database, which may quote its input
            reason = type(error).__name__
        # Outside the `except`, so that the database's error does not become the context.
        raise SessionIOError(f"could not {action} recorded runs: {reason}")


def _check_written(is_written: bool, session_id: str) -> None:
    """Raise `SessionIOError` for a run that is not in the store, if this process may still have to write it."""
    if not is_written:
        raise SessionIOError(
            f"a run of session {session_id!r:.100} may not be written yet, since lines have waited for more than five "
            f"seconds, as for a slow store: call again when `await store.runs.flush()` returns True"
        )


def _has(names: Sequence[str], wanted: str | None) -> bool:
    return wanted is None or wanted in names


def is_cursor(text: object) -> bool:
    """Say whether the value can be the cursor of a page."""
    return (
        isinstance(text, str)
        and text.isascii()
        and text.isdecimal()
        and len(text) < 20
        and int(text) <= _MAX_ROW_NUMBER
    )
