"""Plans: what an agent intends to do, step by step, and where plans that are over are kept."""

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
