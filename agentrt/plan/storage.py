"""Storages of closed plans: the base class, and one in this process."""

import logging
from collections.abc import Callable, Iterable
from typing import TypeVar

from agentrt._runtime.text import type_with_article
from agentrt.errors import SessionCorrupt
from agentrt.module import StateModule
from agentrt.plan.plan import Plan, plan_from_json, plan_to_json
from agentrt.types import JSONObject

_logger = logging.getLogger("agentrt")
_SavedPlan = TypeVar("_SavedPlan")


class PlanStorageBase(StateModule):
    """Keeps plans by their ids; several conversations may share it."""

    async def add_plan(self, plan: Plan) -> None:
        """Save a plan, replacing one with the same id."""
        raise NotImplementedError

    async def replace_plan(self, plan: Plan, known: Plan | None) -> bool:
        """Save a plan if `known` is still the saved plan with its id, `None` for none; returns whether it was saved.

        Override it to compare and save atomically, so that when two conversations save one plan at the same
        instant, neither loses its work.
        """
        if await self.get_plan(plan.id) != known:
            return False
        await self.add_plan(plan)
        return True

    async def delete_plan(self, plan_id: str) -> None:
        """Delete a plan; unknown ids are ignored."""
        raise NotImplementedError

    async def get_plans(self) -> list[Plan]:
        """Return all plans, oldest first."""
        raise NotImplementedError

    async def get_plan(self, plan_id: str) -> Plan | None:
        """Return a plan, `None` for an unknown id."""
        raise NotImplementedError

    async def plans_of(self, owner: str) -> list[Plan]:
        """Return the plans of one owner, oldest first; override it if the storage need not read all plans."""
        return [plan for plan in await self.get_plans() if plan.owner == owner]


class InMemoryPlanStorage(PlanStorageBase):
    """Keeps plans in this process; its state holds them all. It stores and returns copies only."""

    def __init__(self) -> None:
        super().__init__()
        self._plans: dict[str, JSONObject] = {}
        self.register_state("_plans", custom_from_json=_check_plans)

    async def add_plan(self, plan: Plan) -> None:
        """Save a plan, replacing one with the same id."""
        self._plans.pop(plan.id, None)  # so that it is the newest
        self._plans[plan.id] = plan_to_json(plan)

    async def replace_plan(self, plan: Plan, known: Plan | None) -> bool:
        """Save a plan if `known` is still the saved plan with its id, `None` for none; returns whether it was saved."""
        fields = self._plans.get(plan.id)
        if (None if fields is None else plan_from_json(fields)) != known:
            return False
        await self.add_plan(plan)  # which waits for nothing
        return True

    async def delete_plan(self, plan_id: str) -> None:
        """Delete a plan; unknown ids are ignored."""
        self._plans.pop(plan_id, None)

    async def get_plans(self) -> list[Plan]:
        """Return all plans, oldest first."""
        # Parsed each time: callers get copies of their own.
        return [plan_from_json(fields) for fields in self._plans.values()]

    async def get_plan(self, plan_id: str) -> Plan | None:
        """Return a plan, `None` for an unknown id."""
        fields = self._plans.get(plan_id)
        return None if fields is None else plan_from_json(fields)


def readable_plans(read_plan: Callable[[_SavedPlan], Plan], saved: Iterable[_SavedPlan]) -> list[Plan]:
    """Return the readable plans: one saved by another version must not hide the others."""
    plans: list[Plan] = []
    unreadable = 0
    for saved_plan in saved:
        try:
            plans.append(read_plan(saved_plan))
        except ValueError:
            unreadable += 1
    if unreadable:
        _logger.warning("%d of the former plans cannot be read by this version: they are left out", unreadable)
    return plans


def _check_plans(plans: object) -> dict[str, JSONObject]:
    if not isinstance(plans, dict):
        raise SessionCorrupt(f"the plans of a storage must be a dict of them, not {type_with_article(plans)}")
    for plan_id, fields in plans.items():
        try:
            plan_from_json(fields)
        except ValueError:
            is_plan = False
        else:
            is_plan = True
        if not is_plan:  # raised here, since pydantic's error quotes the refused value
            raise SessionCorrupt(f"the plan {plan_id!r:.100} of a storage cannot be read")
    return plans
