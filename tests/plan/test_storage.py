"""Storages of plans: one suite for all of them."""

import copy
import json
import pickle
import sqlite3
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agentrt.errors import ConfigError, SessionCorrupt, StoreError
from agentrt.plan import InMemoryPlanStorage, Plan, PlanStorageBase, SQLitePlanStorage, SubTask


class UsersStorage(InMemoryPlanStorage):
    """As users may write one: with only the methods that it must have."""

    replace_plan = PlanStorageBase.replace_plan
    plans_of = PlanStorageBase.plans_of


STORAGES: dict[str, Callable[[Path], PlanStorageBase]] = {
    "memory": lambda folder: InMemoryPlanStorage(),
    "sqlite": lambda folder: SQLitePlanStorage(folder / "plans.db"),
    "a user's": lambda folder: UsersStorage(),
}


@pytest.fixture(params=STORAGES)
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> PlanStorageBase:
    return STORAGES[request.param](tmp_path)


def plan_of(name: str, owner: str = "") -> Plan:
    return Plan(name, subtasks=[SubTask("step")], owner=owner)


async def test_plans_come_back_in_their_order(storage):
    plans = [plan_of("a"), plan_of("b '; DROP TABLE plans; --"), plan_of("月\ud800")]
    for plan in plans:
        await storage.add_plan(plan)
    assert await storage.get_plans() == plans
    assert await storage.get_plan(plans[1].id) == plans[1]


async def test_a_copy_has_the_same_plans(tmp_path):
    storage = SQLitePlanStorage(tmp_path / "plans.db")
    await storage.add_plan(plan_of("a"))
    assert copy.deepcopy(storage) is storage
    assert [plan.name for plan in await pickle.loads(pickle.dumps(storage)).get_plans()] == ["a"]
    with pytest.raises(TypeError, match="give it the path of a file"):
        pickle.dumps(SQLitePlanStorage(":memory:"))


async def test_a_plan_takes_the_place_of_one_with_its_id(storage):
    plan = plan_of("a")
    await storage.add_plan(plan)
    plan.finish("done", "over")
    assert (await storage.get_plans())[0].state == "todo"  # it keeps copies
    await storage.add_plan(plan)
    assert await storage.get_plans() == [plan]


async def test_a_plan_is_replaced_only_where_it_is_known(storage):
    plan, other = plan_of("a"), plan_of("b")
    other.id = plan.id
    assert await storage.replace_plan(plan, None)
    assert not await storage.replace_plan(other, None)
    assert not await storage.replace_plan(other, other)
    assert await storage.get_plans() == [plan]
    assert await storage.replace_plan(other, plan)
    assert await storage.get_plans() == [other]


async def test_a_deleted_plan_is_gone(storage):
    plan = plan_of("a")
    await storage.add_plan(plan)
    await storage.delete_plan("another")
    await storage.delete_plan(plan.id)
    assert await storage.get_plan(plan.id) is None
    assert await storage.get_plans() == []


async def test_a_plan_of_another_version_is_left_out(tmp_path, caplog):
    storage = SQLitePlanStorage(tmp_path / "plans.db")
    for plan in (plan_of("a", "ann"), plan_of("b", "ann")):
        await storage.add_plan(plan)
    with sqlite3.connect(storage.path) as connection:
        connection.execute("UPDATE plans SET plan = ? WHERE id = ?", ('{"steps": 1}', plan.id))
    connection.close()
    assert [plan.name for plan in await storage.plans_of("ann")] == ["a"]
    assert await storage.get_plan(plan.id) is None
    assert "1 of the former plans cannot be read by this version: they are left out" in caplog.text


async def test_an_owner_finds_nothing_of_another(storage):
    await storage.add_plan(plan_of("a", "ann"))
    await storage.add_plan(plan_of("b", "bob"))
    assert [plan.name for plan in await storage.plans_of("ann")] == ["a"]
    assert await storage.plans_of("ann' OR '1'='1") == []


async def test_the_state_of_a_storage_in_memory_holds_its_plans():
    storage, other = InMemoryPlanStorage(), InMemoryPlanStorage()
    plan = plan_of("a")
    await storage.add_plan(plan)
    other.load_state_dict(json.loads(json.dumps(storage.state_dict())))
    assert await other.get_plans() == [plan]


@pytest.mark.parametrize("plans", [[], {"x": {"name": 3}}])
def test_a_state_without_plans_is_refused(plans: Any):
    with pytest.raises(SessionCorrupt):
        InMemoryPlanStorage().load_state_dict({"_plans": plans})


async def test_a_file_is_shared_and_only_its_owner_reads_it(tmp_path):
    path = tmp_path / "plans.db"
    plan = plan_of("a")
    await SQLitePlanStorage(path).add_plan(plan)
    assert await SQLitePlanStorage(str(path)).get_plans() == [plan]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.parametrize("path", ["", 7, None, True, "a\0b"])
def test_what_is_not_a_path_is_refused(path: Any):
    with pytest.raises(ConfigError, match="must be the path of a file"):
        SQLitePlanStorage(path)


def test_a_missing_folder_is_named(tmp_path):
    with pytest.raises(ConfigError, match="does not exist: make it first"):
        SQLitePlanStorage(tmp_path / "none" / "plans.db")


async def test_a_damaged_file_is_an_error_and_stays_what_it_is(tmp_path):
    path = tmp_path / "plans.db"
    path.write_bytes(b"this is not a database" * 100)
    with pytest.raises(StoreError):
        await SQLitePlanStorage(path).add_plan(plan_of("a"))
    assert path.read_bytes() == b"this is not a database" * 100
