"""Where a cache keeps what it keeps: in memory, in a file that processes share, or in Redis."""

import os
import sqlite3
from collections import OrderedDict
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from time import time
from typing import Any, Protocol, TypeVar, runtime_checkable

import anyio.to_thread

from agentrt.errors import MiddlewareConfigError
from agentrt.keywords import suggest_keywords
from agentrt_middleware.stores.redis import check_redis_url, redis_client
from agentrt_middleware.validation import check_number

__all__ = ["CacheStore", "MemoryCacheStore", "RedisCacheStore", "SQLiteCacheStore"]

_Row = TypeVar("_Row")
_OWNER_ONLY = 0o600
_LOCK_TIMEOUT = 0.15  # seconds; less than what a call may wait for the store
_SCHEMA = """
PRAGMA journal_mode = WAL;
PRAGMA synchronous = NORMAL;
CREATE TABLE IF NOT EXISTS cache (key TEXT PRIMARY KEY, value TEXT NOT NULL, expires_at REAL NOT NULL);
CREATE INDEX IF NOT EXISTS cache_expires_at ON cache (expires_at);
"""


@runtime_checkable
class CacheStore(Protocol):
    """Keeps text under keys for a time; any error, or no answer in time, counts as a failure."""

    async def get(self, key: str) -> str | None:
        """Return what is kept under the key."""

    async def put(self, key: str, value: str, ttl: float) -> None:
        """Keep the text under the key for so many seconds, in place of what was there."""


@suggest_keywords()
class MemoryCacheStore:
    """Keeps the last `max_entries` that were used, in this process; middlewares may share one."""

    def __init__(self, max_entries: int = 1_000) -> None:
        check_number("MemoryCacheStore(max_entries=...)", max_entries, whole=True)
        self.max_entries = max_entries
        self._entries: OrderedDict[str, str] = OrderedDict()
        self._lock = Lock()  # event loops in other threads may use it as well

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_lock"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _lock=Lock())

    async def get(self, key: str) -> str | None:
        with self._lock:
            if key in self._entries:
                self._entries.move_to_end(key)
            return self._entries.get(key)

    async def put(self, key: str, value: str, ttl: float) -> None:
        # How old an entry may be is for its reader to say, so that here no clock is needed.
        with self._lock:
            self._entries[key] = value
            self._entries.move_to_end(key)
            while len(self._entries) > self.max_entries:
                self._entries.popitem(last=False)


@suggest_keywords()
class SQLiteCacheStore:
    """Keeps entries in a file, which several processes of one machine may share and only its owner can read.

    Beyond `max_entries` the oldest are dropped. The folder must exist.
    """

    def __init__(self, path: str | os.PathLike[str], *, max_entries: int = 100_000) -> None:
        file: object = path
        if not isinstance(file, (str, os.PathLike)) or str(file) in ("", ":memory:"):
            raise MiddlewareConfigError(
                f"SQLiteCacheStore(path=...) must be the path of a file, not {path!r:.200}: for a cache in memory, "
                f"write CacheMiddleware() without a store"
            )
        check_number("SQLiteCacheStore(max_entries=...)", max_entries, whole=True)
        self.path = Path(path)
        self.max_entries = max_entries
        if not self.path.parent.is_dir():
            raise MiddlewareConfigError(
                f"SQLiteCacheStore(path=...) is {str(self.path)!r:.200}, whose folder {str(self.path.parent)!r:.200} "
                f"does not exist: make it first"
            )

    async def get(self, key: str) -> str | None:
        def read(database: sqlite3.Connection) -> str | None:
            row = database.execute("SELECT value FROM cache WHERE key = ?", (key,)).fetchone()
            return row[0] if row else None

        return await self._run(read)

    async def put(self, key: str, value: str, ttl: float) -> None:
        def write(database: sqlite3.Connection) -> None:
            now = time()
            # In one step, so that a process that is killed here leaves no half of it.
            with database:
                database.execute("REPLACE INTO cache VALUES (?, ?, ?)", (key, value, now + ttl))
                database.execute("DELETE FROM cache WHERE expires_at < ?", (now,))
                # Each entry gets a higher rowid than those before it.
                oldest = "(SELECT MAX(rowid) FROM cache) - ?"
                database.execute(f"DELETE FROM cache WHERE rowid <= {oldest}", (self.max_entries,))

        await self._run(write)

    async def _run(self, work: Callable[[sqlite3.Connection], _Row]) -> _Row:
        def run() -> _Row:
            # Made before SQLite opens it, which gives the files beside it the same mode.
            os.close(os.open(self.path, os.O_RDWR | os.O_CREAT, _OWNER_ONLY))
            self.path.chmod(_OWNER_ONLY)  # one that was there may be readable by others
            # A connection for each question, so that no thread that hangs holds one that another needs.
            with closing(sqlite3.connect(self.path, timeout=_LOCK_TIMEOUT)) as database:
                database.executescript(_SCHEMA)
                return work(database)

        return await anyio.to_thread.run_sync(run, abandon_on_cancel=True)


@suggest_keywords()
@dataclass(frozen=True, slots=True)
class RedisCacheStore:
    """Keeps entries in Redis, which drops them when their time is over: `redis://`, `rediss://` or `unix://`.

    Needs the extra `redis`. `prefix` is what the keys begin with.
    """

    url: str = field(repr=False)  # may hold a password
    prefix: str = "agentrt:cache:"

    def __post_init__(self) -> None:
        check_redis_url("RedisCacheStore", self.url)
        if not isinstance(self.prefix, str):
            raise MiddlewareConfigError(f"RedisCacheStore(prefix=...) must be a str, not {self.prefix!r:.200}")

    async def get(self, key: str) -> str | None:
        async with redis_client("RedisCacheStore", self.url) as client:
            value: str | None = await client.get(self.prefix + key)
            return value

    async def put(self, key: str, value: str, ttl: float) -> None:
        async with redis_client("RedisCacheStore", self.url) as client:
            await client.set(self.prefix + key, value, px=max(1, int(ttl * 1_000)))
