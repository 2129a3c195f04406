"""Where plans that are over are kept: the base class, and a storage in this process."""

import logging
from collections.abc import Callable, Iterable
from typing import TypeVar

from agentrt.errors import SessionCorrupt
from agentrt.module import StateModule
from agentrt.plan.plan import Plan, plan_from_json, plan_to_json
from agentrt.text import type_with_article
from agentrt.types import JSONObject

__all__ = ["InMemoryPlanStorage", "PlanStorageBase", "readable_plans"]

_logger = logging.getLogger("agentrt")
_SavedPlan = TypeVar("_SavedPlan")


class PlanStorageBase(StateModule):
    """Keeps plans by their ids; several conversations may share it."""

    async def add_plan(self, plan: Plan) -> None:
        """Keep a plan, in place of one with its id."""
        raise NotImplementedError

    async def replace_plan(self, plan: Plan, known: Plan | None) -> bool:
        """Keep a plan if `known` is still what is kept under its id, `None` for none; returns whether it was.

        Override it where both can be done at once, so that of two conversations that put one plan away at the same
        instant neither loses its work.
        """
        if await self.get_plan(plan.id) != known:
            return False
        await self.add_plan(plan)
        return True

    async def delete_plan(self, plan_id: str) -> None:
        """Forget a plan; nothing happens if there is none with this id."""
        raise NotImplementedError

    async def get_plans(self) -> list[Plan]:
        """Return all plans, the oldest first."""
        raise NotImplementedError

    async def get_plan(self, plan_id: str) -> Plan | None:
        """Return a plan, `None` if there is none with this id."""
        raise NotImplementedError

    async def plans_of(self, owner: str) -> list[Plan]:
        """Return the plans of one owner, the oldest first; override it where a storage need not read all for that."""
        return [plan for plan in await self.get_plans() if plan.owner == owner]


class InMemoryPlanStorage(PlanStorageBase):
    """Keeps plans in this process; its state holds them all. It stores and returns copies only."""

    def __init__(self) -> None:
        super().__init__()
        self._plans: dict[str, JSONObject] = {}
        self.register_state("_plans", custom_from_json=_check_plans)

    async def add_plan(self, plan: Plan) -> None:
        """Keep a plan, in place of one with its id."""
        self._plans.pop(plan.id, None)  # so that it is the newest
        self._plans[plan.id] = plan_to_json(plan)

    async def replace_plan(self, plan: Plan, known: Plan | None) -> bool:
        """Keep a plan if `known` is still what is kept under its id, `None` for none; returns whether it was."""
        fields = self._plans.get(plan.id)
        if (None if fields is None else plan_from_json(fields)) != known:
            return False
        await self.add_plan(plan)  # which waits for nothing
        return True

    async def delete_plan(self, plan_id: str) -> None:
        """Forget a plan; nothing happens if there is none with this id."""
        self._plans.pop(plan_id, None)

    async def get_plans(self) -> list[Plan]:
        """Return all plans, the oldest first."""
        # Read anew each time: what callers do to their copies stays with them.
        return [plan_from_json(fields) for fields in self._plans.values()]

    async def get_plan(self, plan_id: str) -> Plan | None:
        """Return a plan, `None` if there is none with this id."""
        fields = self._plans.get(plan_id)
        return None if fields is None else plan_from_json(fields)


def readable_plans(read_plan: Callable[[_SavedPlan], Plan], saved: Iterable[_SavedPlan]) -> list[Plan]:
    """Return the plans that can be read: one that another version saved must not keep an owner from the others."""
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
        if not is_plan:  # raised here, since pydantic's error quotes what it refused
            raise SessionCorrupt(f"the plan {plan_id!r:.100} of a storage cannot be read")
    return plans
