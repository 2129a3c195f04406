"""Every shipped middleware keeps the contract of the hooks in all situations of the kit."""

import copy
from itertools import repeat

import pytest

import agentrt.middleware
from agentrt import Agent
from agentrt.errors import RateLimited
from agentrt.middleware import (
    Budget,
    BudgetMiddleware,
    HookMiddleware,
    MiddlewareBase,
    RateLimitMiddleware,
    UsageMiddleware,
)
from agentrt.testing import ScriptedChatModel, check_middleware
from tests.middleware.shipped import SHIPPED, budget

EACH = pytest.mark.parametrize("make", SHIPPED.values(), ids=[cls.__name__ for cls in SHIPPED])


@EACH
async def test_an_agent_with_each_can_be_copied_after_a_reply_too(make):
    agent = Agent("a", model=ScriptedChatModel(repeat("Hello.")), middlewares=[make()])
    for _ in range(2):
        copied = copy.deepcopy(agent)
        assert (await copied.reply("Hi.")).get_text_content() == "Hello."
        assert copied.middlewares[0] is not agent.middlewares[0]
        await agent.reply("Hi.")
    assert len(agent.state.context) == 4


def test_a_copy_of_usage_counts_for_itself():
    usage = UsageMiddleware()
    boss = Agent("boss", model=ScriptedChatModel(repeat("Hello.")), middlewares=[usage])
    boss.run_sync("Hi.")
    copied = copy.deepcopy(boss)
    copied.run_sync("Hi.")
    assert usage.total().calls == 1
    assert [layer.total().calls for layer in copied.middlewares] == [2]


async def test_copies_of_an_agent_share_its_rate_limit():
    limit = RateLimitMiddleware(requests_per_minute=1, max_wait=0)
    agent = Agent("a", model=ScriptedChatModel(repeat("Hello.")), middlewares=[limit])
    await agent.reply("Hi.")
    with pytest.raises(RateLimited):
        await copy.deepcopy(agent).reply("Hi.")


@pytest.mark.slow
@pytest.mark.parametrize("layer", HookMiddleware.__subclasses__())
async def test_hook_middlewares_keep_the_contract(layer):
    def pre(agent, kwargs):
        return dict(kwargs)

    def post(agent, kwargs, output):
        return output

    await check_middleware(lambda: layer({"one": pre}, {"one": post}), faults=[])


@EACH
@pytest.mark.slow
async def test_each_shipped_middleware_keeps_the_contract(make):
    await check_middleware(make, every=4)


@pytest.mark.slow
@pytest.mark.parametrize(
    "make",
    [
        lambda: budget(reserve=True),
        lambda: budget(on_exceed="ask"),
        lambda: budget(on_exceed="raise", warn_at=0, weights=(1, 5, 0)),
        lambda: BudgetMiddleware(reply=Budget(model_calls=2, tool_calls=1)),
        # Of a conversation, it would refuse to compress the history between two replies, too.
        lambda: BudgetMiddleware(reply=Budget(tokens=10, seconds=10), warn_at=None),
    ],
    ids=["reserving", "asking", "raising", "calls used up", "tokens used up"],
)
async def test_budgets_keep_the_contract(make):
    await check_middleware(make, faults=["cancel"], every=3)


@pytest.mark.slow
async def test_the_kit_passes_with_max_concurrency_of_one():
    await check_middleware(lambda: RateLimitMiddleware(max_concurrency=1), faults=[])


def test_all_shipped_middlewares_are_tried():
    shipped = (getattr(agentrt.middleware, name) for name in agentrt.middleware.__all__)
    layers = {value for value in shipped if isinstance(value, type) and issubclass(value, MiddlewareBase)}
    assert layers - {MiddlewareBase} == set(SHIPPED)
