"""The queue of a runner in one process: which replies are to be run, in one SQLite database."""

import sqlite3
from collections import deque
from collections.abc import Callable, Hashable, Iterable
from dataclasses import astuple, replace
from functools import partial
from json import dumps, loads
from pathlib import Path
from time import time_ns
from typing import Any, TypeVar, cast

from agentrt._runtime.database.operations import OperationQueue
from agentrt._runtime.database.sqlite_file import SQLiteFile, transaction
from agentrt.errors import InvalidInputError, SessionIOError, SessionVersion
from agentrt.event import UserInterruptEvent
from agentrt.runner.queue import SUSPECT_DEATHS, ClaimedRequest, QueueRoom, ReplyQueue, Result, Standing, queue_full
from agentrt.runner.requests import Request, RequestKind, check_contradiction, make_request
from agentrt.runner.tasks import is_task_id

_QueueResult = TypeVar("_QueueResult")

# In the database of a store, whose own version says nothing about these tables.
_QUEUE_MIGRATIONS = [
    """
    CREATE TABLE runner_schema (version INTEGER NOT NULL);
    INSERT INTO runner_schema VALUES (1);
    CREATE TABLE runner_queue (
        number INTEGER PRIMARY KEY AUTOINCREMENT,  -- the order within a session
        session TEXT NOT NULL,
        reply TEXT NOT NULL,
        kind TEXT NOT NULL,
        key TEXT NOT NULL,
        digest TEXT NOT NULL,
        input TEXT NOT NULL,
        labels TEXT NOT NULL,
        due_at INTEGER NOT NULL,
        status TEXT NOT NULL,
        deaths INTEGER NOT NULL DEFAULT 0,  -- of workers that had it
        is_begun INTEGER NOT NULL DEFAULT 0,  -- so that a death counts
        worker TEXT NOT NULL DEFAULT '',  -- that has it or had it last, none before its start
        is_interrupted INTEGER NOT NULL DEFAULT 0,
        reason TEXT,  -- how it ended: the state of the session has only what was said, and the last end
        error TEXT,
        last_number INTEGER,
        finished_at INTEGER,
        UNIQUE (session, key)
    );
    -- These leave out what is done, which is nearly everything.
    CREATE INDEX runner_queue_open ON runner_queue (status, number) WHERE status <> 'done';
    CREATE INDEX runner_queue_session ON runner_queue (session, status) WHERE status <> 'done';
    CREATE INDEX runner_queue_reply ON runner_queue (reply, session);
    CREATE INDEX runner_queue_finished ON runner_queue (finished_at) WHERE finished_at IS NOT NULL;
    CREATE TABLE runner_ticks (name TEXT PRIMARY KEY, ticked_at INTEGER NOT NULL)
""",
    # What was queued for a session that was saved does not say whose that is, and takes its turn with what nobody owns.
    """
    ALTER TABLE runner_queue ADD COLUMN owner TEXT NOT NULL DEFAULT '';
    UPDATE runner_queue SET owner = coalesce(json_extract(labels, '$.owner'), '') WHERE status <> 'done';
    CREATE INDEX runner_queue_owner ON runner_queue (owner, status, number) WHERE status <> 'done';
    UPDATE runner_schema SET version = 2
""",
]

_FIND_KEY = "SELECT digest, status FROM runner_queue WHERE session = ? AND key = ?"
# What is open is looked for with `status <> 'done'`: without it SQLite does not use an index that leaves out the rest.
_COUNT = """
    SELECT count(*), count(*) FILTER (WHERE session = ?), count(*) FILTER (WHERE owner = ?)
    FROM runner_queue WHERE status <> 'done' AND status IN ('queued', 'held')
"""
_OWNER_IN_SESSION = "SELECT owner FROM runner_queue WHERE session = ? AND status <> 'done' LIMIT 1"
_RATE = "SELECT count(*) FROM runner_queue WHERE finished_at > ?"
_ADD_REQUEST = """
    INSERT INTO runner_queue (session, reply, kind, key, digest, input, labels, owner, due_at, status)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, 'queued') ON CONFLICT DO NOTHING
"""
_ADD_FIRST = """
    INSERT INTO runner_queue (number, session, reply, kind, key, digest, input, labels, owner, due_at, deaths, status)
    VALUES ((SELECT min(number) FROM runner_queue) - 1, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 'queued')
    ON CONFLICT DO NOTHING
"""
_MAY_RUN = """
    next.status <> 'done' AND next.status = 'queued' AND due_at <= :now AND NOT EXISTS (
        SELECT 1 FROM runner_queue AS other
        WHERE other.session = next.session AND other.status <> 'done' AND other.status = 'running'
    )
"""
# The owners who have something to run, in the order of that, and fewer replies than may run for one of them.
_OWNERS = f"""
    SELECT owner FROM runner_queue AS next WHERE {_MAY_RUN} AND owner NOT IN (
        SELECT owner FROM runner_queue WHERE status <> 'done' AND status = 'running' AND owner <> ''
        GROUP BY owner HAVING count(*) >= :max_per_owner
    )
    GROUP BY owner ORDER BY min(number)
"""
# The owner's first that may run. Two processes never claim the same one, since SQLite has one writer at a time.
_CLAIM = f"""
    UPDATE runner_queue SET status = 'running', worker = :worker, is_begun = deaths < :deaths
    WHERE number = (SELECT number FROM runner_queue AS next WHERE owner = :owner AND {_MAY_RUN} ORDER BY number LIMIT 1)
    RETURNING number, session, reply, kind, key, digest, input, labels, owner, deaths, is_interrupted
"""
_FINISH = """
    UPDATE runner_queue SET status = 'done', input = '', reason = ?, error = ?, last_number = ?,
        finished_at = ? WHERE number = ?
"""
_BEGIN = "UPDATE runner_queue SET is_begun = 1 WHERE number = ?"
_RELEASE = "UPDATE runner_queue SET status = 'queued' WHERE number = ?"
_HOLD = "UPDATE runner_queue SET status = 'held', worker = '' WHERE number = ?"
_UNHOLD = "UPDATE runner_queue SET status = 'queued' WHERE session = ? AND status = 'held'"
_NOTE_OWN_SAVED = "UPDATE runner_queue SET labels = 'null' WHERE number = ?"
# Inputs queued for a saved session do not recreate it if it is deleted now.
_NOTE_SAVED = "UPDATE runner_queue SET labels = 'null' WHERE session = ? AND status <> 'done'"
# What was held is looked at again: the answer may have been given without this queue.
_RECOVER = """
    UPDATE runner_queue SET status = 'queued', deaths = deaths + (status = 'running' AND is_begun)
    WHERE status <> 'done' AND status IN ('running', 'held') RETURNING session, reply, worker
"""
_STANDING = """
    SELECT status, worker, reason, error, last_number FROM runner_queue WHERE session = ? AND reply = ? ORDER BY number
"""
_FIND_SESSIONS = """
    SELECT session FROM runner_queue WHERE reply = ? AND owner IN (coalesce(?, owner), '')
    GROUP BY session ORDER BY max(number) DESC LIMIT ?
"""
_FIND_REPLIES = "SELECT DISTINCT reply FROM runner_queue WHERE session = ? AND status <> 'done'"
_ANSWERS = """
    SELECT session, reply, kind, key, digest, input, labels, owner FROM runner_queue
    WHERE session = ? AND reply = ? AND kind = 'answer' AND status <> 'done'
"""
# A started request may be in progress in the state of its session, so a worker has to end it; and one by which a task
# wakes has a message that the session keeps, though no reply answers it.
_CANCEL = """
    UPDATE runner_queue SET status = 'done', input = '', reason = 'interrupted', finished_at = ?
    WHERE session = ? AND reply = ? AND kind = 'message' AND worker = '' AND status <> 'done' AND NOT ?
"""
_INTERRUPT = """
    UPDATE runner_queue SET is_interrupted = 1 WHERE session = ? AND reply = ? AND status <> 'done'
"""
_IS_INTERRUPTED = "SELECT is_interrupted FROM runner_queue WHERE number = ?"
_TO_INTERRUPT = """
    SELECT number FROM runner_queue WHERE status <> 'done' AND status = 'running' AND is_interrupted
"""
_FORGET_SESSION = "DELETE FROM runner_queue WHERE session = ? AND status = 'done'"
_FORGET_FINISHED = "DELETE FROM runner_queue WHERE finished_at < ?"
_TICK = "INSERT INTO runner_ticks VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET ticked_at = excluded.ticked_at"
_LAST_TICK = "SELECT ticked_at FROM runner_ticks WHERE name = ?"

_REMEMBERED = 7 * 24 * 3600 * 10**9
"""For how many nanoseconds a reply id is known after its reply has ended."""
_PACE_TIME = 60 * 10**9


class SQLiteQueue(ReplyQueue):
    """The requests of a runner in one process, in the SQLite database at `path`, or in memory.

    Any number of processes may add to a database. Each operation is one transaction. Owners take turns: each round
    claims one request of each owner who has one to run, and at most `max_per_owner` of an owner run at a time.
    """

    def __init__(self, path: Path | None, *, is_full: bool = True, max_per_owner: int) -> None:
        self.path = path
        self._max_per_owner = max_per_owner
        # In memory, since one process claims at a time.
        self._round: deque[str] = deque()
        self._last_owner = ""
        self._is_full = is_full
        self._file = SQLiteFile(path)
        self._operations = OperationQueue(1)

    async def open(self) -> None:
        """Make the tables, if they are not there; raises `SessionVersion` for those of a newer version."""
        await self._run("opened", self._open)

    async def close(self) -> None:
        await self._run("closed", self._file.close)

    async def add(self, request: Request, due_at: int, room: QueueRoom) -> None:
        await self._run("written", partial(self._add, request, due_at, room))

    async def add_first(self, request: Request, deaths: int) -> None:
        """Store a request in front of the others, with the number of workers that died with its reply."""
        await self._run("written", partial(self._execute, _ADD_FIRST, *_columns_of(request), 0, deaths))

    async def claim(self, worker: str) -> ClaimedRequest | None:
        """Take the next request that is due, of the owner whose turn it is and a session that has none running."""
        return await self._run("read", partial(self._claim, worker))

    async def begin(self, claimed: ClaimedRequest) -> None:
        await self._run("written", partial(self._execute, _BEGIN, claimed.name))

    async def note_saved(self, claimed: ClaimedRequest) -> None:
        await self._run("written", partial(self._execute, _NOTE_OWN_SAVED, claimed.name))

    async def finish(self, claimed: ClaimedRequest, result: Result) -> None:
        await self._run("written", partial(self._finish, claimed, result))

    async def give_back(self, claimed: ClaimedRequest) -> bool:
        await self._run("written", partial(self._execute, _RELEASE, claimed.name))
        return True  # nobody takes anything from a process that has the lock

    async def hold(self, claimed: ClaimedRequest) -> None:
        await self._run("written", partial(self._execute, _HOLD, claimed.name))

    async def recover(self) -> list[tuple[str, str, str]]:
        """Give back what a worker had that has died; returns sessions, replies, and the worker's name."""
        rows = await self._run("written", partial(self._execute, _RECOVER))
        return [(session, reply, worker) for session, reply, worker in rows if worker]

    async def standing(self, session_id: str, reply_id: str) -> Standing | None:
        rows = await self._run("read", partial(self._execute, _STANDING, session_id, reply_id))
        if not rows:
            return None
        worker = next((worker for status, worker, *_ in rows if status == "running"), "")
        *_, (_, _, *end) = rows
        return Standing(any(status != "done" for status, *_ in rows), worker, *end)

    async def find_sessions(self, reply_id: str, owner: str | None, limit: int) -> list[str]:
        rows = await self._run("read", partial(self._execute, _FIND_SESSIONS, reply_id, owner, limit))
        return [session for (session,) in rows]

    async def find_replies(self, session_id: str) -> list[str]:
        return [reply for (reply,) in await self._run("read", partial(self._execute, _FIND_REPLIES, session_id))]

    async def pending_answers(self, session_id: str, reply_id: str) -> list[Request]:
        rows = await self._run("read", partial(self._execute, _ANSWERS, session_id, reply_id))
        return [_request_of(row) for row in rows]

    async def interrupt(self, session_id: str, reply_id: str) -> bool:
        return await self._run("written", partial(self._interrupt, session_id, reply_id))

    async def forget(self, session_id: str) -> None:
        await self._run("written", partial(self._execute, _FORGET_SESSION, session_id))

    async def interrupted(self) -> set[Hashable]:
        """Return the names of the running requests that are to end."""
        return {number for (number,) in await self._run("read", partial(self._execute, _TO_INTERRUPT))}

    async def last_tick(self, name: str) -> int | None:
        rows = await self._run("read", partial(self._execute, _LAST_TICK, name))
        return rows[0][0] if rows else None

    async def note_tick(self, name: str, ticked_at: int) -> None:
        await self._run("written", partial(self._execute, _TICK, name, ticked_at))

    async def _run(self, action: str, work: Callable[[], _QueueResult]) -> _QueueResult:
        try:
            # One after the other, as there is one connection; a cancellation waits, so that none stays half done.
            return await self._operations.run("", lambda deadline: work(), shield=True)
        except (OSError, sqlite3.DatabaseError) as error:
            reason = getattr(error, "sqlite_errorname", None) or getattr(error, "strerror", None)
            what = f"the queue in {str(self.path)!r} could not be {action}: {reason or type(error).__name__}"
        # Raised here, since an error of SQLite may quote what it was given.
        raise SessionIOError(f"{what}; nothing was changed, so try again")

    def _open(self) -> sqlite3.Connection:
        return self._file.connect(self._prepare)

    def _prepare(self, connection: sqlite3.Connection) -> None:
        # As the store has it, whose file this may be: readers do not wait for the writer.
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute(f"PRAGMA synchronous = {'FULL' if self._is_full else 'NORMAL'}")
        with transaction(connection):
            self._migrate(connection)

    def _migrate(self, connection: sqlite3.Connection) -> None:
        version = 0
        if connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'runner_schema'").fetchone():
            [version] = connection.execute("SELECT version FROM runner_schema").fetchone()
        if version > len(_QUEUE_MIGRATIONS):
            raise SessionVersion(
                f"the queue in {str(self.path)!r} has the schema {version}, and this version of agentrt knows "
                f"{len(_QUEUE_MIGRATIONS)}: use the version that made it, or a newer one; nothing was changed"
            )
        for migration in _QUEUE_MIGRATIONS[version:]:
            for statement in migration.split(";\n"):
                connection.execute(statement)

    def _execute(self, statement: str, *parameters: object) -> list[Any]:
        return self._open().execute(statement, parameters).fetchall()

    def _add(self, request: Request, due_at: int, room: QueueRoom) -> None:
        with transaction(self._open()) as connection:
            known = connection.execute(_FIND_KEY, (request.session_id, request.key)).fetchone()
            if known is not None:
                if known[0] != request.digest:
                    raise InvalidInputError(
                        f"the reply {request.reply_id!r} of session {request.session_id!r:.100} was asked for with "
                        f"another input: give each new input a reply id of its own"
                    )
                return
            if request.kind == "answer":
                rows = connection.execute(_ANSWERS, (request.session_id, request.reply_id)).fetchall()
                check_contradiction(request, map(_request_of, rows))
            # With one owner for all of a session, its requests stay in their order.
            for (owner,) in connection.execute(_OWNER_IN_SESSION, (request.session_id,)):
                request = replace(request, owner=owner)
            # An answer lets others go ahead, so there is always room for it.
            if request.kind == "message":
                waiting = connection.execute(_COUNT, (request.session_id, request.owner)).fetchone()
                full = room.find_full(request, *waiting)
                if full is not None:
                    [finished] = connection.execute(_RATE, (time_ns() - _PACE_TIME,)).fetchone()
                    raise queue_full(full, finished)
            connection.execute(_ADD_REQUEST, (*_columns_of(request), due_at))

    def _claim(self, worker: str) -> ClaimedRequest | None:
        connection = self._open()
        values = {
            "worker": worker,
            "deaths": SUSPECT_DEATHS,
            "now": time_ns(),
            "max_per_owner": self._max_per_owner,
        }
        while True:
            if not self._round:
                owners = [owner for (owner,) in connection.execute(_OWNERS, values)]
                # Whose turn was last goes behind those who have come since.
                self._round.extend(sorted(owners, key=lambda owner: owner == self._last_owner))
                if not owners:
                    return None
            owner = self._last_owner = self._round.popleft()
            rows = connection.execute(_CLAIM, {**values, "owner": owner}).fetchall()
            if rows:
                number, *request, deaths, is_interrupted = rows[0]
                return ClaimedRequest(number, _request_of(request), deaths, bool(is_interrupted))

    def _finish(self, claimed: ClaimedRequest, result: Result) -> None:
        now, session_id = time_ns(), claimed.request.session_id
        with transaction(self._open()) as connection:
            # In one transaction: a worker that dies halfway must not leave the others on hold.
            connection.execute(_FINISH, (result.reason, result.error, result.number, now, claimed.name))
            connection.execute(_UNHOLD, (session_id,))
            if result.kind == "waiting" and connection.execute(_IS_INTERRUPTED, (claimed.name,)).fetchone()[0]:
                # Asked for while the reply came to its question.
                answer = make_request(
                    session_id,
                    claimed.request.reply_id,
                    UserInterruptEvent(claimed.request.reply_id),
                    owner=claimed.request.owner,
                )
                connection.execute(_ADD_REQUEST, (*_columns_of(answer), 0))
            if result.number is not None:
                connection.execute(_NOTE_SAVED, (session_id,))
            connection.execute(_FORGET_FINISHED, (now - _REMEMBERED,))

    def _interrupt(self, session_id: str, reply_id: str) -> bool:
        with transaction(self._open()) as connection:
            cancelled = connection.execute(_CANCEL, (time_ns(), session_id, reply_id, is_task_id(reply_id))).rowcount
            return bool(connection.execute(_INTERRUPT, (session_id, reply_id)).rowcount or cancelled)


def _request_of(row: Iterable[object]) -> Request:
    session_id, reply_id, kind, key, digest, text, labels, owner = map(str, row)
    return Request(session_id, reply_id, cast(RequestKind, kind), key, digest, text, loads(labels), owner)


def _columns_of(request: Request) -> tuple[str, ...]:
    *names, labels, owner = astuple(request)
    return (*names, dumps(labels), owner)
