"""The rows of runs in the SQLite database of a store, by a connection of their own."""

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from time import monotonic
from typing import Any

from agentrt._runtime.database.operations import MAX_WAIT
from agentrt._runtime.database.sqlite_file import transaction
from agentrt.state.database.sql_runs import SQLRunRows
from agentrt.state.records.rows import RunQuery, RunRow, RunWrite

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

_RUN_WITH_LABEL = "EXISTS (SELECT 1 FROM json_each(labels) WHERE key = ? AND value = ?)"


class SQLiteRunRows(SQLRunRows):
    """Keeps runs in SQLite. `database` opens the file as a store of sessions does."""

    @contextmanager
    def _connection(self) -> Iterator[sqlite3.Connection]:
        with self._database.connect(monotonic() + MAX_WAIT) as connection:
            yield connection

    def _execute(self, statement: str, *values: object) -> list[Any]:
        with self._connection() as connection:
            return connection.execute(statement, values).fetchall()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        with self._connection() as connection:
            # A method inside of another one is part of its transaction.
            if connection.in_transaction:
                yield
                return
            # As a write transaction from the start, so that it never has to wait in the middle.
            with transaction(connection):
                yield

    def write(self, writes: Sequence[RunWrite]) -> None:
        with self.transaction(), self._connection() as connection:
            for write in writes:
                row = write.row
                number = self._save(row)
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

    def page(self, query: RunQuery) -> list[RunRow]:
        with self._connection() as connection:
            # SQLite's own `lower` knows ASCII alone.
            connection.create_function("casefold", 1, str.casefold, deterministic=True)
            return super().page(query)

    def _conditions(self, query: RunQuery) -> Iterator[tuple[Any, ...]]:
        if query.text:
            # LIKE has wildcards of its own, which are meant as they are.
            text = query.text.casefold().replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
            yield "casefold(title) LIKE ? ESCAPE '\\'", f"%{text}%"
        for pair in query.labels.items():
            yield _RUN_WITH_LABEL, *pair
