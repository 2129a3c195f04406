"""A storage of plans in a SQLite database."""

import json
import os
from collections.abc import Iterable
from typing import Any, Self

from agentrt._runtime.database.sqlite import SQLiteConnection, SQLiteDatabase
from agentrt.plan.plan import Plan, plan_from_json, plan_to_json
from agentrt.plan.storage import PlanStorageBase, readable_plans

# Plans are ordered by `place`, so by their last save: `REPLACE` gives a row a new one.
_PLAN_TABLES = """
CREATE TABLE plans (place INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, owner TEXT NOT NULL, plan TEXT NOT NULL);
CREATE INDEX plans_by_owner ON plans (owner, place)"""
_FIND_PLAN = "SELECT plan FROM plans WHERE id = ?"
_KEEP_PLAN = "REPLACE INTO plans (id, owner, plan) VALUES (?, ?, ?)"


class SQLitePlanStorage(PlanStorageBase):
    """Keeps plans in the SQLite database at `path`, which several processes may use, or in memory with ":memory:".

    The file is made at the first use, for its owner alone; its folder must exist. A database that fails raises
    `StoreError`.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        super().__init__()
        self._database = SQLiteDatabase("SQLitePlanStorage", path, schema=_PLAN_TABLES, name="plans_schema", version=1)
        self.path = self._database.path

    def __deepcopy__(self, memo: object) -> Self:
        return self  # a copy of an agent has the same database

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._database.path_to_pickle(),)

    async def add_plan(self, plan: Plan) -> None:
        """Save a plan, replacing one with the same id."""
        row = _row_of(plan)

        def add(connection: SQLiteConnection) -> None:
            connection.execute(_KEEP_PLAN, row)

        await self._database.write(add)

    async def replace_plan(self, plan: Plan, known: Plan | None) -> bool:
        """Save a plan if `known` is still the saved plan with its id, `None` for none; returns whether it was saved."""
        row = _row_of(plan)

        def replace(connection: SQLiteConnection) -> bool:
            kept = _read_rows(connection.execute(_FIND_PLAN, (plan.id,)))
            if (kept[0] if kept else None) != known:
                return False
            connection.execute(_KEEP_PLAN, row)
            return True

        return await self._database.write(replace)

    async def delete_plan(self, plan_id: str) -> None:
        """Delete a plan; unknown ids are ignored."""

        def delete(connection: SQLiteConnection) -> None:
            connection.execute("DELETE FROM plans WHERE id = ?", (plan_id,))

        await self._database.write(delete)

    async def get_plans(self) -> list[Plan]:
        """Return all plans, oldest first."""
        return await self._select("SELECT plan FROM plans ORDER BY place")

    async def get_plan(self, plan_id: str) -> Plan | None:
        """Return a plan, `None` for an unknown id."""
        plans = await self._select(_FIND_PLAN, plan_id)
        return plans[0] if plans else None

    async def plans_of(self, owner: str) -> list[Plan]:
        """Return the plans of one owner, oldest first."""
        return await self._select("SELECT plan FROM plans WHERE owner = ? ORDER BY place", owner)

    async def _select(self, statement: str, *values: str) -> list[Plan]:
        return await self._database.read(lambda connection: _read_rows(connection.execute(statement, values)))


def _read_rows(rows: Iterable[tuple[str]]) -> list[Plan]:
    return readable_plans(lambda text: plan_from_json(json.loads(text)), [text for (text,) in rows])


def _row_of(plan: Plan) -> tuple[str, str, str]:
    # In ASCII, since a model's text may hold unpaired surrogates, which the database would refuse.
    return plan.id, plan.owner, json.dumps(plan_to_json(plan))
