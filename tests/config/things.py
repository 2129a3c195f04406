"""The objects that the files of these tests name, as `tests.config.things:...`."""

from typing import Any

from agentrt.agent import Agent
from agentrt.hooks import MiddlewareBase
from agentrt.memory import LongTermMemory
from agentrt.rag import KnowledgeBase, SQLiteTextStore


class Talkative(MiddlewareBase):
    """A layer whose errors tell all that it knows."""

    def __init__(self, token: str = "", level: int = 0, **headers: Any) -> None:
        self.token = token
        self.headers = headers
        if level > 1:
            raise ValueError(f"level {level} of {token} is too high")

    async def on_system_prompt(self, agent: Agent, current_prompt: str) -> str:
        return current_prompt


def refund(order: str) -> str:
    """Pay the money of an order back."""
    return f"{order} is paid back"


def is_pro(agent: Agent) -> bool:
    return bool(agent.run.deps)


async def allow(value: object, agent: object) -> None: ...


async def choose(agent: object, messages: object) -> None: ...


class AllowAll:
    def intercept(self, context: dict[str, Any]) -> dict[str, Any]:
        return {"decision": "allow"}


interceptor = AllowAll()
memory = LongTermMemory(SQLiteTextStore(":memory:"))
handbook = KnowledgeBase("handbook", "How we work.", SQLiteTextStore(":memory:"))
refunds = [refund]
