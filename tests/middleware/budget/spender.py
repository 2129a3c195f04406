"""A program that spends an owner's budget: tests start several of it at once, and kill some.

Its arguments are the store ("sqlite:path" or "redis:url"), a prefix, and the limit of calls. It writes a line for each
call that begins, and the last one says how it ended.
"""

import os
import sys
from typing import Any

import anyio

from agentrt import Agent, AgentState
from agentrt.errors import BudgetExceeded
from agentrt.middleware import (
    Budget,
    BudgetMiddleware,
    BudgetStore,
    MiddlewareBase,
    RedisBudgetStore,
    SQLiteBudgetStore,
)
from agentrt.model import ScriptedChatModel
from tests.middleware.budget.helpers import answer


class Tell(MiddlewareBase):
    """Innermost: says that a call begins."""

    async def on_model_call(self, agent: Any, input_kwargs: Any, next_handler: Any) -> Any:
        os.write(1, b"begin\n")
        await anyio.sleep(0.001)
        return await next_handler()


async def main(address: str, prefix: str, limit: int) -> None:
    kind, _, place = address.partition(":")
    store: BudgetStore = SQLiteBudgetStore(place) if kind == "sqlite" else RedisBudgetStore(place, prefix=prefix)
    budget = BudgetMiddleware(owner=Budget(model_calls=limit, per=1e9), owner_id="ann", store=store)
    agent = Agent("a", model=ScriptedChatModel([answer(7)] * 10_000), middlewares=[budget, Tell()])
    reasons: set[Any] = set()

    async def converse() -> None:
        while "exceed_budget" not in reasons:
            try:
                reasons.add((await agent.with_state(AgentState()).reply("go")).finished_reason)
            except BudgetExceeded:  # the store was too slow, and nothing begins for a while
                await anyio.sleep(0.2)

    async with anyio.create_task_group() as group:
        for _ in range(3):
            group.start_soon(converse)
    os.write(1, f"ended {sorted(reasons)}\n".encode())


if __name__ == "__main__":
    anyio.run(main, sys.argv[1], sys.argv[2], int(sys.argv[3]), backend=sys.argv[4])
