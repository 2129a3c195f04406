"""Stores of budgets: shared by processes, not believed, and never waited for."""

import gc
import logging
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

from agentrt import Agent, AgentState
from agentrt.errors import BudgetExceeded
from agentrt.middleware import (
    Budget,
    BudgetMiddleware,
    BudgetStore,
    MemoryBudgetStore,
    RedisBudgetStore,
    SQLiteBudgetStore,
)
from tests.loop.helpers import agent_of
from tests.middleware.budget.helpers import answer, requests
from tests.middleware.fake_time import Clock, in_jumping_time, on_both_loops, play
from tests.middleware.redis_server import when_redis_fails

pytestmark = when_redis_fails  # garbage of one test is collected at the end of the file

DAY = 86_400


@pytest.fixture(params=["memory", "sqlite", "redis"])
def store(request: pytest.FixtureRequest, tmp_path: Path, prefix: str, patient_stores: None) -> BudgetStore:
    if request.param == "memory":
        return MemoryBudgetStore()
    if request.param == "sqlite":
        return SQLiteBudgetStore(tmp_path / "budget.db")
    pytest.importorskip("coredis")
    return RedisBudgetStore(request.getfixturevalue("url"), prefix=prefix)


def owned(store: Any, script: list[Any], limit: int = 100, **options: Any) -> Agent:
    budget = BudgetMiddleware(owner=Budget(tokens=limit, per="day"), owner_id="ann", store=store, **options)
    return agent_of(script, middlewares=[budget])


async def ask(agent: Agent) -> str | None:
    return (await agent.with_state(AgentState()).reply("go")).finished_reason


async def test_every_store_adds_what_its_limits_allow(store: BudgetStore) -> None:
    limits = {"tokens": 10.0, "model_calls": 2.0}
    may_add, spent = await store.reserve("a", limits, {"model_calls": 1}, 60)
    assert (may_add, dict(spent)) == (True, {"model_calls": 1})
    await store.settle("a", {"tokens": 9.5}, 60)
    assert (await store.reserve("a", limits, {"tokens": 0.75}, 60))[0] is False
    may_add, spent = await store.reserve("a", limits, {"tokens": 0.5, "model_calls": 1}, 60)
    assert (may_add, dict(spent)) == (True, {"tokens": 10, "model_calls": 2})
    assert (await store.reserve("a", {"tokens": 10.0}, {}, 60))[0] is False
    assert (await store.reserve("b", limits, {}, 60))[0] is True
    await store.settle("a", {"tokens": -9.0, "raised_model_calls": 1}, 60)
    may_add, spent = await store.reserve("a", limits, {"model_calls": 1}, 60)
    assert (may_add, dict(spent)) == (True, {"tokens": 1, "model_calls": 3, "raised_model_calls": 1})
    await store.settle("a", {"tokens": -50.0}, 60)
    assert (await store.reserve("a", {"tokens": 10.0}, {}, 60))[1]["tokens"] == 0


async def test_nothing_of_a_number_is_lost(store: BudgetStore) -> None:
    await store.settle("a", {"cost": 0.1}, 60)
    await store.settle("a", {"cost": 0.2}, 60)
    assert (await store.reserve("a", {"cost": 1.0}, {}, 60))[1]["cost"] == 0.1 + 0.2


async def test_agents_of_one_owner_share_a_store(store: BudgetStore) -> None:
    agents = [owned(store, [answer(60)] * 3) for _ in range(3)]
    assert [await ask(agent) for agent in agents] == ["completed", "completed", "exceed_budget"]
    assert [requests(agent) for agent in agents] == [1, 1, 0]


async def test_no_more_calls_begin_at_once_than_are_left(store: BudgetStore) -> None:
    budget = BudgetMiddleware(owner=Budget(model_calls=4, per="day"), owner_id="ann", store=store)
    agent = agent_of([answer(1)] * 12, middlewares=[budget])
    reasons: list[str | None] = []

    async def begin() -> None:
        try:
            reasons.append(await ask(agent))
        except BudgetExceeded:  # on a busy machine the store may be too slow
            reasons.append("failed")

    async with anyio.create_task_group() as group:
        for _ in range(6):
            group.start_soon(begin)
    assert requests(agent) == reasons.count("completed") <= 4
    assert requests(agent) == 4 or "failed" in reasons


@pytest.mark.usefixtures("patient_stores")
async def test_a_file_is_readable_by_its_owner_only_and_names_nobody(tmp_path: Path) -> None:
    path = tmp_path / "budget.db"
    path.touch(0o644)
    assert await ask(owned(SQLiteBudgetStore(path), [answer(5)])) == "completed"
    assert {stat.S_IMODE(file.stat().st_mode) for file in tmp_path.iterdir()} == {0o600}
    assert b"ann" not in path.read_bytes()


async def test_accounts_of_old_periods_are_dropped(tmp_path: Path) -> None:
    memory = MemoryBudgetStore()
    for number in range(2_500):
        await memory.settle(str(number), {"tokens": 1}, -1)
    assert len(memory._accounts) <= 1_001
    store = SQLiteBudgetStore(tmp_path / "budget.db")
    await store.settle("old", {"tokens": 1}, -1)
    await store.settle("new", {"tokens": 1}, 60)
    assert (await store.reserve("old", {"tokens": 1}, {}, 60))[0] is True


# ---- stores that fail


class Failing:
    """A store that raises, hangs, or answers with something that it should not."""

    def __init__(self, does: str, gives: Any = None) -> None:
        self.does, self.gives = does, gives
        self.asked = 0
        self.real = MemoryBudgetStore()

    async def reserve(self, account: str, limits: Any, amounts: Any, ttl: float) -> Any:
        self.asked += 1
        if self.does == "raise":
            raise ConnectionError("redis://user:hunter2@host")
        if self.does == "hang":
            await anyio.sleep(1_000)
        if self.does == "give":
            return self.gives
        return await self.real.reserve(account, limits, amounts, ttl)

    async def settle(self, account: str, amounts: Any, ttl: float) -> None:
        if self.does in ("raise", "hang"):
            await self.reserve(account, {}, {}, ttl)
        else:
            await self.real.settle(account, amounts, ttl)


@on_both_loops
@pytest.mark.parametrize("does", ["raise", "hang"])
@pytest.mark.parametrize("on_exceed", ["stop", "raise", "ask"])
def test_while_a_store_fails_nothing_begins(
    backend: str, does: str, on_exceed: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        store = Failing(does)
        agent = owned(store, [answer(5), "never"], on_exceed=on_exceed)
        started = anyio.current_time()
        for _ in range(3):
            with pytest.raises(BudgetExceeded, match=r"the store failed.*on_store_error=") as raised:
                await ask(agent)
            assert "hunter2" not in str(raised.value)
        assert anyio.current_time() - started <= 0.25
        assert (requests(agent), store.asked) == (0, 1)

    with caplog.at_level(logging.WARNING, "agentrt"):
        play(backend, main)
    assert caplog.text.count("the Failing of a budget failed") == 1
    assert "what owners may spend counts as used up" in caplog.text
    assert "hunter2" not in caplog.text


@in_jumping_time
@pytest.mark.parametrize("does", ["raise", "hang"])
async def test_an_open_budget_learns_later_what_was_spent(does: str) -> None:
    store = Failing(does)
    agent = owned(store, [answer(60)] * 5, on_store_error="open")
    started = anyio.current_time()
    assert [await ask(agent) for _ in range(2)] == ["completed"] * 2
    assert anyio.current_time() - started <= 0.25
    store.does = "work"
    guard = agent.middlewares[0]._scopes.owners._guard  # type: ignore[attr-defined]
    guard._down_until = 0.0
    assert await ask(agent) == "exceed_budget"
    assert requests(agent) == 2


async def test_spending_that_could_not_be_told_is_told_later() -> None:
    store = Failing("work")
    agent = owned(store, [answer(60)] * 9)
    assert await ask(agent) == "completed"
    store.does = "raise"
    agent.middlewares[0]._scopes.owners.add("another", {"tokens": 5})  # type: ignore[attr-defined]
    with pytest.raises(BudgetExceeded):
        await ask(agent)
    store.does = "work"
    agent.middlewares[0]._scopes.owners._guard._down_until = 0.0  # type: ignore[attr-defined]
    assert [await ask(agent), await ask(agent)] == ["completed", "exceed_budget"]
    assert store.real._accounts["another"][0] == {"tokens": 5}


class Hostile(dict[str, Any]):
    def get(self, *arguments: Any) -> Any:
        raise RuntimeError("hunter2")


GRANTED = {"model_calls": 1.0}
HOSTILE: list[Any] = [
    None,
    True,
    (),
    (True,),
    (True, GRANTED, 1),
    (1, GRANTED),
    ("yes", GRANTED),
    (True, None),
    (True, []),
    (True, Hostile()),
    (True, {}),  # the call that was granted is not counted
    (True, {"model_calls": 1, "tokens": "5"}),
    (True, {"model_calls": 1, "tokens": True}),
    (True, {"model_calls": 1, "tokens": float("nan")}),
    (True, {"model_calls": 1, "tokens": float("inf")}),
    (True, {"model_calls": 1, "tokens": -5}),
    (True, {"model_calls": 1, "tokens": 10**400}),
    (True, {"model_calls": 1, "tokens": 100}),  # granted though used up
    (True, {"model_calls": 1, "raised_tokens": -100}),
    (True, {"model_calls": 1, "raised_tokens": "1e9"}),
    (False, {"tokens": 5}),  # refused though there is enough
    (False, {"tokens": 100, "model_calls": -1}),
]


@pytest.mark.parametrize("given", HOSTILE, ids=lambda value: f"{value!r:.60}")
@pytest.mark.parametrize("policy", ["closed", "open"])
async def test_what_a_store_says_is_checked(given: Any, policy: Any, caplog: pytest.LogCaptureFixture) -> None:
    agent = owned(Failing("give", given), [answer(5)] * 2, on_store_error=policy)
    for _ in range(2):
        if policy == "open":
            assert await ask(agent) == "completed"
        else:
            with pytest.raises(BudgetExceeded, match="the store is damaged"):
                await ask(agent)
    assert requests(agent) == (2 if policy == "open" else 0)
    assert caplog.text.count("Failing holds something that no budget has written") == 1


@pytest.mark.parametrize("policy", ["closed", "open"])
async def test_a_clock_that_is_set_back_brings_no_second_budget(policy: Any, caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    clock.now = 3.5 * DAY
    agent = owned(None, [answer(100)] * 3, clock=clock, on_store_error=policy)
    assert await ask(agent) == "completed"
    clock.now = 3.5 * DAY - 30  # as clocks are that are kept exact
    assert await ask(agent) == "exceed_budget"
    clock.now = 2.5 * DAY
    for _ in range(2):
        if policy == "open":
            assert await ask(agent) == "completed"
        else:
            with pytest.raises(BudgetExceeded, match="the clock was set back"):
                await ask(agent)
    assert caplog.text.count("the clock of a budget was set back") == 1
    clock.now = 3.6 * DAY
    assert await ask(agent) == "exceed_budget"


async def test_a_damaged_file_is_a_failing_store(tmp_path: Path) -> None:
    path = tmp_path / "budget.db"
    path.write_bytes(b"not a database, but long enough to be read as one" * 100)
    with pytest.raises(BudgetExceeded, match="the store failed"):
        await ask(owned(SQLiteBudgetStore(path), ["never"]))


@pytest.mark.usefixtures("patient_stores")
async def test_a_foreign_value_in_a_file_is_not_believed(tmp_path: Path) -> None:
    import sqlite3

    path = tmp_path / "budget.db"
    agent = owned(SQLiteBudgetStore(path), [answer(5), "never"])
    assert await ask(agent) == "completed"
    with sqlite3.connect(path) as database:
        database.execute("UPDATE spent SET amount = 'much' WHERE counter = 'tokens'")
    database.close()
    with pytest.raises(BudgetExceeded):
        await ask(agent)


@pytest.mark.parametrize("value", ["much", "nan", "-5", "inf", ""])
@pytest.mark.usefixtures("patient_stores")
async def test_a_foreign_value_in_redis_is_not_believed(url: str, prefix: str, value: str) -> None:
    coredis = pytest.importorskip("coredis")
    agent = owned(RedisBudgetStore(url, prefix=prefix), [answer(5), "never"])
    assert await ask(agent) == "completed"
    async with coredis.Redis.from_url(url, decode_responses=True) as client:
        [key] = await client.keys(f"{prefix}*")
        assert 0 < await client.ttl(key) <= 2 * DAY
        assert "ann" not in key.removeprefix(prefix)
        await client.hset(key, {"tokens": value})
    with pytest.raises(BudgetExceeded):
        await ask(agent)
    assert requests(agent) == 1


@pytest.mark.slow
async def test_a_redis_that_is_down_lets_nothing_begin(caplog: pytest.LogCaptureFixture) -> None:
    pytest.importorskip("coredis")
    store = RedisBudgetStore("redis://:hunter2@127.0.0.1:1")
    agent = owned(store, ["never"])
    for _ in range(2):
        with pytest.raises(BudgetExceeded, match="the store failed"):
            await ask(agent)
    assert "hunter2" not in caplog.text + repr(store)
    gc.collect()  # while the warnings are ignored


@pytest.mark.slow
@pytest.mark.usefixtures("patient_stores")
@pytest.mark.parametrize(
    ("make", "policy"),
    [(lambda path: SQLiteBudgetStore(path / "budget.db"), "closed"), (lambda path: MemoryBudgetStore(), "open")],
    ids=["sqlite closed", "memory open"],
)
async def test_each_store_keeps_the_contract(make: Callable[[Path], Any], policy: Any, tmp_path: Path) -> None:
    from agentrt.testing import check_middleware

    owner = Budget(tokens=1e9, per="day")
    await check_middleware(
        lambda: BudgetMiddleware(owner=owner, owner_id="ann", store=make(tmp_path), on_store_error=policy), faults=[]
    )
