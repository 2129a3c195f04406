"""A PostgreSQL database shared by several programs: connections, schema and errors."""

from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from math import ceil, inf
from threading import Lock
from time import monotonic
from typing import Any, NamedTuple

from agentrt._runtime.database.operations import MAX_WAIT, DatabaseError, no_answer
from agentrt._runtime.hidden import HiddenDict, NotPickled
from agentrt._runtime.options import check_whole, import_extra
from agentrt._runtime.text import lazy_pattern
from agentrt.errors import ConfigError

_POSTGRES_SCHEMES = ("postgresql://", "postgres://")
_SCHEMA_NAME = lazy_pattern(r"[a-z_][a-z0-9_]{0,62}")
_MAX_POOL = 1000
_CONNECT_SECONDS = 5
_TRUSTED_SECONDS = 1.0  # an idle connection is trusted for this long


class _IdleConnection(NamedTuple):
    connection: Any
    since: float


class PostgresConnections(NotPickled):
    """The connections to one database, whose tables in `schema` are up to date; each method runs in a thread.

    `migrations` each bring the tables from the version that is their index to the next one; `version_table` stores it.
    Tables of a newer version raise `newer_version`. `owner` is the class that errors name, with its
    `option`, and `extra` what it needs.
    """

    def __init__(
        self,
        owner: str,
        url: object,
        schema: str,
        *,
        extra: str,
        version_table: str,
        migrations: Sequence[str],
        newer_version: type[Exception],
        option: str = "url",
    ) -> None:
        self._psycopg = psycopg = import_extra(owner, extra, "psycopg")
        self._connection_type = _make_connection_type(psycopg)
        options, self.place = _read_url(psycopg, f"{owner}({option}=...)", url)
        self._options = HiddenDict(options)
        self._schema, self._version_table = schema, f"{schema}.{version_table}"
        self._migrations, self._newer_version = migrations, newer_version
        self._idle: list[_IdleConnection] = []
        self._migration = Lock()
        self._is_ready = False

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.place}>"

    @contextmanager
    def connect(self, deadline: float) -> Iterator[Any]:
        """Lend a connection; raises `DatabaseError` for errors of the server or the network."""
        connection = None
        try:
            connection = self._find_idle(deadline) or self._open(deadline)
            self._migrate_once(connection, deadline)
            yield connection
        except BaseException as exc:
            is_lost = connection is not None and connection.broken
            if connection is not None:
                # It may be in the middle of an operation. A new one takes a millisecond.
                connection.close()
            if not isinstance(exc, self._psycopg.Error):
                raise
            # Only the server's name for the error, since its text may quote the input.
            reason = f"{type(exc).__name__} {exc.sqlstate or ''}".strip()
            raise DatabaseError(reason, is_lost=is_lost) from None
        self._idle.append(_IdleConnection(connection, monotonic()))

    def _open(self, deadline: float) -> Any:
        remaining = ceil(deadline - monotonic())
        if remaining <= 0:
            raise no_answer()
        # Whatever the URL says, no wait exceeds the time limit of an operation.
        options = {**self._options, "connect_timeout": min(self._options["connect_timeout"], remaining)}
        connection = self._connection_type.connect(**options, autocommit=True)
        connection.deadline = deadline
        return connection

    def _find_idle(self, deadline: float) -> Any:
        # Several threads use this list at the same time; its operations are atomic.
        while True:
            try:
                connection, since = self._idle.pop()
            except IndexError:
                return None
            connection.deadline = deadline
            if monotonic() - since < _TRUSTED_SECONDS:
                return connection
            try:
                connection.execute("SELECT 1")
            except self._psycopg.Error:  # the server was restarted meanwhile
                connection.close()
            except BaseException:
                connection.close()
                raise
            else:
                return connection

    def close(self) -> None:
        """Close idle connections."""
        while self._idle:
            self._idle.pop().connection.close()

    def _migrate_once(self, connection: Any, deadline: float) -> None:
        if self._is_ready:
            return
        if not self._migration.acquire(timeout=max(0.0, deadline - monotonic())):
            raise no_answer()
        try:
            if not self._is_ready:
                self._migrate(connection)
                self._is_ready = True
        finally:
            self._migration.release()

    def _migrate(self, connection: Any) -> None:
        if self._read_version(connection) == len(self._migrations):
            return
        with connection.transaction():
            # Held to the end of the transaction: one process migrates, and the others find it done.
            connection.execute("SELECT pg_advisory_xact_lock(hashtext(%s))", [f"agentrt {self._schema}"])
            connection.execute(f"CREATE SCHEMA IF NOT EXISTS {self._schema}")
            connection.execute(f"CREATE TABLE IF NOT EXISTS {self._version_table} (version INTEGER NOT NULL)")
            for version in range(self._read_version(connection), len(self._migrations)):
                connection.execute(self._migrations[version])
                connection.execute(f"INSERT INTO {self._version_table} VALUES (%s)", [version + 1])

    def _read_version(self, connection: Any) -> int:
        # Checked, since the server would log an error for a missing table.
        [table] = connection.execute("SELECT to_regclass(%s)", [self._version_table]).fetchone()
        newest = f"SELECT max(version) FROM {self._version_table}"
        version = 0 if table is None else connection.execute(newest).fetchone()[0] or 0
        if version > len(self._migrations):
            raise self._newer_version(
                f"the schema {self._schema!r} in {self.place} has the version {version}, and this version of agentrt "
                f"knows {len(self._migrations)}: use the version that made it, or a newer one; nothing was changed"
            )
        return int(version)


def check_postgres_options(owner: str, schema: object, pool_size: object) -> None:
    """Raise `ConfigError` for an invalid schema name or number of connections."""
    check_whole(f"{owner}(pool_size=...)", pool_size, most=_MAX_POOL)
    if not isinstance(schema, str) or not _SCHEMA_NAME.fullmatch(schema):
        raise ConfigError(f"{owner}(schema=...) must be a name of small letters, digits and '_', not {schema!r:.100}")


def _make_connection_type(psycopg: Any) -> Any:
    """Return a class of connections with a `deadline`: without one, a connection to a silent server hangs."""

    class TimedConnection(psycopg.Connection):  # type: ignore[misc]  # its base is Any
        deadline = inf

        def wait(self, generator: Generator[Any, Any, Any], *args: Any, **kwargs: Any) -> Any:
            return super().wait(self._stop_in_time(generator), *args, **kwargs)

        def _stop_in_time(self, generator: Generator[Any, Any, Any]) -> Generator[Any, Any, Any]:
            ready = None
            while True:
                try:
                    condition = generator.send(ready)
                except StopIteration as stop:
                    return stop.value
                ready = yield condition
                # Psycopg calls this several times a second while nothing is ready.
                if not ready and monotonic() > self.deadline:
                    raise no_answer()

    return TimedConnection


def _read_url(psycopg: Any, where: str, url: object) -> tuple[dict[str, Any], str]:
    """Return the connection parameters, and the name of the place, without a password."""
    example = "write it as in 'postgresql://user@localhost:5432/database'"
    if not isinstance(url, str) or not url.startswith(_POSTGRES_SCHEMES):
        url_text = url.rpartition("@")[2].partition("?")[0] if isinstance(url, str) else url
        raise ConfigError(f"{where} must begin with {_POSTGRES_SCHEMES[0]!r}, not {url_text!r:.200}: {example}")
    # Text before an "@" or after a "?" may be a password, and is in no message.
    options: dict[str, Any] | None = None
    with suppress(psycopg.Error, ValueError):  # these may quote the password
        conninfo = psycopg.conninfo.conninfo_to_dict(url)
        seconds = int(conninfo.get("connect_timeout", 0))
        # Of several hosts, each may have one.
        if not all(0 < int(port) < 65536 for port in str(conninfo.get("port", 5432)).split(",") if port):
            raise ValueError
        options = conninfo | {"connect_timeout": seconds if seconds > 0 else _CONNECT_SECONDS}
    if options is None:
        raise ConfigError(f"{where} is not a URL that PostgreSQL's library can read: {example}")
    # The server's timeout is shorter than ours, so that a slow statement does not cost the connection.
    statement_timeout = f"-c statement_timeout={int((MAX_WAIT - 1) * 1000)}"
    options["options"] = f"{options.get('options', '')} {statement_timeout}".strip()
    place = f"PostgreSQL at {options.get('host', 'localhost')}:{options.get('port', 5432)}/{options.get('dbname', '')}"
    return options, place
