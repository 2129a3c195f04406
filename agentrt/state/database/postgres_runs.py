"""The rows of runs in the PostgreSQL schema of a store."""

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from json import dumps
from time import monotonic
from typing import Any

from agentrt._runtime.database.operations import MAX_WAIT
from agentrt.state.database.store import encode_text
from agentrt.state.records import RunQuery, RunRow, RunRows, RunWrite

__all__ = ["POSTGRES_FORGET_RUNS", "POSTGRES_RUN_TABLES", "PostgresRunRows"]

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

_POSTGRES_COLUMNS = """
    session, reply, root, parent_session, parent_reply, begun_at, ended_at, expires_at, status, title, labels, lines,
    hash, about, is_deleted, number"""
_SAVE_ROW = """
    INSERT INTO {schema}.runs (session, reply, root, parent_session, parent_reply, begun_at, ended_at, expires_at,
        status, title, search, labels, lines, hash, about, is_deleted)
    VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s)
    ON CONFLICT (session, reply) DO UPDATE SET ended_at = excluded.ended_at, status = excluded.status,
        title = excluded.title, search = excluded.search, labels = excluded.labels, lines = excluded.lines,
        hash = excluded.hash, about = excluded.about, is_deleted = excluded.is_deleted
    RETURNING number
"""


class PostgresRunRows(RunRows):
    """Keeps rows, lines and contents in three tables; many lines are sent by COPY."""

    def __init__(self, make_database: Callable[[], Any], schema: str) -> None:
        self._make_database, self._schema = make_database, schema
        self._database: Any = make_database()
        self._connection: Any = None  # of the transaction in progress

    def __getstate__(self) -> dict[str, Any]:
        return {"make_database": self._make_database, "schema": self._schema}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]  # as if it were new

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

    def _save(self, row: RunRow) -> int:
        parent = (None, None) if row.parent is None else tuple(map(encode_text, row.parent))
        ids = tuple(map(encode_text, (*row.key, row.root)))
        times = (row.begun_at, row.ended_at, row.expires_at, row.status)
        title = (encode_text(row.title), encode_text(row.title.casefold()), dumps(dict(row.labels)))
        values = (*ids, *parent, *times, *title, row.lines, row.hash, row.about, row.is_deleted)
        with self.transaction() as connection:
            return int(connection.execute(_SAVE_ROW.format(schema=self._schema), values).fetchone()[0])

    def _select(self, condition: str, *values: object) -> list[RunRow]:
        sql = f"SELECT {_POSTGRES_COLUMNS} FROM {self._schema}.runs WHERE {condition}"
        with self.transaction() as connection:
            return [self._read_run_row(row) for row in connection.execute(sql, values).fetchall()]

    def _read_run_row(self, values: Sequence[Any]) -> RunRow:
        (
            session,
            reply,
            root,
            parent_session,
            parent_reply,
            *times,
            title,
            labels,
            lines,
            digest,
            about,
            gone,
            number,
        ) = values
        parent = None if parent_session is None else (bytes(parent_session).decode(), bytes(parent_reply).decode())
        names = [bytes(part).decode() for part in (session, reply, root)]
        begun_at, ended_at, expires_at, status = times
        return RunRow(
            names[0], names[1], names[2], parent, begun_at, ended_at, expires_at, status, bytes(title).decode(), labels,
            lines, digest, bytes(about), gone, number,
        )  # fmt: skip

    def find(self, session_id: str, reply_id: str) -> RunRow | None:
        found = self._select("session = %s AND reply = %s", encode_text(session_id), encode_text(reply_id))
        return found[0] if found else None

    def last(self, session_id: str) -> RunRow | None:
        found = self._select("session = %s ORDER BY number DESC LIMIT 1", encode_text(session_id))
        return found[0] if found else None

    def of_session(self, session_id: str) -> list[RunRow]:
        return self._select("session = %s ORDER BY number", encode_text(session_id))

    def of_root(self, root: str) -> list[RunRow]:
        return self._select("root = %s ORDER BY number", encode_text(root))

    def lines(self, session_id: str, reply_id: str, after: int = 0) -> list[bytes]:
        sql = f"""
            SELECT line FROM {self._schema}.run_lines JOIN {self._schema}.runs ON run = number
            WHERE session = %s AND reply = %s AND n > %s ORDER BY n
        """
        with self.transaction() as connection:
            rows = connection.execute(sql, (encode_text(session_id), encode_text(reply_id), after)).fetchall()
        return [bytes(line) for (line,) in rows]

    def contents(self, root: str, hashes: Collection[str]) -> dict[str, bytes]:
        sql = f"SELECT hash, content FROM {self._schema}.run_contents WHERE root = %s AND hash = ANY(%s)"
        with self.transaction() as connection:
            rows = connection.execute(sql, (encode_text(root), list(hashes))).fetchall()
        return {digest: bytes(content) for digest, content in rows}

    def page(self, query: RunQuery) -> list[RunRow]:
        condition, values = (
            "NOT is_deleted AND begun_at >= %s AND labels @> %s",
            [query.since, dumps(dict(query.labels))],
        )
        chosen: list[tuple[str, Any]] = [
            ("session = %s", None if query.session_id is None else encode_text(query.session_id)),
            ("status = %s", query.status),
            ("number < %s", query.before),
            ("position(%s::bytea in search) > 0", encode_text(query.text.casefold()) if query.text else None),
        ]
        for part, value in chosen:
            if value is not None:
                condition += f" AND {part}"
                values.append(value)
        if query.session_id is None:
            condition += " AND parent_session IS NULL"
        return self._select(f"{condition} ORDER BY number DESC LIMIT %s", *values, query.limit + 1)

    def expired(self, now: int) -> list[RunRow]:
        return self._select("expires_at <= %s ORDER BY number", now)

    def bury(self, row: RunRow) -> None:
        with self.transaction() as connection:
            number = self._save(row)
            connection.execute(f"DELETE FROM {self._schema}.run_lines WHERE run = %s", (number,))

    def remove(self, row: RunRow) -> None:
        sql = f"DELETE FROM {self._schema}.runs WHERE session = %s AND reply = %s"
        with self.transaction() as connection:
            connection.execute(sql, tuple(map(encode_text, row.key)))

    def sweep(self, root: str, keep: Collection[str]) -> None:
        sql = f"DELETE FROM {self._schema}.run_contents WHERE root = %s AND hash <> ALL(%s)"
        with self.transaction() as connection:
            connection.execute(sql, (encode_text(root), list(keep)))

    def close(self) -> None:
        self._database.close()
