"""The statements of a runner on many machines, apart from those of DBOS: events, signs of life, the last ticks."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from json import dumps, loads
from time import monotonic
from typing import Any, NamedTuple, TypeVar

from agentrt._runtime.database.operations import MAX_WAIT, DatabaseError, OperationQueue
from agentrt._runtime.database.postgres import PostgresConnections
from agentrt._runtime.text import lazy_pattern
from agentrt.errors import ConfigError, SessionIOError, SessionVersion
from agentrt.event import AgentEvent, AnyEvent

_RunnerResult = TypeVar("_RunnerResult")
_RUNNER_SCHEMA = lazy_pattern(r"[a-z_][a-z0-9_]{0,39}")
_DATABASE_THREADS = 4  # each has a connection, and a server allows 100 by default
_MAX_NOTICE = 7_900  # bytes, of the 8,000 that PostgreSQL takes
_MAX_READ = 500

# What is unlogged is empty after a crash of the server, and then nothing is lost: the states have what was said, and
# each worker says every half second that it is alive.
_RUNNER_MIGRATIONS = [
    """
    CREATE UNLOGGED TABLE {schema}.agentrt_workers (
        executor TEXT PRIMARY KEY,
        beat_at TIMESTAMPTZ NOT NULL
    );
    CREATE UNLOGGED TABLE {schema}.agentrt_events (
        number BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        session TEXT NOT NULL,
        reply TEXT NOT NULL,
        follows BIGINT NOT NULL,  -- a follower that has the events up to this number may read on
        last BIGINT NOT NULL,
        is_end BOOLEAN NOT NULL,
        written_at TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp(),
        events TEXT NOT NULL
    );
    CREATE INDEX ON {schema}.agentrt_events (session, reply, last);
    CREATE INDEX ON {schema}.agentrt_events (written_at);
    CREATE TABLE {schema}.agentrt_ticks (name TEXT PRIMARY KEY, ticked_at BIGINT NOT NULL)
"""
]

_RUNNER_STATEMENTS = {
    # Only as long as the writer has the reply: what a process writes that was taken for dead, and is not, is not taken.
    "publish": """
        WITH added AS (
            INSERT INTO {schema}.agentrt_events (session, reply, follows, last, is_end, events)
            SELECT %(session)s, %(reply)s, %(follows)s, %(last)s, %(is_end)s, %(events)s
            FROM {schema}.workflow_status
            WHERE workflow_uuid = %(workflow)s AND status = 'PENDING' AND executor_id = %(executor)s
            RETURNING number
        )
        SELECT pg_notify(%(channel)s, %(notice)s) FROM added
    """,
    # In the order of writing: what a reply begins with when it is taken over replaces what was there.
    "read_events": """
        SELECT follows, last, is_end, events FROM {schema}.agentrt_events
        WHERE session = %s AND reply = %s AND last > %s ORDER BY number LIMIT %s
    """,
    "last_number": "SELECT max(last) FROM {schema}.agentrt_events WHERE session = %s AND reply = %s",
    # A reply that waits for an answer may continue, so what is young of it keeps the rest.
    "forget_events": """
        DELETE FROM {schema}.agentrt_events AS old
        WHERE written_at < clock_timestamp() - make_interval(secs => %(seconds)s) AND NOT EXISTS (
            SELECT 1 FROM {schema}.agentrt_events AS young
            WHERE young.session = old.session AND young.reply = old.reply
                AND young.written_at >= clock_timestamp() - make_interval(secs => %(seconds)s)
        )
    """,
    # To all processes: which of them runs a reply, or follows it, is known to nobody else.
    "notify": "SELECT pg_notify(%s, %s)",
    # Checked before a request is started or continued: it may have been taken away.
    "owns": """
        SELECT workflow_uuid FROM {schema}.workflow_status
        WHERE workflow_uuid = ANY(%s) AND status = 'PENDING' AND executor_id = %s
    """,
    # What waits: in all, in this session, of this owner, and for which version the session waits; the digest of a key
    # that is known.
    "room": """
        SELECT count(*) FILTER (WHERE status <> 'PENDING'),
            count(*) FILTER (WHERE status <> 'PENDING' AND queue_partition_key = %(session)s),
            count(*) FILTER (WHERE status <> 'PENDING' AND attributes ->> 'owner' = %(owner)s),
            max(application_version) FILTER (WHERE status <> 'DELAYED' AND queue_partition_key = %(session)s),
            (SELECT attributes ->> 'digest' FROM {schema}.workflow_status WHERE workflow_uuid = %(workflow)s)
        FROM {schema}.workflow_status
        WHERE queue_name = %(queue)s AND status IN ('ENQUEUED', 'DELAYED', 'PENDING')
    """,
    "pace": """
        SELECT count(*) FROM {schema}.workflow_status
        WHERE completed_at > (extract(epoch FROM clock_timestamp()) * 1000)::bigint - 60000
    """,
    # The workers that have requests to run; one of them may be dead.
    "working": """
        SELECT DISTINCT executor_id FROM {schema}.workflow_status
        WHERE queue_name = %s AND status = 'PENDING' AND executor_id <> %s
    """,
    "of_other_versions": """
        SELECT workflow_uuid FROM {schema}.workflow_status
        WHERE queue_name = %(queue)s AND status = 'ENQUEUED' AND application_version <> %(version)s AND (
            application_version = ANY(%(accepts)s)
            OR created_at < (extract(epoch FROM clock_timestamp()) * 1000)::bigint - %(milliseconds)s
        )
        ORDER BY priority, created_at LIMIT 100
    """,
    "beat": """
        INSERT INTO {schema}.agentrt_workers VALUES (%s, clock_timestamp())
        ON CONFLICT (executor) DO UPDATE SET beat_at = excluded.beat_at
    """,
    "forget_worker": "DELETE FROM {schema}.agentrt_workers WHERE executor = %s",
    # A process that is frozen keeps its connection, and so its lock, until another process ends it.
    "end_frozen": """
        SELECT executor, pg_terminate_backend(pid) FROM {schema}.agentrt_workers, {key}, pg_locks
        WHERE beat_at < clock_timestamp() - make_interval(secs => %s) AND executor <> %s AND {held}
    """,
    "is_frozen": """
        SELECT count(*) > 0 FROM {schema}.agentrt_workers
        WHERE beat_at < clock_timestamp() - make_interval(secs => %s) AND executor = %s
    """,
    "end_holder": """
        SELECT pg_terminate_backend(pid) FROM {key_of_one}, pg_locks WHERE {held} AND pid <> pg_backend_pid()
    """,
    "lock": "SELECT pg_try_advisory_lock(key) FROM {key_of_one}",
    "unlock": "SELECT pg_advisory_unlock(key) FROM {key_of_one}",
    "last_tick": "SELECT ticked_at FROM {schema}.agentrt_ticks WHERE name = %s",
    "note_tick": """
        INSERT INTO {schema}.agentrt_ticks VALUES (%s, %s)
        ON CONFLICT (name) DO UPDATE SET ticked_at = greatest(agentrt_ticks.ticked_at, excluded.ticked_at)
    """,
}
_PARTS = {
    "key": "LATERAL hashtextextended('agentrt {schema} ' || executor, 0) AS key",
    "key_of_one": "hashtextextended('agentrt {schema} ' || %s, 0) AS key",
    "held": """locktype = 'advisory' AND granted AND objsubid = 1
        AND classid = ((key >> 32) & 4294967295)::oid AND objid = (key & 4294967295)::oid
        AND database = (SELECT oid FROM pg_database WHERE datname = current_database())""",
}


class EventBatch(NamedTuple):
    """Events of a reply that were written at once. `events` is `None` where they are to be read from the table."""

    follows: int
    last: int
    is_end: bool
    events: str | None

    def read_events(self) -> list[AnyEvent]:
        return [AgentEvent.from_json(line) for line in (self.events or "").split("\n") if line]


class RunnerDatabase(PostgresConnections):
    """The database of a runner on many machines. What blocks runs in threads; errors say nothing of what was stored."""

    def __init__(self, owner: str, url: str, schema: str) -> None:
        name: object = schema
        if not isinstance(name, str) or not _RUNNER_SCHEMA.fullmatch(schema):
            raise ConfigError(
                f"{owner}(schema=...) must be a name of at most 40 small letters, digits and '_', not {schema!r:.100}"
            )
        super().__init__(
            owner,
            url,
            schema,
            extra="durable",
            version_table="agentrt_version",
            migrations=[text.format(schema=schema) for text in _RUNNER_MIGRATIONS],
            newer_version=SessionVersion,
            option="database_url",
        )
        self.schema = schema
        self.channel = f"agentrt_{schema}"
        parts = {name: text.format(schema=schema) for name, text in _PARTS.items()}
        self.sql = {name: text.format(schema=schema, **parts) for name, text in _RUNNER_STATEMENTS.items()}
        self._operations = OperationQueue(_DATABASE_THREADS)

    def connect_for_dbos(self) -> Any:
        """Return a connection of the plain kind; no URL, and so no password, is known to DBOS."""
        return self._psycopg.connect(**self._options)

    @contextmanager
    def listen(self) -> Iterator[Any]:
        """Lend a connection that is kept, and hears what processes tell each other."""
        connection = None
        try:
            connection = self._open(monotonic() + MAX_WAIT)
            connection.execute(f"LISTEN {self.channel}")
            yield connection
        except self._psycopg.Error as error:
            raise DatabaseError(type(error).__name__, is_lost=True) from None
        finally:
            if connection is not None:
                connection.close()

    async def ask(self, statement: str, *values: object) -> list[Any]:
        """Run one of the statements, and return its rows; raises `SessionIOError`."""
        parameters = values[0] if len(values) == 1 and isinstance(values[0], dict) else values
        return await self.run(partial(self._execute, statement, parameters))

    async def run(self, work: Callable[[float], _RunnerResult], extra_seconds: float = 0.0) -> _RunnerResult:
        """Run what blocks in a thread, and raise `SessionIOError` where the database fails.

        It may take `extra_seconds` longer than other operations.
        """
        try:
            return await self._operations.run(object(), work, shield=True, extra_seconds=extra_seconds)
        except DatabaseError as error:
            reason = str(error)
        except TimeoutError as error:
            reason = error.strerror or type(error).__name__
        # Raised here, since an error of the database may quote what it was given.
        raise SessionIOError(f"the queue in {self.place} cannot be used: {reason}")

    def _execute(self, statement: str, values: Any, deadline: float) -> list[Any]:
        with self.connect(deadline) as connection:
            cursor = connection.execute(self.sql[statement], values)
            return cursor.fetchall() if cursor.description is not None else []

    async def publish(
        self, place: tuple[str, str], owner: tuple[str, str], events: Sequence[AnyEvent], follows: int, *, is_end: bool
    ) -> bool:
        """Write the events for followers, and tell these; returns whether the writer still has the reply."""
        text = "\n".join(event.to_json() for event in events)
        last = events[-1].seq if events else follows
        # Most fit into the notice, and then no follower has to read the table.
        notice = _notice(place, follows, last, is_end=is_end, text=text)
        if len(notice.encode()) > _MAX_NOTICE:
            notice = _notice(place, follows, last, is_end=is_end, text=None)
        values = {
            "session": to_text(place[0]),
            "reply": place[1],
            "follows": follows,
            "last": last,
            "is_end": is_end,
            "events": text,
            "workflow": owner[0],
            "executor": owner[1],
            "channel": self.channel,
            "notice": notice,
        }
        return bool(await self.ask("publish", values))

    async def read_events(self, session_id: str, reply_id: str, after: int) -> list[EventBatch]:
        """Return the batches with events above that number, in the order in which they were written."""
        rows = await self.ask("read_events", to_text(session_id), reply_id, after, _MAX_READ)
        return [EventBatch(*row) for row in rows]

    async def notify(self, kind: str, session_id: str, reply_id: str) -> None:
        """Tell all processes something of a reply."""
        await self.ask("notify", self.channel, dumps([kind, session_id, reply_id]))


def to_text(text: str) -> str:
    """Return the text in a form that PostgreSQL can hold, which has no NUL; it is the same one for the same text."""
    return dumps(text)[1:-1]


def _notice(place: tuple[str, str], follows: int, last: int, *, is_end: bool, text: str | None) -> str:
    return dumps(["events", *place, follows, last, is_end, text], separators=(",", ":"))


def read_notice(payload: str) -> tuple[str, tuple[str, str], EventBatch | None]:
    """Return the kind of a notice, the session and reply that it is about, and the events that it has."""
    kind, session_id, reply_id, *batch = loads(payload)
    return kind, (session_id, reply_id), EventBatch(*batch) if batch else None
