"""A program that replies until its budget asks, and then kills itself; its arguments are a folder and a backend."""

import os
import signal
import sys

import anyio

from agentrt import Agent
from agentrt.middleware import Budget, BudgetMiddleware, SQLiteBudgetStore
from agentrt.model import ScriptedChatModel
from agentrt.state import FileStateStore
from tests.loop.helpers import add
from tests.middleware.budget.helpers import calling


def make_agent(folder: str, *tokens: int) -> Agent:
    owner = Budget(tokens=1_000, per=1e9)
    store = SQLiteBudgetStore(f"{folder}/budget.db")
    budget = BudgetMiddleware(
        conversation=Budget(tokens=100),
        owner=owner,
        owner_id="ann",
        store=store,
        on_exceed="ask",
        reply=Budget(seconds=60),
    )
    script = [calling(spent, number) for number, spent in enumerate(tokens)]
    states = FileStateStore(folder)
    return Agent("a", model=ScriptedChatModel([*script, "done"]), tools=[add], middlewares=[budget], state_store=states)


async def main(folder: str) -> None:
    agent = make_agent(folder, 60, 60)
    agent.state.session_id = "parked"
    await agent.reply("go")
    assert agent.waiting() is not None
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    anyio.run(main, sys.argv[1], backend=sys.argv[2])
