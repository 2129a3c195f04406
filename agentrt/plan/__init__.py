"""Plans: the steps that an agent intends to take, and the storage of closed plans."""

from agentrt.plan.hint import DefaultPlanToHint
from agentrt.plan.plan import Plan, SubTask
from agentrt.plan.sqlite_storage import SQLitePlanStorage
from agentrt.plan.storage import InMemoryPlanStorage, PlanStorageBase

__all__ = [
    "DefaultPlanToHint",
    "InMemoryPlanStorage",
    "Plan",
    "PlanStorageBase",
    "SQLitePlanStorage",
    "SubTask",
]
