"""The stores of texts that the tests open, and the server that one of them needs."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from agentrt._runtime.block import new_name
from agentrt.rag import PgVectorStore, SQLiteTextStore, StoreBase
from tests.postgres_server import PostgresServer, server_with_vectors


@pytest.fixture(scope="session")
def vector_server() -> Iterator[PostgresServer]:
    with server_with_vectors() as server:
        yield server


# A file is the cheap one of them. The test that uses the server in every run names it itself.
@pytest.fixture(params=["file", *(pytest.param(name, marks=pytest.mark.slow) for name in ("memory", "pgvector"))])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[StoreBase]:
    if request.param == "pgvector":
        server: PostgresServer = request.getfixturevalue("vector_server")
        pg_store = PgVectorStore(server.url, schema=f"t{new_name().lower()}")
        yield pg_store
        pg_store._database.close()
    else:
        yield SQLiteTextStore(":memory:" if request.param == "memory" else tmp_path / "texts.db")
