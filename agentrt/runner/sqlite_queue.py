"""The queue of a runner in one process: which replies are to be run, in one SQLite database."""

import os
import sqlite3
from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import astuple
from functools import partial
from json import dumps, loads
from pathlib import Path
from time import time_ns
from typing import Any, TypeVar, cast

from agentrt.database.open_file import OpenFile
from agentrt.database.operations import MAX_WAIT, OperationQueue
from agentrt.errors import InvalidInputError, SessionIOError, SessionVersion
from agentrt.event import UserInterruptEvent
from agentrt.runner.queue import SUSPECT_DEATHS, ClaimedRequest, ReplyQueue, Result, Standing, queue_full
from agentrt.runner.requests import Request, RequestKind, check_contradiction, make_request

__all__ = ["SQLiteQueue"]

_QueueResult = TypeVar("_QueueResult")

_QUEUE_VERSION = 1
# In the database of a store, whose own version says nothing about these tables.
_TABLES = """
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
        worker TEXT NOT NULL DEFAULT '',  -- that has it or had it last, none before it has begun
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
"""

_FIND_KEY = "SELECT digest, status FROM runner_queue WHERE session = ? AND key = ?"
_COUNT = """
    SELECT count(*), count(*) FILTER (WHERE session = ?) FROM runner_queue WHERE status IN ('queued', 'held')
"""
_RATE = "SELECT count(*) FROM runner_queue WHERE finished_at > ?"
_ADD_REQUEST = """
    INSERT INTO runner_queue (session, reply, kind, key, digest, input, labels, due_at, status)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, 'queued') ON CONFLICT DO NOTHING
"""
_ADD_FIRST = """
    INSERT INTO runner_queue (number, session, reply, kind, key, digest, input, labels, due_at, deaths, status)
    VALUES ((SELECT min(number) FROM runner_queue) - 1, ?, ?, ?, ?, ?, ?, ?, ?, ?, 'queued')
    ON CONFLICT DO NOTHING
"""
# The first that may run. Two processes never claim the same one, since SQLite has one writer at a time.
_CLAIM = """
    UPDATE runner_queue SET status = 'running', worker = ?, is_begun = deaths < ?
    WHERE number = (
        SELECT number FROM runner_queue AS next
        WHERE status = 'queued' AND due_at <= ? AND NOT EXISTS (
            SELECT 1 FROM runner_queue AS other WHERE other.session = next.session AND other.status = 'running'
        )
        ORDER BY number LIMIT 1
    )
    RETURNING number, session, reply, kind, key, digest, input, labels, deaths, is_interrupted
"""
_FINISH = """
    UPDATE runner_queue SET status = 'done', input = '', reason = ?, error = ?, last_number = ?,
        finished_at = ? WHERE number = ?
"""
_BEGIN = "UPDATE runner_queue SET is_begun = 1 WHERE number = ?"
_RELEASE = "UPDATE runner_queue SET status = 'queued' WHERE number = ?"
_HOLD = "UPDATE runner_queue SET status = 'held', worker = '' WHERE number = ?"
_UNHOLD = "UPDATE runner_queue SET status = 'queued' WHERE session = ? AND status = 'held'"
# What is queued for a session that was saved does not make it anew, if it is deleted now.
_NOTE_SAVED = "UPDATE runner_queue SET labels = 'null' WHERE session = ? AND status <> 'done'"
# What was held is looked at again: the answer may have been given without this queue.
_RECOVER = """
    UPDATE runner_queue SET status = 'queued', deaths = deaths + (status = 'running' AND is_begun)
    WHERE status IN ('running', 'held') RETURNING session, reply, worker
"""
_STANDING = """
    SELECT status, worker, reason, error, last_number FROM runner_queue WHERE session = ? AND reply = ? ORDER BY number
"""
_FIND_SESSIONS = "SELECT session FROM runner_queue WHERE reply = ? GROUP BY session ORDER BY max(number) DESC LIMIT ?"
_FIND_REPLIES = "SELECT DISTINCT reply FROM runner_queue WHERE session = ? AND status <> 'done'"
_ANSWERS = """
    SELECT session, reply, kind, key, digest, input, labels FROM runner_queue
    WHERE session = ? AND reply = ? AND kind = 'answer' AND status <> 'done'
"""
# What has begun may be in progress in the state of its session, so a worker has to end it.
_CANCEL = """
    UPDATE runner_queue SET status = 'done', input = '', reason = 'interrupted', finished_at = ?
    WHERE session = ? AND reply = ? AND kind = 'message' AND worker = '' AND status <> 'done'
"""
_INTERRUPT = """
    UPDATE runner_queue SET is_interrupted = 1
    WHERE session = ? AND reply = ? AND status <> 'done' AND (worker <> '' OR kind <> 'message')
"""
_IS_INTERRUPTED = "SELECT is_interrupted FROM runner_queue WHERE number = ?"
_TO_INTERRUPT = "SELECT number FROM runner_queue WHERE status = 'running' AND is_interrupted"
_FORGET_SESSION = "DELETE FROM runner_queue WHERE session = ? AND status = 'done'"
_FORGET_FINISHED = "DELETE FROM runner_queue WHERE finished_at < ?"
_TICK = "INSERT INTO runner_ticks VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET ticked_at = excluded.ticked_at"
_LAST_TICK = "SELECT ticked_at FROM runner_ticks WHERE name = ?"

_REMEMBERED = 7 * 24 * 3600 * 10**9
"""So many nanoseconds a reply id is known after its reply was over."""
_PACE_TIME = 60 * 10**9


class SQLiteQueue(ReplyQueue):
    """The requests of a runner in one process, in the SQLite database at `path`, or in memory.

    Any number of processes may add to a database. Each operation is one transaction.
    """

    def __init__(self, path: Path | None, *, is_full: bool = True) -> None:
        self.path = path
        self._is_full = is_full
        self._connection: sqlite3.Connection | None = None
        self._file: OpenFile | None = None  # that the connection is to
        self._operations = OperationQueue(1)

    async def open(self) -> None:
        """Make the tables, if they are not there; raises `SessionVersion` for those of a newer version."""
        await self._run("opened", self._open)

    async def close(self) -> None:
        await self._run("closed", self._close)

    async def add(self, request: Request, due_at: int, *, max_queued: int, max_per_session: int) -> None:
        await self._run("written", partial(self._add, request, due_at, max_queued, max_per_session))

    async def add_first(self, request: Request, deaths: int) -> None:
        """Store a request in front of the others, where so many workers died with its reply."""
        await self._run("written", partial(self._execute, _ADD_FIRST, *_columns_of(request), 0, deaths))

    async def claim(self, worker: str) -> ClaimedRequest | None:
        """Take the next request that is due, of a session that has none running; `None` if there is none."""
        return await self._run("read", partial(self._claim, worker))

    async def begin(self, claimed: ClaimedRequest) -> None:
        await self._run("written", partial(self._execute, _BEGIN, claimed.name))

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

    async def find_sessions(self, reply_id: str, limit: int) -> list[str]:
        rows = await self._run("read", partial(self._execute, _FIND_SESSIONS, reply_id, limit))
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
        if self._file is not None and not self._file.is_current():
            self._close()  # a copy was put in its place
        if self._connection is not None:
            return self._connection
        if self.path is not None:
            with suppress(FileExistsError):  # a file that SQLite makes can be read by all users
                os.close(os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
        connection = sqlite3.connect(
            self.path or ":memory:", timeout=MAX_WAIT - 1, isolation_level=None, check_same_thread=False
        )
        try:
            # As the store has it, whose file this may be: readers do not wait for the writer.
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute(f"PRAGMA synchronous = {'FULL' if self._is_full else 'NORMAL'}")
            with _written_whole(connection):
                self._make_tables(connection)
        except BaseException:
            connection.close()
            raise
        self._connection = connection
        self._file = None if self.path is None else OpenFile(self.path)
        return connection

    def _make_tables(self, connection: sqlite3.Connection) -> None:
        if not connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'runner_schema'").fetchone():
            for statement in _TABLES.split(";\n"):
                connection.execute(statement)
        [version] = connection.execute("SELECT version FROM runner_schema").fetchone()
        if version > _QUEUE_VERSION:
            raise SessionVersion(
                f"the queue in {str(self.path)!r} has the schema {version}, and this version of agentrt knows "
                f"{_QUEUE_VERSION}: use the version that made it, or a newer one; nothing was changed"
            )

    def _close(self) -> None:
        connection, self._connection, self._file = self._connection, None, None
        if connection is not None:
            connection.close()

    def _execute(self, statement: str, *parameters: object) -> list[Any]:
        return self._open().execute(statement, parameters).fetchall()

    def _add(self, request: Request, due_at: int, max_queued: int, max_per_session: int) -> None:
        with _written_whole(self._open()) as connection:
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
            in_all, in_session = connection.execute(_COUNT, (request.session_id,)).fetchone()
            # An answer lets others go ahead, so there is always room for it.
            if request.kind == "message" and (in_all >= max_queued or in_session >= max_per_session):
                [finished] = connection.execute(_RATE, (time_ns() - _PACE_TIME,)).fetchone()
                raise queue_full(request.session_id, in_all, in_session, max_queued, finished)
            connection.execute(_ADD_REQUEST, (*_columns_of(request), due_at))

    def _claim(self, worker: str) -> ClaimedRequest | None:
        rows = self._open().execute(_CLAIM, (worker, SUSPECT_DEATHS, time_ns())).fetchall()
        if not rows:
            return None
        number, *request, deaths, is_interrupted = rows[0]
        return ClaimedRequest(number, _request_of(request), deaths, bool(is_interrupted))

    def _finish(self, claimed: ClaimedRequest, result: Result) -> None:
        now, session_id = time_ns(), claimed.request.session_id
        with _written_whole(self._open()) as connection:
            # In one transaction, or a worker that dies in between would leave the others held for ever.
            connection.execute(_FINISH, (result.reason, result.error, result.number, now, claimed.name))
            connection.execute(_UNHOLD, (session_id,))
            if result.kind == "waiting" and connection.execute(_IS_INTERRUPTED, (claimed.name,)).fetchone()[0]:
                # Asked for while the reply came to its question.
                answer = make_request(
                    session_id, claimed.request.reply_id, UserInterruptEvent(claimed.request.reply_id)
                )
                connection.execute(_ADD_REQUEST, (*_columns_of(answer), 0))
            if result.number is not None:
                connection.execute(_NOTE_SAVED, (session_id,))
            connection.execute(_FORGET_FINISHED, (now - _REMEMBERED,))

    def _interrupt(self, session_id: str, reply_id: str) -> bool:
        with _written_whole(self._open()) as connection:
            cancelled = connection.execute(_CANCEL, (time_ns(), session_id, reply_id)).rowcount
            return bool(cancelled or connection.execute(_INTERRUPT, (session_id, reply_id)).rowcount)


def _request_of(row: Iterable[object]) -> Request:
    session_id, reply_id, kind, key, digest, text, labels = map(str, row)
    return Request(session_id, reply_id, cast(RequestKind, kind), key, digest, text, loads(labels))


def _columns_of(request: Request) -> tuple[str, ...]:
    return (*astuple(request)[:-1], dumps(request.labels))


@contextmanager
def _written_whole(connection: sqlite3.Connection) -> Iterator[sqlite3.Connection]:
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield connection
        connection.execute("COMMIT")
    except BaseException:
        with suppress(sqlite3.Error):
            connection.execute("ROLLBACK")
        raise
