"""The rows of runs in the SQLite database of a store, by a connection of their own."""

import sqlite3
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from json import dumps
from time import monotonic
from typing import Any

from pydantic_core import from_json

from agentrt._runtime.database.operations import MAX_WAIT
from agentrt.state.records import RunQuery, RunRow, RunRows, RunWrite

__all__ = ["FORGET_RUNS", "RUN_TABLES", "SQLiteRunRows"]

RUN_TABLES = """
    CREATE TABLE runs (
        number INTEGER PRIMARY KEY AUTOINCREMENT,
        session TEXT NOT NULL,
        reply TEXT NOT NULL,
        root TEXT NOT NULL,
        parent_session TEXT,
        parent_reply TEXT,
        begun_at INTEGER NOT NULL,
        ended_at INTEGER,
        expires_at INTEGER NOT NULL,
        status TEXT NOT NULL,
        title TEXT NOT NULL,
        labels TEXT NOT NULL,
        lines INTEGER NOT NULL,
        hash TEXT NOT NULL,
        about BLOB NOT NULL,
        is_deleted INTEGER NOT NULL DEFAULT 0,
        UNIQUE (session, reply)
    );
    CREATE INDEX runs_by_root ON runs (root);
    CREATE INDEX runs_by_expiry ON runs (expires_at);
    CREATE TABLE run_lines (
        run INTEGER NOT NULL REFERENCES runs ON DELETE CASCADE,
        n INTEGER NOT NULL,
        line BLOB NOT NULL,
        PRIMARY KEY (run, n)
    ) WITHOUT ROWID;
    CREATE TABLE run_contents (
        root TEXT NOT NULL,
        hash TEXT NOT NULL,
        content BLOB NOT NULL,
        PRIMARY KEY (root, hash)
    ) WITHOUT ROWID;
"""

FORGET_RUNS = ("DELETE FROM runs WHERE root = ?", "DELETE FROM run_contents WHERE root = ?")

_RUN_COLUMNS = """
    session, reply, root, parent_session, parent_reply, begun_at, ended_at, expires_at, status, title, labels,
    lines, hash, about, is_deleted, number"""
_SAVE_RUN = """
    INSERT INTO runs (session, reply, root, parent_session, parent_reply, begun_at, ended_at, expires_at, status, title,
        labels, lines, hash, about, is_deleted)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
    ON CONFLICT (session, reply) DO UPDATE SET ended_at = excluded.ended_at, status = excluded.status,
        title = excluded.title, labels = excluded.labels, lines = excluded.lines, hash = excluded.hash,
        about = excluded.about, is_deleted = excluded.is_deleted
    RETURNING number
"""
_SELECT_RUNS = f"SELECT {_RUN_COLUMNS} FROM runs"
_RUN_WITH_LABEL = " AND EXISTS (SELECT 1 FROM json_each(labels) WHERE key = ? AND value = ?)"
_MAX_HASHES = 500


class SQLiteRunRows(RunRows):
    """Keeps rows, lines and contents in three tables. `database` opens the file as a store of sessions does."""

    def __init__(self, make_database: Callable[[], Any]) -> None:
        self._make_database = make_database
        self._database: Any = make_database()

    def __getstate__(self) -> dict[str, Any]:
        return {"_make_database": self._make_database}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(make_database=state["_make_database"])  # type: ignore[misc]  # as if it were new

    @contextmanager
    def _connection(self) -> Iterator[sqlite3.Connection]:
        with self._database.connect(monotonic() + MAX_WAIT) as connection:
            yield connection

    @contextmanager
    def transaction(self) -> Iterator[None]:
        with self._connection() as connection:
            # A method inside of another one is part of its transaction.
            if connection.in_transaction:
                yield
                return
            # As a write transaction from the start, so that it never has to wait in the middle.
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise

    def write(self, writes: Sequence[RunWrite]) -> None:
        with self.transaction(), self._connection() as connection:
            for write in writes:
                row = write.row
                number = self._save(connection, row)
                # The key of a line refuses a second writer of the same run.
                first = row.lines - len(write.lines) + 1
                connection.executemany(
                    "INSERT INTO run_lines VALUES (?, ?, ?)",
                    ((number, n, line) for n, line in enumerate(write.lines, first)),
                )
                connection.executemany(
                    "INSERT OR IGNORE INTO run_contents VALUES (?, ?, ?)",
                    ((row.root, digest, content) for digest, content in write.contents.items()),
                )

    def _save(self, connection: sqlite3.Connection, row: RunRow) -> int:
        parent = row.parent or (None, None)
        values = (*row.key, row.root, *parent, row.begun_at, row.ended_at, row.expires_at, row.status, row.title)
        more = (dumps(dict(row.labels)), row.lines, row.hash, row.about, row.is_deleted)
        [number] = connection.execute(_SAVE_RUN, (*values, *more)).fetchone()
        return int(number)

    def _select(self, condition: str, *values: object) -> list[RunRow]:
        with self._connection() as connection:
            return [self._run_row(values) for values in connection.execute(f"{_SELECT_RUNS} WHERE {condition}", values)]

    def _run_row(self, values: Sequence[Any]) -> RunRow:
        session, reply, root, parent_session, parent_reply, begun_at, ended_at, expires_at, status, title, labels = (
            values[:11]
        )
        lines, digest, about, is_deleted, number = values[11:]
        parent = None if parent_session is None else (parent_session, parent_reply)
        return RunRow(
            session, reply, root, parent, begun_at, ended_at, expires_at, status, title, from_json(labels), lines,
            digest, about, bool(is_deleted), number,
        )  # fmt: skip

    def find(self, session_id: str, reply_id: str) -> RunRow | None:
        return next(iter(self._select("session = ? AND reply = ?", session_id, reply_id)), None)

    def last(self, session_id: str) -> RunRow | None:
        return next(iter(self._select("session = ? ORDER BY number DESC LIMIT 1", session_id)), None)

    def of_session(self, session_id: str) -> list[RunRow]:
        return self._select("session = ? ORDER BY number", session_id)

    def of_root(self, root: str) -> list[RunRow]:
        return self._select("root = ? ORDER BY number", root)

    def lines(self, session_id: str, reply_id: str, after: int = 0) -> list[bytes]:
        sql = (
            "SELECT line FROM run_lines JOIN runs ON run = number WHERE session = ? AND reply = ? AND n > ? ORDER BY n"
        )
        with self._connection() as connection:
            lines = [line for (line,) in connection.execute(sql, (session_id, reply_id, after))]
        return [line if isinstance(line, bytes) else str(line).encode() for line in lines]  # whatever was put there

    def contents(self, root: str, hashes: Collection[str]) -> dict[str, bytes]:
        chosen: list[str] = list(hashes)
        found: dict[str, bytes] = {}
        with self._connection() as connection:
            for start in range(0, len(chosen), _MAX_HASHES):
                part = chosen[start : start + _MAX_HASHES]
                marks = ",".join("?" * len(part))
                sql = f"SELECT hash, content FROM run_contents WHERE root = ? AND hash IN ({marks})"
                found.update(connection.execute(sql, (root, *part)))
        return found

    def page(self, query: RunQuery) -> list[RunRow]:
        condition = "NOT is_deleted AND begun_at >= ?"
        values: list[Any] = [query.since]
        chosen: list[tuple[str, Any]] = [
            ("session = ?", query.session_id),
            ("status = ?", query.status),
            ("number < ?", query.before),
        ]
        for part, value in chosen:
            if value is not None:
                condition += f" AND {part}"
                values.append(value)
        if query.session_id is None:
            condition += " AND parent_session IS NULL"
        if query.text:
            condition += " AND casefold(title) LIKE ? ESCAPE '\\'"
            # LIKE has wildcards of its own, which are meant as they are.
            text = query.text.casefold().replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
            values.append(f"%{text}%")
        for pair in query.labels.items():
            condition += _RUN_WITH_LABEL
            values += pair
        with self._connection() as connection:
            # SQLite's own `lower` knows ASCII alone.
            connection.create_function("casefold", 1, str.casefold, deterministic=True)
            return self._select(f"{condition} ORDER BY number DESC LIMIT ?", *values, query.limit + 1)

    def expired(self, now: int) -> list[RunRow]:
        return self._select("expires_at <= ? ORDER BY number", now)

    def bury(self, row: RunRow) -> None:
        with self._connection() as connection:
            number = self._save(connection, row)
            connection.execute("DELETE FROM run_lines WHERE run = ?", (number,))

    def remove(self, row: RunRow) -> None:
        with self._connection() as connection:
            connection.execute("DELETE FROM runs WHERE session = ? AND reply = ?", row.key)

    def sweep(self, root: str, keep: Collection[str]) -> None:
        with self._connection() as connection:
            there = {
                digest for (digest,) in connection.execute("SELECT hash FROM run_contents WHERE root = ?", (root,))
            }
            gone = ((root, digest) for digest in there.difference(keep))
            connection.executemany("DELETE FROM run_contents WHERE root = ? AND hash = ?", gone)

    def close(self) -> None:
        self._database.close()
