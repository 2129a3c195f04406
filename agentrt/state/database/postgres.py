"""States in PostgreSQL, with the extra `postgres`: a row per session and one per message."""

from collections.abc import Sequence
from functools import partial
from json import dumps
from typing import Any

from agentrt._runtime.database.postgres import PostgresConnections, check_postgres_options
from agentrt._runtime.hidden import HiddenStr
from agentrt.errors import SessionVersion
from agentrt.state.database.postgres_runs import POSTGRES_FORGET_RUNS, POSTGRES_RUN_TABLES, PostgresRunRows
from agentrt.state.database.store import DatabaseStore, SavedRows, SaveMark, SessionDatabase, SessionRow, encode_text
from agentrt.state.records.rows import RunRows
from agentrt.state.sessions import SessionInfo, SessionPage, SessionQuery, check_ttl

_MAX_IN_STATEMENT = 1_000  # messages: more of them are sent by COPY, which takes half the time

# Ids and JSON are bytes, since a text of PostgreSQL cannot hold every character.
_POSTGRES_MIGRATIONS = [
    """
    CREATE TABLE {schema}.sessions (
        number BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        id BYTEA NOT NULL UNIQUE,
        revision BIGINT NOT NULL,
        created_at BIGINT NOT NULL DEFAULT {now},
        updated_at BIGINT NOT NULL DEFAULT {now},
        expires_at BIGINT,
        messages BIGINT NOT NULL,
        status TEXT NOT NULL,
        labels JSONB NOT NULL,
        head BYTEA NOT NULL
    );
    CREATE INDEX ON {schema}.sessions (expires_at) WHERE expires_at IS NOT NULL;
    CREATE INDEX ON {schema}.sessions USING gin (labels jsonb_path_ops);
    CREATE TABLE {schema}.messages (
        session BIGINT NOT NULL REFERENCES {schema}.sessions ON DELETE CASCADE,
        position BIGINT NOT NULL,
        message BYTEA NOT NULL,
        PRIMARY KEY (session, position)
    )
    """,
    # Identifies a save whose answer was lost.
    "ALTER TABLE {schema}.sessions ADD COLUMN token BIGINT NOT NULL DEFAULT 0",
    POSTGRES_RUN_TABLES,
]
"""Each brings the schema from the version that is its index to the next one; none is ever changed."""

_STATEMENTS = {
    "forget_expired": "DELETE FROM {schema}.sessions WHERE id = %(id)s AND expires_at <= {now}",
    "insert": """
        INSERT INTO {schema}.sessions (id, revision, token, expires_at, messages, status, labels, head)
        VALUES (%(id)s, %(revision)s, %(token)s, {now} + %(ttl)s, %(message_count)s, %(status)s, %(labels)s, %(head)s)
        ON CONFLICT (id) DO NOTHING RETURNING number
    """,
    "update": """
        UPDATE {schema}.sessions SET revision = %(revision)s, token = %(token)s, updated_at = {now},
            expires_at = {now} + %(ttl)s, messages = %(message_count)s, status = %(status)s, labels = %(labels)s,
            head = %(head)s
        WHERE id = %(id)s AND revision = %(base)s AND (expires_at IS NULL OR expires_at > {now}) RETURNING number
    """,
    "cut": "DELETE FROM {schema}.messages WHERE session = %s AND position >= %s",
    "copy": "COPY {schema}.messages (session, position, message) FROM STDIN",
    "find": """
        SELECT revision, token FROM {schema}.sessions
        WHERE id = %(id)s AND (expires_at IS NULL OR expires_at > {now})
    """,
    "load": """
        SELECT revision, messages, head,
            ARRAY(SELECT message FROM {schema}.messages WHERE session = number ORDER BY position)
        FROM {schema}.sessions WHERE id = %s AND (expires_at IS NULL OR expires_at > {now})
    """,
    "delete": "DELETE FROM {schema}.sessions WHERE id = %s",
    "expire": "DELETE FROM {schema}.sessions WHERE expires_at <= {now} RETURNING id",
    "forget runs": POSTGRES_FORGET_RUNS[0],
    "forget contents": POSTGRES_FORGET_RUNS[1],
    "describe": """
        SELECT id, revision, created_at, updated_at, messages, status, labels, {size} FROM {schema}.sessions
        WHERE id = %s AND (expires_at IS NULL OR expires_at > {now})
    """,
    "list": """
        SELECT id, revision, created_at, updated_at, messages, status, labels, {size} FROM {schema}.sessions
        WHERE id > %s AND id >= %s AND id < %s AND (expires_at IS NULL OR expires_at > {now}) AND labels @> %s
        ORDER BY id LIMIT %s
    """,
}
# The length of a long value is stored beside its pointer, so the value itself is not read.
_SIZE = """octet_length(head)
    + (SELECT coalesce(sum(octet_length(message)), 0) FROM {schema}.messages WHERE session = number)::bigint"""
_NOW = "(extract(epoch FROM clock_timestamp()) * 1000000000)::bigint"

# The statement above together with the messages: atomic, and one round trip.
_WITH_MESSAGES = """
    WITH saved AS ({save}),
    cut AS (DELETE FROM {schema}.messages USING saved WHERE session = number AND position >= %(message_count)s),
    added AS (
        INSERT INTO {schema}.messages (session, position, message)
        SELECT number, %(start)s + index - 1, message
        FROM saved, unnest(%(texts)s::bytea[]) WITH ORDINALITY AS texts (message, index)
        ON CONFLICT (session, position) DO UPDATE SET message = excluded.message
    )
    SELECT number FROM saved
"""


class PostgresStore(DatabaseStore):
    """Keeps sessions in the PostgreSQL database at `url`, in tables of its own `schema`, with the extra `postgres`.

    A save writes the messages that are new, and the rest of the state, in one statement. Any number of machines may use
    the database; when two save on the same revision, one gets `SessionConflict`. A save that has returned is as durable
    as the server's `synchronous_commit` says: by default, it survives a loss of power.

    At most `pool_size` connections are used at a time, from threads. With a `ttl`, a session expires that many seconds
    after its last save, by the server's clock. The tables are created and migrated at the first use, or by `migrate`.
    `async with store` closes the connections at the end; `aclose` does the same.
    """

    def __init__(self, url: str, *, schema: str = "agentrt", pool_size: int = 8, ttl: float | None = None) -> None:
        owner = type(self).__name__
        check_postgres_options(owner, schema, pool_size)
        database = _PostgresDatabase(owner, url, schema, check_ttl(owner, ttl))
        super().__init__(database, threads=pool_size)
        connect = partial(_PostgresDatabase, owner, HiddenStr(url), schema, None)
        self._make_rows = partial(PostgresRunRows, connect, schema)

    def _make_run_rows(self) -> RunRows:
        return self._make_rows()


class _PostgresDatabase(PostgresConnections, SessionDatabase):
    remedy = "restore the database from a backup"

    def __init__(self, owner: str, url: str, schema: str, ttl: float | None) -> None:
        super().__init__(
            owner,
            url,
            schema,
            extra="postgres",
            version_table="schema_version",
            migrations=[text.format(schema=schema, now=_NOW) for text in _POSTGRES_MIGRATIONS],
            newer_version=SessionVersion,
        )
        self._ttl = None if ttl is None else int(ttl * 1e9)
        size = _SIZE.format(schema=schema)
        self._sql = {name: text.format(schema=schema, now=_NOW, size=size) for name, text in _STATEMENTS.items()}
        for name in ("insert", "update"):
            self._sql[f"{name}_all"] = _WITH_MESSAGES.format(schema=schema, save=self._sql[name])

    def write(self, connection: Any, row: SessionRow, messages: Sequence[bytes]) -> SaveMark | None:
        values = row.as_dict() | {"id": row.session_id.encode(), "ttl": self._ttl, "texts": messages}
        kind = "update" if row.base else "insert"
        if kind == "insert":
            connection.execute(self._sql["forget_expired"], values)
        if len(messages) <= _MAX_IN_STATEMENT:
            # One statement is one transaction: atomic, and one round trip.
            is_saved = connection.execute(self._sql[f"{kind}_all"], values).fetchone() is not None
        else:
            is_saved = self._copy(connection, self._sql[kind], values)
        if is_saved:
            return None
        # Read after a failed save, only to say why.
        found = connection.execute(self._sql["find"], values).fetchone()
        return SaveMark(*found) if found else SaveMark(0)

    def _copy(self, connection: Any, statement: str, values: dict[str, Any]) -> bool:
        with connection.transaction():
            saved = connection.execute(statement, values).fetchone()
            if saved is None:
                return False
            connection.execute(self._sql["cut"], [saved[0], values["start"]])
            with connection.cursor() as cursor, cursor.copy(self._sql["copy"]) as copy:
                for position, text in enumerate(values["texts"], values["start"]):
                    copy.write_row((saved[0], position, text))
        return True

    def read(self, connection: Any, session_id: str) -> SavedRows | None:
        row = connection.execute(self._sql["load"], [encode_text(session_id)], binary=True).fetchone()
        return None if row is None else SavedRows(*row)

    def delete(self, connection: Any, session_id: str) -> None:
        with connection.transaction():
            for name in ("delete", "forget runs", "forget contents"):
                connection.execute(self._sql[name], [encode_text(session_id)])

    def expire(self, connection: Any) -> int:
        with connection.transaction():
            expired = connection.execute(self._sql["expire"]).fetchall()
            for (session_id,) in expired:
                connection.execute(self._sql["forget runs"], [session_id])
                connection.execute(self._sql["forget contents"], [session_id])
        return len(expired)

    def describe(self, connection: Any, session_id: str) -> SessionInfo | None:
        row = connection.execute(self._sql["describe"], [encode_text(session_id)]).fetchone()
        return None if row is None else _info_of_row(row)

    def list(self, connection: Any, query: SessionQuery) -> SessionPage:
        keys = [encode_text(text) for text in (query.after, *query.bounds)]
        rows = connection.execute(self._sql["list"], [*keys, dumps(query.labels), query.limit + 1])
        return query.page_of(map(_info_of_row, rows))


def _info_of_row(row: Sequence[Any]) -> SessionInfo:
    session_id, *about = row
    return SessionInfo(session_id.decode(), *about)
