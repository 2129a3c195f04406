"""The rows of runs in the PostgreSQL schema of a store."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from json import dumps
from time import monotonic
from typing import Any

from agentrt._runtime.database.operations import MAX_WAIT
from agentrt.state.database.sql_runs import SQLRunRows
from agentrt.state.database.store import encode_text
from agentrt.state.records.rows import RunQuery, RunRow, RunWrite

# Ids and titles are bytes, as those of sessions are.
POSTGRES_RUN_TABLES = """
    CREATE TABLE {schema}.runs (
        number BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        session BYTEA NOT NULL,
        reply BYTEA NOT NULL,
        root BYTEA NOT NULL,
        parent_session BYTEA,
        parent_reply BYTEA,
        begun_at BIGINT NOT NULL,
        ended_at BIGINT,
        expires_at BIGINT NOT NULL,
        status TEXT NOT NULL,
        title BYTEA NOT NULL,
        search BYTEA NOT NULL,
        labels JSONB NOT NULL,
        lines BIGINT NOT NULL,
        hash TEXT NOT NULL,
        about BYTEA NOT NULL,
        is_deleted BOOLEAN NOT NULL,
        UNIQUE (session, reply)
    );
    CREATE INDEX ON {schema}.runs (root);
    CREATE INDEX ON {schema}.runs (expires_at);
    CREATE INDEX ON {schema}.runs USING gin (labels jsonb_path_ops);
    CREATE TABLE {schema}.run_lines (
        run BIGINT NOT NULL REFERENCES {schema}.runs ON DELETE CASCADE,
        n BIGINT NOT NULL,
        line BYTEA NOT NULL,
        PRIMARY KEY (run, n)
    );
    CREATE TABLE {schema}.run_contents (
        root BYTEA NOT NULL,
        hash TEXT NOT NULL,
        content BYTEA NOT NULL,
        PRIMARY KEY (root, hash)
    )
"""

POSTGRES_FORGET_RUNS = (
    "DELETE FROM {schema}.runs WHERE root = %s",
    "DELETE FROM {schema}.run_contents WHERE root = %s",
)


class PostgresRunRows(SQLRunRows):
    """Keeps runs in PostgreSQL; many lines are sent by COPY."""

    def __init__(self, make_database: Callable[[], Any], schema: str) -> None:
        super().__init__(make_database, schema)
        self._connection: Any = None  # of the transaction in progress

    @contextmanager
    def transaction(self) -> Iterator[Any]:
        if self._connection is not None:
            yield self._connection
            return
        with self._database.connect(monotonic() + MAX_WAIT) as connection, connection.transaction():
            self._connection = connection
            try:
                yield connection
            finally:
                self._connection = None

    def _execute(self, statement: str, *values: object) -> list[Any]:
        with self.transaction() as connection:
            cursor = connection.execute(statement.replace("?", "%s"), values)
            return cursor.fetchall() if cursor.description else []

    def write(self, writes: Sequence[RunWrite]) -> None:
        with self.transaction() as connection, connection.cursor() as cursor:
            numbers = [self._save(write.row) for write in writes]
            with cursor.copy(f"COPY {self._schema}.run_lines (run, n, line) FROM STDIN") as copy:
                for number, write in zip(numbers, writes, strict=True):
                    for n, line in enumerate(write.lines, write.row.lines - len(write.lines) + 1):
                        copy.write_row((number, n, line))
            # Not by COPY, which cannot leave out what is there.
            sql = f"INSERT INTO {self._schema}.run_contents VALUES (%s, %s, %s) ON CONFLICT DO NOTHING"
            rows = [
                (encode_text(write.row.root), digest, content)
                for write in writes
                for digest, content in write.contents.items()
            ]
            if rows:
                cursor.executemany(sql, rows)

    def _encode(self, text: str) -> bytes:
        return encode_text(text)

    def _decode(self, stored: Any) -> str:
        return bytes(stored).decode()

    def _columns(self, row: RunRow) -> dict[str, Any]:
        return super()._columns(row) | {"search": encode_text(row.title.casefold())}

    def _conditions(self, query: RunQuery) -> Iterator[tuple[Any, ...]]:
        yield "labels @> ?", dumps(dict(query.labels))
        if query.text:
            yield "position(?::bytea in search) > 0", encode_text(query.text.casefold())
