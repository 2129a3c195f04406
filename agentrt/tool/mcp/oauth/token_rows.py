"""Where encrypted tokens lie: in a file, in a database, or on a server."""

import base64
import json
import os
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeVar

from anyio import to_thread

from agentrt._runtime.database.file_lock import lock_until
from agentrt._runtime.database.operations import DatabaseError, OperationQueue
from agentrt._runtime.database.postgres import PostgresConnections
from agentrt._runtime.database.redis import RedisClient
from agentrt._runtime.database.sqlite import SQLiteConnection, SQLiteDatabase
from agentrt.errors import ConfigError, StoreError

_MAX_ROW_THREADS = 4
_URL_FORMS = "memory:, file:tokens.json, sqlite:tokens.db, postgresql://host/database or redis://host"
_TOKEN_COLUMNS = "(key TEXT PRIMARY KEY, value {bytes} NOT NULL, expires_at {number} NOT NULL)"
_RowResult = TypeVar("_RowResult")


class TokenRows(Protocol):
    """Values by key, each until it expires, at a time in seconds since the epoch."""

    place: str

    async def read(self, key: str) -> bytes | None: ...
    async def write(self, key: str, value: bytes, expires_at: float) -> None: ...
    async def take(self, key: str) -> bytes | None: ...
    async def aclose(self) -> None: ...


class MemoryRows:
    """Keeps values in this process."""

    place = "memory"

    def __init__(self) -> None:
        self._values: dict[str, tuple[bytes, float]] = {}

    async def read(self, key: str) -> bytes | None:
        value, expires_at = self._values.get(key, (None, 0.0))
        return value if expires_at > time.time() else None

    async def write(self, key: str, value: bytes, expires_at: float) -> None:
        now = time.time()
        self._values = {name: row for name, row in self._values.items() if row[1] > now}
        self._values[key] = value, expires_at

    async def take(self, key: str) -> bytes | None:
        value, expires_at = self._values.pop(key, (None, 0.0))
        return value if expires_at > time.time() else None

    async def aclose(self) -> None:
        pass


class FileRows:
    """Keeps values in a file that only its owner may read; several processes of one machine may use it."""

    def __init__(self, path: str) -> None:
        self._path = Path(path).absolute()
        if not self._path.parent.is_dir():
            raise ConfigError(f"TokenStore(url='file:...') is in the folder {str(self._path.parent)!r:.200}: make it")
        self.place = f"the file {str(self._path)!r:.200}"
        self._operations = OperationQueue(1)

    async def read(self, key: str) -> bytes | None:
        return await self._change(key, None)

    async def write(self, key: str, value: bytes, expires_at: float) -> None:
        await self._change(key, lambda values: values.update({key: [base64.b64encode(value).decode(), expires_at]}))

    async def take(self, key: str) -> bytes | None:
        return await self._change(key, lambda values: values.pop(key, None))

    async def aclose(self) -> None:
        pass

    async def _change(self, key: str, change: Callable[[dict[str, Any]], object] | None) -> bytes | None:
        """Return the value of the key before the change."""

        def work(deadline: float) -> bytes | None:
            descriptor = os.open(f"{self._path}.lock", os.O_RDWR | os.O_CREAT, 0o600)
            try:
                with lock_until(descriptor, deadline):
                    return self._change_file(key, change)
            finally:
                os.close(descriptor)

        return await _reworded(self, self._operations.run("file", work, shield=True))

    def _change_file(self, key: str, change: Callable[[dict[str, Any]], object] | None) -> bytes | None:
        text = self._path.read_text(encoding="utf-8") if self._path.exists() else "{}"
        now = time.time()
        values = {name: row for name, row in json.loads(text).items() if row[1] > now}
        found = base64.b64decode(values[key][0]) if key in values else None
        if change is not None:
            change(values)
            # Whole or not at all: a process that dies here leaves the old file.
            new = f"{self._path}.new"
            with suppress(FileNotFoundError):
                os.remove(new)
            with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
                json.dump(values, file)
                file.flush()
                os.fsync(file.fileno())
            os.replace(new, self._path)
        return found


class SQLiteRows:
    """Keeps values in a SQLite database, whose file only its owner may read."""

    def __init__(self, path: str) -> None:
        schema = f"CREATE TABLE tokens {_TOKEN_COLUMNS.format(bytes='BLOB', number='REAL')}"
        self._database = SQLiteDatabase("TokenStore", path, schema=schema, name="tokens_schema", version=1)
        self.place = f"the SQLite database {self._database.path!r:.200}"

    async def read(self, key: str) -> bytes | None:
        return await self._database.read(partial(self._select, key))

    async def write(self, key: str, value: bytes, expires_at: float) -> None:
        def write(connection: SQLiteConnection) -> None:
            connection.execute("DELETE FROM tokens WHERE expires_at <= ?", (time.time(),))
            connection.execute("REPLACE INTO tokens VALUES (?, ?, ?)", (key, value, expires_at))

        await self._database.write(write)

    async def take(self, key: str) -> bytes | None:
        def take(connection: SQLiteConnection) -> bytes | None:
            found = self._select(key, connection)
            connection.execute("DELETE FROM tokens WHERE key = ?", (key,))
            return found

        return await self._database.write(take)

    async def aclose(self) -> None:
        pass

    def _select(self, key: str, connection: SQLiteConnection) -> bytes | None:
        statement = "SELECT value FROM tokens WHERE key = ? AND expires_at > ?"
        row = connection.execute(statement, (key, time.time())).fetchone()
        return None if row is None else bytes(row[0])


class PostgresRows:
    """Keeps values in a PostgreSQL database, in a table of the schema `agentrt`."""

    def __init__(self, url: str) -> None:
        migration = f"CREATE TABLE agentrt.tokens {_TOKEN_COLUMNS.format(bytes='BYTEA', number='DOUBLE PRECISION')}"
        self._database = PostgresConnections(
            "TokenStore",
            url,
            "agentrt",
            extra="postgres",
            version_table="tokens_version",
            migrations=[migration],
            newer_version=StoreError,
        )
        self.place = self._database.place
        self._operations = OperationQueue(_MAX_ROW_THREADS)

    async def read(self, key: str) -> bytes | None:
        rows = await self._execute("SELECT value FROM agentrt.tokens WHERE key = %s AND expires_at > %s", key)
        return bytes(rows[0][0]) if rows else None

    async def write(self, key: str, value: bytes, expires_at: float) -> None:
        statement = (
            "WITH expired AS (DELETE FROM agentrt.tokens WHERE expires_at <= %s AND key <> %s) "
            "INSERT INTO agentrt.tokens VALUES (%s, %s, %s) "
            "ON CONFLICT (key) DO UPDATE SET value = excluded.value, expires_at = excluded.expires_at RETURNING key"
        )
        await self._run(statement, [time.time(), key, key, value, expires_at])

    async def take(self, key: str) -> bytes | None:
        rows = await self._execute("DELETE FROM agentrt.tokens WHERE key = %s AND expires_at > %s RETURNING value", key)
        return bytes(rows[0][0]) if rows else None

    async def aclose(self) -> None:
        await to_thread.run_sync(self._database.close)

    async def _execute(self, statement: str, key: str) -> Any:
        return await self._run(statement, [key, time.time()])

    async def _run(self, statement: str, values: list[Any]) -> Any:
        def work(deadline: float) -> Any:
            with self._database.connect(deadline) as connection:
                return connection.execute(statement, values).fetchall()

        return await _reworded(self, self._operations.run(object(), work, shield=True))


class RedisRows:
    """Keeps values in a Redis, under keys that begin with "agentrt:tokens:"."""

    def __init__(self, url: str) -> None:
        self._client = RedisClient("TokenStore", url)
        self.place = self._client.place
        self._operations = OperationQueue(_MAX_ROW_THREADS)

    async def read(self, key: str) -> bytes | None:
        return await self._run("return redis.call('GET', KEYS[1])", key)

    async def write(self, key: str, value: bytes, expires_at: float) -> None:
        milliseconds = int((expires_at - time.time()) * 1_000)
        if milliseconds > 0:
            await self._run("return redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])", key, value, milliseconds)
        else:  # it has expired, and Redis refuses such a time
            await self.take(key)

    async def take(self, key: str) -> bytes | None:
        script = "local found = redis.call('GET', KEYS[1]) redis.call('DEL', KEYS[1]) return found"
        return await self._run(script, key)

    async def aclose(self) -> None:
        await to_thread.run_sync(self._client.close)

    async def _run(self, script: str, key: str, *arguments: Any) -> bytes | None:
        def work(deadline: float) -> bytes | None:
            found = self._client.run_script(deadline, script, [f"agentrt:tokens:{key}".encode()], arguments)
            return found if isinstance(found, bytes) else None

        return await _reworded(self, self._operations.run(object(), work, shield=True))


def open_rows(url: Any) -> TokenRows:
    """Return the rows at a URL; nothing is opened yet. Raises `ConfigError` for a URL that cannot be used."""
    scheme, colon, rest = url.partition(":") if isinstance(url, str) else ("", "", "")
    if url == "memory:":
        return MemoryRows()
    if scheme in ("postgresql", "postgres") and colon:
        return PostgresRows(url)
    if scheme in ("redis", "rediss") and colon:
        return RedisRows(url)
    # Two slashes would name a machine.
    if scheme in ("file", "sqlite") and rest and (not rest.startswith("//") or rest.startswith("///")):
        path = rest.removeprefix("//")
        return FileRows(path) if scheme == "file" else SQLiteRows(path)
    # The scheme alone: the rest may hold a password.
    raise ConfigError(
        f"TokenStore(url={f'{scheme}:...' if colon else type(url).__name__!r}) must be one of {_URL_FORMS}"
    )


async def _reworded(rows: TokenRows, work: Awaitable[_RowResult]) -> _RowResult:
    try:
        return await work
    except (DatabaseError, OSError, ValueError) as error:
        reason = str(error) if isinstance(error, (DatabaseError, TimeoutError)) else type(error).__name__
    raise StoreError(f"the tokens in {rows.place} cannot be used: {reason}")
