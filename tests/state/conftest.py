"""The stores that the tests open, and the servers that some of them need."""

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any

import anyio
import pytest

from agentrt._runtime.block import new_name
from agentrt.state import FileStateStore, InMemoryStateStore, PostgresStore, RedisStore, SQLiteStore
from tests.middleware.redis_server import RedisServer
from tests.postgres_server import PostgresServer
from tests.services import Service, find_service

STORES = ["memory", "file", "sqlite", "postgres", "redis"]

checked_before_the_database = pytest.mark.parametrize("open_store", STORES[:3], indirect=True)
"""For what all stores of databases refuse in the same lines, before they ask the database: one of them is enough."""


_schemas: list[str] = []


@pytest.fixture(scope="session")
def postgres() -> Iterator[Service]:
    """The server at DATABASE_URL, or one that is started."""
    with find_service("DATABASE_URL", PostgresServer) as service:
        yield service
        if not service.is_ours:
            drop_schemas(service.url)


@pytest.fixture(scope="session")
def redis() -> Iterator[Service]:
    """The server at REDIS_URL, or one that is started."""
    with find_service("REDIS_URL", RedisServer) as service:
        yield service
        if not service.is_ours:
            anyio.run(delete_keys, service.url)


def new_schema() -> str:
    """Return a name for the tables or keys of one test."""
    _schemas.append(f"t{new_name().lower()}")
    return _schemas[-1]


def delete_rows(url: str, schema: str) -> None:
    import psycopg

    with psycopg.connect(url, autocommit=True) as connection, suppress(psycopg.errors.UndefinedTable):
        connection.execute(f"DELETE FROM {schema}.sessions")


def drop_schemas(url: str) -> None:
    import psycopg

    with psycopg.connect(url, autocommit=True) as connection:
        for schema in _schemas:
            connection.execute(f"DROP SCHEMA IF EXISTS {schema} CASCADE")


async def delete_keys(url: str) -> None:
    import coredis

    async with coredis.Redis.from_url(url) as client:
        for schema in _schemas:
            async for key in client.scan_iter(match=f"{schema}:*"):
                await client.delete([key])


@pytest.fixture(scope="session")
def postgres_schema(postgres: Service) -> str:
    """A schema that tests share, one after the other: to make one takes longer than most of them."""
    return new_schema()


@pytest.fixture(params=STORES)
async def open_store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Callable[..., Any]]:
    """A function that opens a store over one place, with keywords."""
    kind = request.param
    server = request.getfixturevalue(kind) if kind in ("postgres", "redis") else None
    schema = request.getfixturevalue("postgres_schema") if kind == "postgres" else new_schema()
    makers: dict[str, Callable[..., Any]] = {
        "memory": InMemoryStateStore,
        "file": lambda **options: FileStateStore(tmp_path / "states", **options),
        "sqlite": lambda **options: SQLiteStore(tmp_path / "states.db", durability="process", **options),
        "postgres": lambda **options: PostgresStore(server.url, schema=schema, **options),
        "redis": lambda **options: RedisStore(server.url, prefix=schema, **options),
    }
    async with AsyncExitStack() as opened:

        async def open_one(**options: Any) -> Any:
            return await opened.enter_async_context(makers[kind](**options))

        yield open_one
    if kind == "postgres":
        delete_rows(server.url, schema)


@pytest.fixture
async def store(open_store: Callable[..., Any]) -> Any:
    return await open_store()
