"""Token stores: what each of them promises, wherever it keeps tokens."""

import os
import re
import sqlite3
import stat
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from agentrt.errors import ConfigError, StoreError
from agentrt.tool import TokenStore
from tests.middleware.redis_server import RedisServer
from tests.postgres_server import PostgresServer

MakeStore = Callable[..., TokenStore]
SECRET = "canary-token"
KEY = TokenStore.new_key()
DAY = 24 * 3600.0


@pytest.fixture(
    params=[
        "memory",
        "file",
        "sqlite",
        # Servers of our own, since a table or a key would be left at another.
        pytest.param("postgres", marks=pytest.mark.slow),
        pytest.param("redis", marks=pytest.mark.slow),
    ]
)
async def make_store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[MakeStore]:
    """A function that opens a store over one place."""
    server: Any = {"postgres": PostgresServer, "redis": RedisServer}.get(request.param, lambda: None)()
    url = {"memory": "memory:", "file": f"file:{tmp_path}/tokens.json", "sqlite": f"sqlite:{tmp_path}/tokens.db"}.get(
        request.param, ""
    )
    memory = TokenStore(key=KEY)

    async with AsyncExitStack() as stack:
        if server is not None:
            stack.callback(server.close)

        def make(**options: Any) -> TokenStore:
            store = TokenStore(url or server.url, **{"key": KEY, **options})
            if url == "memory:":
                store._rows = memory._rows
            stack.push_async_exit(store)
            return store

        yield make


async def test_store_keeps_what_belongs_to_an_owner(make_store: MakeStore) -> None:
    store = make_store()
    assert await store.get("login", "ann", "s") is None
    await store.put("login", "ann", "s", entry={"token": SECRET, "é": [1, None]}, seconds=DAY)
    await store.put("login", "bob", "s", entry={"token": "other"}, seconds=DAY)
    # Another process opens it.
    other = make_store()
    assert await other.get("login", "ann", "s") == {"token": SECRET, "é": [1, None]}
    await other.put("login", "ann", "s", entry={"token": "new"}, seconds=DAY)
    assert await store.get("login", "ann", "s") == {"token": "new"}
    assert await store.take("login", "ann", "s") == {"token": "new"}
    assert await store.take("login", "ann", "s") is None
    assert await store.get("login", "bob", "s") == {"token": "other"}


async def test_entry_is_gone_when_it_expires(make_store: MakeStore) -> None:
    store = make_store()
    await store.put("pending", "a", entry={"n": 1}, seconds=0.001)
    await store.put("pending", "b", entry={"n": 2}, seconds=-1)
    await store.put("pending", "c", entry={"n": 3}, seconds=DAY)
    assert await store.take("pending", "b") is None
    assert await store.get("pending", "b") is None
    assert await store.get("pending", "c") == {"n": 3}


async def test_another_key_cannot_read_and_says_so(make_store: MakeStore) -> None:
    new = TokenStore.new_key()
    await make_store().put("login", "ann", "s", entry={"token": SECRET}, seconds=DAY)
    with pytest.raises(StoreError, match=re.escape("cannot be read (InvalidToken): if its key was replaced")):
        await make_store(key=new).get("login", "ann", "s")
    assert await make_store(key=[new, KEY]).get("login", "ann", "s") == {"token": SECRET}


async def test_moved_entry_is_refused(make_store: MakeStore) -> None:
    store = make_store()
    await store.put("login", "ann", "s", entry={"token": SECRET}, seconds=DAY)
    from agentrt.tool.mcp.oauth.token_store import row_key

    stolen = await store._rows.read(row_key(("login", "ann", "s")))
    assert stolen is not None
    await store._rows.write(row_key(("login", "eve", "s")), stolen, 2e10)
    with pytest.raises(StoreError, match="stored for another owner"):
        await store.get("login", "eve", "s")


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize("scheme", ["file", "sqlite"])
async def test_files_are_encrypted_and_for_their_owner_alone(scheme: str, tmp_path: Path) -> None:
    store = TokenStore(f"{scheme}:{tmp_path}/tokens", key=KEY)
    await store.put("login", "ann", "https://crm.example", entry={"token": SECRET}, seconds=DAY)
    if scheme == "sqlite":
        with closing(sqlite3.connect(tmp_path / "tokens")) as connection:  # which may still be in the log
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    for path in tmp_path.iterdir():
        assert stat.S_IMODE(os.stat(path).st_mode) == 0o600, path
        content = path.read_bytes()
        assert not any(word in content for word in (b"canary", b"ann", b"crm.example", KEY.encode()))


@pytest.mark.parametrize(
    ("url", "options", "says"),
    [
        ("sqlite:tokens.db", {}, "tokens.db' needs key=..., since tokens are stored encrypted"),
        ("file:tokens.json", {}, "needs key=..."),
        ("postgresql://u:canary-p@h/d", {}, "TokenStore in PostgreSQL at h:5432/d needs key=..."),
        ("redis://:canary-p@h", {}, "TokenStore in Redis at h needs key=..."),
        ("memory:", {"key": "canary-short"}, "must be a key as TokenStore.new_key() returns it"),
        ("mysql://canary-p@h", {"key": KEY}, "TokenStore(url='mysql:...') must be one of memory:"),
        ("sqlite://host/tokens.db", {"key": KEY}, "must be one of"),
        (7, {"key": KEY}, "must be one of"),
    ],
)
def test_place_without_a_key_is_refused_by_name(url: Any, options: Any, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        TokenStore(url, **options)
    assert says in str(caught.value)
    assert "canary" not in str(caught.value)
