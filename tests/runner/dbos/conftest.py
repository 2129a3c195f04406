"""A PostgreSQL, and runners over a schema of their own in it; DBOS works on asyncio only."""

from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import psycopg
import pytest

from agentrt._runtime.block import new_name
from agentrt.runner import DBOSRunner
from agentrt.state import PostgresStore
from tests.postgres_server import PostgresServer
from tests.program_runner import ProgramRunner, open_program_runner

NewRunner = Callable[..., DBOSRunner]


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    server = PostgresServer()
    yield server
    server.close()


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
async def store(postgres: PostgresServer) -> AsyncIterator[PostgresStore]:
    async with PostgresStore(postgres.url, schema=f"t{new_name().lower()}") as store:
        yield store


@pytest.fixture
def new_runner(postgres: PostgresServer, store: PostgresStore) -> NewRunner:
    """A function that makes a runner of an agent, as each machine has one."""
    schema = f"t{new_name().lower()}"

    def make(agent: Any, **options: Any) -> DBOSRunner:
        return DBOSRunner(agent, store, postgres.url, schema=schema, **options)

    return make


@pytest.fixture(scope="session")
def dbos_programs() -> Iterator[ProgramRunner]:
    """Programs that have imported DBOS, which takes seconds."""
    with open_program_runner("dbos") as programs:
        yield programs


@pytest.fixture(scope="module")
def server_of_all() -> Iterator[PostgresServer]:
    server = PostgresServer(connections=200)
    yield server
    server.close()


@pytest.fixture
def own_server(server_of_all: PostgresServer) -> PostgresServer:
    """An empty server, which a test may stop and start again."""
    with psycopg.connect(server_of_all.url, autocommit=True) as connection:
        schemas = connection.execute("SELECT nspname FROM pg_namespace WHERE nspname LIKE 'agentrt%'").fetchall()
        for (schema,) in schemas:
            connection.execute(f'DROP SCHEMA "{schema}" CASCADE'.encode())
    return server_of_all
