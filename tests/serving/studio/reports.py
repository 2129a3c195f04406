"""An agent whose answers are right where its layer makes them loud, and reports of evaluations of it."""

from typing import Any

from agentrt import Agent, MiddlewareBase
from agentrt.evaluation import Case, Dataset, Report, contains, evaluate
from agentrt.model import ScriptedChatModel
from agentrt.runs import RunRecorder
from agentrt.state import InMemoryStateStore

CASES = [Case("Where is it?", name="fails", labels={"kind": "order"}), Case("Hello", name="passes")]


class Loud(MiddlewareBase):
    inherited = False

    async def on_system_prompt(self, agent, current_prompt):
        return f"{current_prompt} Shout."


def make_agent(
    store: InMemoryStateStore | None = None, *, greeting: str = "HELLO", other: str = "I do not know."
) -> Agent:
    def answer(messages: Any, _: Any) -> str:
        is_loud = "Shout" in (messages[0].get_text_content() or "")
        return greeting if is_loud and messages[-1].get_text_content() == "Hello" else other

    store = InMemoryStateStore()
    layers = [RunRecorder(store, prices={"scripted": (1.0, 2.0)}), Loud()]
    return Agent("helper", "You help.", ScriptedChatModel([answer] * 99), middlewares=layers, state_store=store)


async def make_report(agent: Agent, name: str = "orders", cases: Any = CASES, *, ablate: bool = False) -> Report:
    assert agent.state_store is not None
    async with agent.state_store:  # ends the thread that writes its runs, which waits a second for more
        return await evaluate(agent, Dataset(name, cases, [contains("HELLO")]), repeats=2, ablate=ablate)
