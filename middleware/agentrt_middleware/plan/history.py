"""The former plans of a conversation, kept in its state."""

from typing import Any

from agentrt.plan import Plan, PlanStorageBase
from agentrt.plan.plan import plan_from_json, plan_to_json
from agentrt.plan.storage import readable_plans

# They are part of each save of the conversation, so there are not many of them.
_MAX_PLANS = 20


class ConversationHistory(PlanStorageBase):
    """The last 20 plans in `saved`, a list in the state of one conversation."""

    def __init__(self, saved: list[Any]) -> None:
        super().__init__()
        self._saved = saved

    async def add_plan(self, plan: Plan) -> None:
        """Keep a plan, in place of one with its id; the oldest are dropped."""
        await self.delete_plan(plan.id)
        self._saved.append(plan_to_json(plan))
        del self._saved[:-_MAX_PLANS]

    async def delete_plan(self, plan_id: str) -> None:
        """Forget a plan."""
        self._saved[:] = [plan for plan in self._saved if not (isinstance(plan, dict) and plan.get("id") == plan_id)]

    async def get_plans(self) -> list[Plan]:
        """Return all plans, the oldest first."""
        return readable_plans(plan_from_json, self._saved)

    async def get_plan(self, plan_id: str) -> Plan | None:
        """Return a plan, `None` for an unknown id."""
        return next((plan for plan in await self.get_plans() if plan.id == plan_id), None)

    async def plans_of(self, owner: str) -> list[Plan]:
        """Return all plans: they are those of the conversation itself."""
        return await self.get_plans()
