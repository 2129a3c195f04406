"""The stores of texts that the tests open, and the server that one of them needs."""

import os
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from agentrt._runtime.block import new_name
from agentrt.rag import PgVectorStore, SQLiteTextStore, StoreBase
from tests.postgres_server import PostgresServer, server_with_vectors

MEMORY = "/dev/shm"


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """Return a folder in memory, where the system has one: only a machine that fails would show a difference."""
    with TemporaryDirectory(dir=MEMORY if os.access(MEMORY, os.W_OK) else None) as folder:
        yield Path(folder)


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
