"""What the tests of stores share."""

import os
from collections.abc import Iterator
from uuid import uuid4

import pytest

from agentrt_middleware.stores import guard, sqlite
from tests.middleware.redis_server import RedisServer, answers


@pytest.fixture(scope="session")
def url() -> Iterator[str]:
    """Return the URL of a Redis: the one that the environment names, that of this machine, or one of our own."""
    if "REDIS_URL" in os.environ:
        yield os.environ["REDIS_URL"]
    elif answers(6379):
        yield "redis://127.0.0.1:6379/0"
    else:
        server = RedisServer()
        yield server.url
        server.close()


@pytest.fixture
def prefix() -> str:
    """Return what only this test puts before its keys: a server keeps those of earlier runs, and folders come again."""
    return f"test:{uuid4().hex}:"


@pytest.fixture
def patient_stores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait for stores as long as a busy machine may need."""
    monkeypatch.setattr(guard, "_TIMEOUT", 20.0)
    monkeypatch.setattr(sqlite, "_LOCK_TIMEOUT", 10.0)
