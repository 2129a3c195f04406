"""Stores of a cache: in memory, in a file shared by processes, or in Redis."""

import os
import sqlite3
from collections import OrderedDict
from dataclasses import dataclass, field
from time import time
from typing import Protocol, runtime_checkable

from agentrt._runtime.hidden import HiddenStr
from agentrt_middleware.stores.lock import HasLock
from agentrt_middleware.stores.redis import check_redis_url, redis_client
from agentrt_middleware.stores.sqlite import ask_database, check_database_path
from agentrt_middleware.validation import check_number

_MAX_REDIS_TTL = 3e9  # seconds, a century; Redis refuses expiry times beyond its last date
_SCHEMA = """
CREATE TABLE IF NOT EXISTS cache (key TEXT PRIMARY KEY, value TEXT NOT NULL, expires_at REAL NOT NULL);
CREATE INDEX IF NOT EXISTS cache_expires_at ON cache (expires_at);
"""


@runtime_checkable
class CacheStore(Protocol):
    """Stores text under keys for a time; an error, or no answer in time, counts as a failure."""

    async def get(self, key: str) -> str | None:
        """Return the text under the key."""

    async def put(self, key: str, value: str, ttl: float) -> None:
        """Save the text under the key for `ttl` seconds, replacing an earlier one."""


class MemoryCacheStore(HasLock):
    """Keeps the last `max_entries` that were used, in this process; middlewares may share one."""

    def __init__(self, max_entries: int = 1_000) -> None:
        check_number("MemoryCacheStore(max_entries=...)", max_entries, whole=True)
        super().__init__()
        self.max_entries = max_entries
        self._entries: OrderedDict[str, str] = OrderedDict()

    async def get(self, key: str) -> str | None:
        with self.lock:
            if key in self._entries:
                self._entries.move_to_end(key)
            return self._entries.get(key)

    async def put(self, key: str, value: str, ttl: float) -> None:
        # The reader checks the age of an entry, so no clock is needed here.
        with self.lock:
            self._entries[key] = value
            self._entries.move_to_end(key)
            while len(self._entries) > self.max_entries:
                self._entries.popitem(last=False)


class SQLiteCacheStore:
    """Keeps entries in a file, which several processes of one machine may share and only its owner can read.

    Beyond `max_entries` the oldest are dropped. The folder must exist.
    """

    def __init__(self, path: str | os.PathLike[str], *, max_entries: int = 100_000) -> None:
        self.path = check_database_path("SQLiteCacheStore", path, "CacheMiddleware()")
        check_number("SQLiteCacheStore(max_entries=...)", max_entries, whole=True)
        self.max_entries = max_entries

    async def get(self, key: str) -> str | None:
        def read(database: sqlite3.Connection) -> str | None:
            row = database.execute("SELECT value FROM cache WHERE key = ?", (key,)).fetchone()
            return row[0] if row else None

        return await ask_database(self.path, _SCHEMA, read)

    async def put(self, key: str, value: str, ttl: float) -> None:
        def write(database: sqlite3.Connection) -> None:
            now = time()
            # In one transaction, so that a killed process leaves nothing half done.
            with database:
                database.execute("REPLACE INTO cache VALUES (?, ?, ?)", (key, value, now + ttl))
                database.execute("DELETE FROM cache WHERE expires_at < ?", (now,))
                # Each entry gets a higher rowid than all earlier ones.
                oldest = "(SELECT MAX(rowid) FROM cache) - ?"
                database.execute(f"DELETE FROM cache WHERE rowid <= {oldest}", (self.max_entries,))

        await ask_database(self.path, _SCHEMA, write)


@dataclass(frozen=True, slots=True)
class RedisCacheStore:
    """Keeps entries in Redis, which expires them: `redis://`, `rediss://` or `unix://`.

    Needs the extra `redis`. `prefix` is what the keys begin with.
    """

    url: str = field(repr=False)  # may hold a password
    prefix: str = "agentrt:cache:"

    def __post_init__(self) -> None:
        check_redis_url("RedisCacheStore", self.url, self.prefix)
        object.__setattr__(self, "url", HiddenStr(self.url))

    async def get(self, key: str) -> str | None:
        async with redis_client("RedisCacheStore", self.url) as client:
            value: str | None = await client.get(self.prefix + key)
            return value

    async def put(self, key: str, value: str, ttl: float) -> None:
        async with redis_client("RedisCacheStore", self.url) as client:
            await client.set(self.prefix + key, value, px=max(1, int(min(ttl, _MAX_REDIS_TTL) * 1_000)))
