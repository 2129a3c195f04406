"""A save costs what is new, however long the conversation is: in bytes that are sent or written, and in memory."""

import gc
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from agentrt.message import UserMsg
from agentrt.state import AgentState, FileStateStore, PostgresStore, RedisStore, SQLiteStore
from tests.servers.proxy import proxy_to
from tests.state.conftest import new_schema

SAVES = 10
MANY = 300  # messages: less than what SQLite moves from its log into its file
_PAGE = 4096  # bytes of SQLite, which writes whole pages

pytestmark = pytest.mark.parametrize("anyio_backend", ["asyncio"])


def written_in(folder: Path) -> Callable[[], int]:
    return lambda: sum(path.stat().st_size for path in folder.iterdir())


@pytest.fixture(params=["file", "sqlite", "postgres", "redis"])
def store_and_bytes(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Any, Callable[[], int]]]:
    """A store, and a function that returns the bytes that were written or sent so far."""
    if request.param == "file":
        tmp_path.joinpath("states").mkdir()
        yield FileStateStore(tmp_path / "states"), written_in(tmp_path / "states")
        return
    if request.param == "sqlite":
        yield SQLiteStore(tmp_path / "x.db", durability="process"), written_in(tmp_path)
        return
    service = request.getfixturevalue(request.param)
    with proxy_to(service.address) as proxy:
        cls: type[PostgresStore | RedisStore] = PostgresStore if request.param == "postgres" else RedisStore
        name = "schema" if cls is PostgresStore else "prefix"
        yield cls(service.url_at(proxy.port), **{name: new_schema()}), lambda: proxy.sent


async def cost_of_saves(store: Any, held: int, measure: Callable[[], int], attempt: int = 0) -> int:
    state = AgentState(session_id=f"with {held}, {attempt}", context=[UserMsg("user", "x" * 200) for _ in range(held)])
    for _ in range(SAVES):  # until statements are prepared
        await store.save(state)
    before = measure()
    for _ in range(SAVES):
        state.context.append(UserMsg("user", "y" * 200))
        await store.save(state)
    return measure() - before


async def test_bytes_of_a_save_do_not_grow_with_the_history(store_and_bytes):
    store, measure = store_and_bytes
    async with store:
        few, many = [await cost_of_saves(store, held, measure) for held in (10, MANY)]
        # A higher tree has a page more, and a larger number a digit.
        assert many - few <= SAVES * (_PAGE if isinstance(store, SQLiteStore) else 32)
        assert few > SAVES * 200


@pytest.mark.slow
async def test_memory_of_a_save_does_not_grow_with_the_history(store_and_bytes):
    def in_use() -> int:
        gc.collect()
        return tracemalloc.get_traced_memory()[0]

    store, _ = store_and_bytes
    async with store:
        await store.save(AgentState(session_id="first"))  # what is made once
        tracemalloc.start()
        growths: list[int] = []
        try:
            for attempt in range(3):
                few, many = [await cost_of_saves(store, held, in_use, attempt) for held in (10, MANY)]
                growths.append(many - few)
        finally:
            tracemalloc.stop()
        # Two lists of references grow by an eighth at a time. Now and then another thread allocates meanwhile.
        assert min(growths) < 4_000
