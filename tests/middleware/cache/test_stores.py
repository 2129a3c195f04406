"""Stores of the cache: shared by processes, checked when they are read, and never waited for."""

import gc
import json
import logging
import sqlite3
import stat
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import anyio
import pytest

from agentrt import Agent, AgentState
from agentrt.errors import ConfigError
from agentrt.message import TextBlock, ToolCallBlock
from agentrt.middleware import CacheMiddleware, CacheStore, MemoryCacheStore, RedisCacheStore, SQLiteCacheStore
from agentrt.model import ChatResponse, ChatUsage
from agentrt.testing import check_middleware
from agentrt.types import ToolResponse
from agentrt_middleware.cache.entries import Entry, read_entry, write_entry
from tests.loop.helpers import agent_of
from tests.middleware.fake_time import Clock, on_both_loops, play
from tests.middleware.redis_server import when_redis_fails
from tests.program_runner import ProgramRunner

pytestmark = when_redis_fails  # garbage of one test is collected at the end of the file

CHILD = """
import asyncio, sys
from agentrt import Agent
from agentrt.middleware import CacheMiddleware, SQLiteCacheStore
from agentrt.model import ScriptedChatModel
from tests.program_runner import ProgramRunner
agent = Agent("tester", "You are tested.", ScriptedChatModel(["of the child"]), middlewares=[
    CacheMiddleware(SQLiteCacheStore(sys.argv[1]))])
print(asyncio.run(agent.reply("go")).get_text_content())
"""


@pytest.fixture(params=["memory", "sqlite", "redis"])
def store(request: pytest.FixtureRequest, tmp_path: Path, prefix: str, patient_stores: None) -> CacheStore:
    if request.param == "memory":
        return MemoryCacheStore()
    if request.param == "sqlite":
        return SQLiteCacheStore(tmp_path / "cache.db")
    pytest.importorskip("coredis")
    return RedisCacheStore(request.getfixturevalue("url"), prefix=prefix)


async def ask(agent: Agent, question: str = "go") -> str | None:
    return (await agent.with_state(AgentState()).reply(question)).get_text_content()


async def test_every_store_keeps_answers_for_other_agents(store: CacheStore) -> None:
    response = ChatResponse([TextBlock("ünïcode \x00"), ToolCallBlock("1", "f", "{}")], usage=ChatUsage(1, 2))
    assert await store.get("key") is None
    text = write_entry(Entry("key", 5.0, [response]))
    assert text is not None
    await store.put("key", text, 60)
    entry = read_entry(await store.get("key"), "key", 6.0, ttl=10)
    assert entry.pieces == [response]
    assert [await ask(agent_of([word], middlewares=[CacheMiddleware(store)])) for word in ("first", "second")] == [
        "first",
        "first",
    ]


@pytest.mark.usefixtures("patient_stores")
async def test_a_sqlite_file_is_shared_and_readable_by_its_owner_only(
    tmp_path: Path, program_runner: ProgramRunner
) -> None:
    path = tmp_path / "cache.db"
    path.touch(0o644)
    assert await ask(agent_of(["of the parent"], middlewares=[CacheMiddleware(SQLiteCacheStore(path))])) == (
        "of the parent"
    )
    modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in tmp_path.iterdir()}
    assert set(modes.values()) == {0o600}
    assert program_runner.run(CHILD, str(path)).stdout == "of the parent\n"


@pytest.mark.usefixtures("patient_stores")
async def test_a_sqlite_file_drops_the_oldest_and_what_is_over(tmp_path: Path) -> None:
    store = SQLiteCacheStore(tmp_path / "cache.db", max_entries=2)
    for key in ("1", "2", "1", "3"):
        await store.put(key, key, 60)
    assert [await store.get(key) for key in ("1", "2", "3")] == ["1", None, "3"]
    await store.put("3", "over", -1)
    await store.put("4", "4", 60)
    assert [await store.get(key) for key in ("1", "3", "4")] == ["1", None, "4"]


@pytest.mark.usefixtures("patient_stores")
async def test_a_sqlite_file_serves_many_calls_at_once(tmp_path: Path) -> None:
    store = SQLiteCacheStore(tmp_path / "cache.db")
    async with anyio.create_task_group() as group:
        for number in range(30):
            group.start_soon(store.put, str(number), "x" * 1000, 60)
    assert [await store.get(str(number)) for number in range(30)] == ["x" * 1000] * 30


# ---- stores that fail


class Failing:
    """A store that raises, hangs, or returns something that it should not."""

    def __init__(self, does: str) -> None:
        self.does = does
        self.asked = 0

    async def get(self, key: str) -> Any:
        self.asked += 1
        if self.does == "raise":  # as a client does that works in a task group
            raise ExceptionGroup("in a group", [ConnectionError("redis://user:hunter2@host")])
        if self.does == "hang":
            await anyio.sleep(1_000)
        return None

    async def put(self, key: str, value: str, ttl: float) -> None:
        await self.get(key)


@on_both_loops
@pytest.mark.parametrize("does", ["raise", "hang"])
@pytest.mark.parametrize("policy", ["open", "local"])
def test_a_failing_store_delays_no_call_and_is_logged_once(
    backend: str, does: str, policy: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        store, clock = Failing(does), Clock()
        cache = CacheMiddleware(store, on_store_error=policy)
        cache._guard._clock = clock
        agent = agent_of(["first", "second", "third"], middlewares=[cache])
        started = anyio.current_time()
        expected = ["first", "first", "first"] if policy == "local" else ["first", "second", "third"]
        assert [await ask(agent) for _ in range(3)] == expected
        assert anyio.current_time() - started <= 0.25
        assert store.asked == 1
        clock.now += 3
        store.does = "work"
        await ask(agent_of(["fourth"], middlewares=[cache]), "another")
        assert store.asked == 3

    with caplog.at_level(logging.WARNING, "agentrt"):
        play(backend, main)
    cause = "ConnectionError" if does == "raise" else "no answer in time"
    assert caplog.text.count(f"the Failing of a cache failed ({cause})") == 1
    assert caplog.text.count("the Failing of a cache is back") == 1
    assert "hunter2" not in caplog.text


GOOD = json.loads(write_entry(Entry("KEY", 1_000.0, [ChatResponse([TextBlock("kept")])])) or "")
DAMAGED: list[Any] = [
    "",
    "{",
    "null",
    "[]",
    7,
    b"\x80",
    "[" * 100_000,
    "x" * 3_000_000,
    {**GOOD, "key": "other"},
    {**GOOD, "format": 2},
    {**GOOD, "more": 1},
    {**GOOD, "stored_at": "yesterday"},
    {**GOOD, "pieces": []},
    {**GOOD, "pieces": None},
    {**GOOD, "pieces": [{"content": [{"type": "hint", "hint": "obey"}]}]},
    {**GOOD, "pieces": [{"content": [{"type": "text"}]}]},
    {**GOOD, "pieces": [*GOOD["pieces"], *GOOD["pieces"]]},
    {**GOOD, "pieces": [{**GOOD["pieces"][0], "finished_reason": "length"}]},
    {**GOOD, "pieces": [{**GOOD["pieces"][0], "metadata": {"no_store": True}}]},
    {**GOOD, "result": {"content": []}},
    {**GOOD, "pieces": None, "result": {"content": [], "metadata": {"no_store": True}}},
    {name: GOOD[name] for name in ("key", "stored_at")},
]


@pytest.mark.parametrize("value", DAMAGED, ids=lambda value: f"{value!r:.60}")
async def test_what_a_store_holds_is_checked(value: Any, caplog: pytest.LogCaptureFixture) -> None:
    class Damaged(MemoryCacheStore):
        async def get(self, key: str) -> Any:
            text = value if not isinstance(value, dict) else json.dumps(value)
            return text.replace("KEY", key) if isinstance(text, str) else text

    agent = agent_of(["asked", "again"], middlewares=[CacheMiddleware(Damaged(), clock=Clock())])
    assert [await ask(agent), await ask(agent)] == ["asked", "again"]
    assert caplog.text.count("holds something that this cache has not written") == 1


RESULT = json.loads(write_entry(Entry("KEY", 1_000.0, None, ToolResponse([TextBlock("kept")]))) or "")
PAY = {"tool_call": {"id": "1", "name": "pay", "input": "{}"}, "message": "Pay?"}


@pytest.mark.parametrize(
    "change", [{"state": "error"}, {"waits": [PAY]}, {"metadata": {"response_msg": {"name": "a"}}}, {"content": None}]
)
def test_a_result_in_a_store_is_one_that_a_cache_keeps(change: dict[str, Any]) -> None:
    assert read_entry(json.dumps(RESULT), "KEY", 1_000.0, ttl=5) is not None
    with pytest.raises(ValueError, match=r"not what a cache keeps|validation error"):
        read_entry(json.dumps({**RESULT, "result": {**RESULT["result"], **change}}), "KEY", 1_000.0, ttl=5)


@pytest.mark.parametrize(("stored_at", "is_hit"), [(1_000, True), (1_050, True), (1_100, False), (-9e9, False)])
async def test_an_entry_from_the_future_or_the_past_is_a_miss(stored_at: float, is_hit: bool) -> None:
    class Foreign(MemoryCacheStore):
        async def get(self, key: str) -> str:
            return json.dumps({**GOOD, "key": key, "stored_at": stored_at})

    agent = agent_of(["asked"], middlewares=[CacheMiddleware(Foreign(), clock=Clock())])
    assert await ask(agent) == ("kept" if is_hit else "asked")


@pytest.mark.usefixtures("patient_stores")
async def test_a_damaged_value_in_a_sqlite_file_is_replaced(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "cache.db"
    agent = agent_of(["first", "second"], middlewares=[CacheMiddleware(SQLiteCacheStore(path))])
    await ask(agent)
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("UPDATE cache SET value = CAST(x'fffe' AS TEXT)")
    assert [await ask(agent), await ask(agent)] == ["second", "second"]
    assert "failed" not in caplog.text


async def test_any_time_to_live_fits_each_store(store: CacheStore) -> None:
    await store.put("key", "value", 1e300)
    assert await store.get("key") == "value"


async def test_a_damaged_sqlite_file_is_a_miss(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "cache.db"
    path.write_bytes(b"not a database, but long enough to be read as one" * 100)
    agent = agent_of(["asked", "again"], middlewares=[CacheMiddleware(SQLiteCacheStore(path))])
    assert [await ask(agent), await ask(agent)] == ["asked", "again"]
    assert "the SQLiteCacheStore of a cache failed (DatabaseError): until it is back, nothing is cached" in caplog.text


@pytest.mark.slow
async def test_a_redis_that_is_down_is_a_miss(caplog: pytest.LogCaptureFixture) -> None:
    pytest.importorskip("coredis")
    store = RedisCacheStore("redis://:hunter2@127.0.0.1:1")
    agent = agent_of(["asked", "again"], middlewares=[CacheMiddleware(store)])
    assert [await ask(agent), await ask(agent)] == ["asked", "again"]
    assert caplog.text.count("the RedisCacheStore of a cache failed") == 1
    assert "hunter2" not in caplog.text + repr(store)
    gc.collect()  # while the warnings are ignored


@pytest.mark.parametrize("address", ["localhost:6379", "http://u:hunter2@h", "", None, 7])
def test_a_redis_url_is_checked(address: Any) -> None:
    pytest.importorskip("coredis")
    with pytest.raises(ConfigError, match=r"RedisCacheStore\(url=\.\.\.\) must begin with one of redis://") as refused:
        RedisCacheStore(address)
    assert "hunter2" not in str(refused.value)


@pytest.mark.slow
@pytest.mark.usefixtures("patient_stores")
@pytest.mark.parametrize(
    ("make", "policy"),
    [
        (lambda path: SQLiteCacheStore(path / "cache.db", max_entries=4), "open"),
        (lambda path: Failing("raise"), "open"),
        (lambda path: Failing("raise"), "local"),
    ],
    ids=["sqlite", "failing open", "failing local"],
)
async def test_each_store_keeps_the_contract(make: Callable[[Path], Any], policy: Any, tmp_path: Path) -> None:
    await check_middleware(lambda: CacheMiddleware(make(tmp_path), on_store_error=policy), faults=[])
