"""What a plan, a memory and knowledge add to requests is seen by the layers that look at requests."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

from agentrt import Agent, Msg
from agentrt.errors import BudgetExceeded, MiddlewareConfigError
from agentrt.formatter import format_openai
from agentrt.memory import LongTermMemory
from agentrt.middleware import (
    Budget,
    BudgetMiddleware,
    CacheMiddleware,
    CompressionMiddleware,
    LongTermMemoryMiddleware,
    MiddlewareBase,
    PlanNotebook,
    RAGMiddleware,
    RedactionMiddleware,
)
from agentrt.model import ScriptedChatModel
from agentrt.rag import Document, KnowledgeBase, SQLiteTextStore
from tests.middleware.additions.assistant import blocks_of
from tests.middleware.plan.helpers import call, create, start

INNER: list[Callable[[], MiddlewareBase]] = [
    CompressionMiddleware,
    RedactionMiddleware,
    CacheMiddleware,
    lambda: BudgetMiddleware(reply=Budget(tokens=1_000_000)),
]


async def additions(secret: str = "ann@example.org") -> list[MiddlewareBase]:
    memory = LongTermMemory(SQLiteTextStore(":memory:"))
    await memory.record([Msg("user", f"The office writes to {secret}.", "user")], owner="ann", key="earlier")
    knowledge = KnowledgeBase("handbook", "How we work.", SQLiteTextStore(":memory:"))
    await knowledge.add(Document("office", f"The office is {secret}."))
    return [
        LongTermMemoryMiddleware(memory, owner="ann", mode="static_control"),
        RAGMiddleware(knowledge, "static"),
        PlanNotebook(plan_to_hint=lambda plan: f"Ask {secret}."),
    ]


def agent_of(layers: list[MiddlewareBase], *script: Any, **options: Any) -> Agent:
    return Agent("a", "You help.", ScriptedChatModel(list(script)), middlewares=layers, **options)


@pytest.mark.parametrize("inner", INNER)
async def test_what_adds_stands_outside_of_what_looks(inner: Callable[[], MiddlewareBase]) -> None:
    layers = await additions()
    agent_of([*layers, inner()])
    for layer in layers:
        with pytest.raises(MiddlewareConfigError, match=f"{type(layer).__name__} must wrap {type(inner()).__name__}"):
            agent_of([inner(), layer])


async def test_redaction_covers_all_that_is_added() -> None:
    agent = agent_of([*await additions(), RedactionMiddleware()], "Yes.")
    await agent.reply("Where is the office?")
    added = blocks_of(agent.model.calls[0].messages)  # type: ignore[attr-defined]
    assert set(added) == {"long_term_memory", "knowledge", "plan"}
    assert "ann@example.org" not in str(added)


async def test_a_budget_counts_all_that_is_added() -> None:
    small, script = BudgetMiddleware(reply=Budget(tokens=100), on_exceed="raise"), ([call("unknown")], "Yes.")
    await agent_of([small], *script).reply("Where is the office?")
    with pytest.raises(BudgetExceeded):
        await agent_of([*await additions(), small], *script).reply("Where is the office?")


async def test_a_cache_tells_requests_apart_by_what_is_added() -> None:
    cache = CacheMiddleware()
    for secret, answer in (("one", "1"), ("two", "2"), ("one", "unused")):
        agent = agent_of([*await additions(secret), cache], answer)
        reply = await agent.reply("Where is the office?")
        assert reply.get_text_content() == {"one": "1", "two": "2"}[secret]


async def test_the_request_before_the_hint_only_grows() -> None:
    layers = [*(await additions())[:2], PlanNotebook()]
    agent = agent_of(layers, [create("a", "b")], [start(0)], [call("view_historical_plans")], "Yes.")
    await agent.reply("Where is the office?")
    requests = [format_openai(request.messages) for request in agent.model.calls]  # type: ignore[attr-defined]
    before = [str(request[:-1]).removesuffix("]") for request in requests]
    assert all(later.startswith(earlier) for earlier, later in pairwise(before))
    assert len({str(request[-1]) for request in requests}) == 3
    assert blocks_of(agent.state.context) == {}
