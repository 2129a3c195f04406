"""Reservations: what a call may take is kept for it while it runs, and given back whatever becomes of it."""

import asyncio
import json
from typing import Any

import pytest

from agentrt.middleware import Budget, BudgetMiddleware, MemoryBudgetStore, MiddlewareBase
from agentrt_middleware.budget.owners import OwnerAccounts
from tests.loop.helpers import agent_of
from tests.middleware.budget.helpers import answer
from tests.middleware.budget.test_stores import Failing, ask, owned


class Gated(MemoryBudgetStore):
    """A store whose `waits` has counted, and answers once it is let go."""

    def __init__(self, waits: str) -> None:
        super().__init__()
        self.waits = waits
        self.counted, self.let_go = asyncio.Event(), asyncio.Event()

    async def reserve(self, *arguments: Any) -> Any:
        answer = await super().reserve(*arguments)
        await self._wait("reserve")
        return answer

    async def settle(self, *arguments: Any) -> None:
        await super().settle(*arguments)
        await self._wait("settle")

    async def _wait(self, what: str) -> None:
        if what == self.waits:
            self.counted.set()
            await self.let_go.wait()


@pytest.mark.parametrize(("waits", "spent"), [("reserve", 0), ("settle", 60)])
def test_a_task_that_asyncio_cancels_leaves_no_reservation(waits: str, spent: int) -> None:
    async def main() -> None:
        store = Gated(waits)
        agent = owned(store, [answer(60)], limit=10_000, reserve=True)
        task = asyncio.create_task(ask(agent))
        await store.counted.wait()
        task.cancel()
        await asyncio.sleep(0)
        task.cancel()  # as often as it likes
        await asyncio.sleep(0)
        store.let_go.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        await owners_of(agent).tell()
        [(account, _)] = store._accounts.values()
        assert account["tokens"] == spent

    asyncio.run(main())


async def test_a_resting_store_learns_later_what_to_give_back() -> None:
    store = Failing("work")

    class Break(MiddlewareBase):
        async def on_model_call(self, agent: Any, input_kwargs: Any, next_handler: Any) -> Any:
            response = await next_handler()
            store.does = "raise"
            owners.add("another", {"tokens": 5})
            await owners.tell()  # it has failed for another reply
            return response

    agent = owned(store, [answer(60)], limit=10_000, reserve=True)
    owners = owners_of(agent)
    agent = agent_of([answer(60)], middlewares=[*agent.middlewares, Break()])
    await agent.reply("go")
    store.does = "work"
    owners._guard._down_until = 0.0
    await owners.tell()
    spent = {name: account["tokens"] for name, (account, _) in store.real._accounts.items()}
    assert spent.pop("another") == 5
    assert list(spent.values()) == [60]


async def test_a_conversation_that_is_saved_holds_no_estimate() -> None:
    saved: list[Any] = []

    class Save(MiddlewareBase):
        async def on_model_call(self, agent: Any, input_kwargs: Any, next_handler: Any) -> Any:
            saved.append(json.loads(agent.state.model_dump_json())["middleware_data"]["BudgetMiddleware"])
            return await next_handler()

    budget = BudgetMiddleware(conversation=Budget(tokens=10_000), reserve=True)
    agent = agent_of([answer(30)], middlewares=[budget, Save()])
    await agent.reply("go")
    assert [data["conversation"] for data in saved] == [{"model_calls": 1}]
    assert agent.state_of(budget)["conversation"]["tokens"] == 30


@pytest.mark.parametrize(
    ("settings", "ends"),
    [
        ({}, "completed"),
        ({"max_tokens": 5_000}, "completed"),
        ({"max_tokens": 20_000}, "exceed_budget"),  # it may write as much
        ({"max_tokens": 20_000, "max_output_tokens": 500}, "completed"),
    ],
)
async def test_as_much_is_reserved_as_a_model_may_write(settings: dict[str, int], ends: str) -> None:
    agent = agent_of([answer(30)], middlewares=[BudgetMiddleware(conversation=Budget(tokens=10_000), reserve=True)])
    agent.model.settings = settings
    assert (await agent.reply("go")).finished_reason == ends


def owners_of(agent: Any) -> OwnerAccounts:
    owners: OwnerAccounts = agent.middlewares[0]._scopes.owners
    return owners
