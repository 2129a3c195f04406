"""Saves in the stores that there are, and in the servers that are installed here or that a URL leads to."""

import atexit
import os
import shutil
from collections.abc import Callable
from functools import cache, partial
from tempfile import mkdtemp
from typing import Any

import anyio

from agentrt import AgentState, UserMsg
from agentrt.state import FileStateStore, PostgresStore, RedisStore, SQLiteStore
from benchmarks.workloads.agents import AgentHeld, held_messages
from benchmarks.workloads.script import QUESTION, Workload, expect

__all__ = ["STORES", "FirstSave", "StoreSave", "StoreTurn", "missing_servers"]

OpenStore = Callable[[], Any]
_NAME = "agentrt_benchmark"


def _new_folder() -> str:
    folder = mkdtemp()
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


@cache
def _postgres_url() -> str:
    if url := os.environ.get("DATABASE_URL"):
        return url
    from tests.postgres_server import PostgresServer

    server = PostgresServer()
    atexit.register(server.close)
    return server.url


@cache
def _redis_url() -> str:
    if url := os.environ.get("REDIS_URL"):
        return url
    from tests.middleware.redis_server import RedisServer

    server = RedisServer()
    atexit.register(server.close)
    return server.url


STORES: dict[str, OpenStore] = {
    "FileStateStore": lambda: FileStateStore(_new_folder()),
    "SQLiteStore": lambda: SQLiteStore(f"{_new_folder()}/agent.db"),
    "SQLiteStore(process)": lambda: SQLiteStore(f"{_new_folder()}/agent.db", durability="process"),
    "PostgresStore": lambda: PostgresStore(_postgres_url(), schema=_NAME),
    "RedisStore": lambda: RedisStore(_redis_url(), prefix=_NAME),
}
"""What opens each store in a place of its own."""


def missing_servers() -> dict[str, str]:
    """Return the stores that cannot be measured here, and what is missing."""
    needs = {"PostgresStore": ("DATABASE_URL", "postgres", "initdb"), "RedisStore": ("REDIS_URL", "redis-server")}
    return {
        store: f"{' and '.join(programs)} not found, and no {variable}"
        for store, (variable, *programs) in needs.items()
        if not os.environ.get(variable) and not all(map(shutil.which, programs))
    }


async def _forget(store: Any, session_id: str) -> None:
    await store.delete(session_id)  # a server may be one that others use too
    await store.aclose()


class StoreSave(Workload):
    """One save of a session that has so many messages already, and one that is new."""

    max_iterations = 16

    def __init__(self, open_store: OpenStore, held: int) -> None:
        self._store, self._held = open_store(), held
        self._state = AgentState(context=held_messages(held))
        self._revision = 0
        atexit.register(partial(anyio.run, _forget, self._store, self._state.session_id))

    async def prepare(self) -> None:
        del self._state.context[self._held :]
        await self._store.save(self._state)
        self._revision = self._state.revision

    async def __call__(self) -> None:
        self._state.context.append(UserMsg("user", QUESTION))
        await self._store.save(self._state)

    def check(self) -> None:
        saves = len(self._state.context) - self._held
        expect(self._state.revision - self._revision, saves)


class FirstSave(StoreSave):
    """The first save of a session that has so many messages."""

    max_iterations = 1

    async def prepare(self) -> None:
        await self._store.delete(self._state.session_id)
        self._state.revision = 0

    async def __call__(self) -> None:
        self._state.touch()
        await self._store.save(self._state)

    def check(self) -> None:
        expect(self._state.revision > 0, True)


class StoreTurn(AgentHeld):
    """A turn with one tool, which saves four times, in a session that has so many messages already."""

    max_iterations = 4

    def __init__(self, open_store: OpenStore | None, held: int) -> None:
        store = None if open_store is None else open_store()
        super().__init__(held, takes_back=False, rounds=1, store=store)
        if store is not None:
            atexit.register(partial(anyio.run, _forget, store, self._state.session_id))
