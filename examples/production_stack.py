"""The layers of an agent in production, outermost first: the reasons for the order, and the error for a wrong one."""

import asyncio

from agentrt import Agent, AgentState
from agentrt.errors import MiddlewareConfigError, Transient
from agentrt.message import ToolCallBlock
from agentrt.middleware import (
    Budget,
    BudgetMiddleware,
    CacheMiddleware,
    CircuitBreakerMiddleware,
    GuardrailMiddleware,
    HumanApprovalMiddleware,
    MiddlewareBase,
    ModelFallbackMiddleware,
    RateLimitMiddleware,
    RedactionMiddleware,
    RetryMiddleware,
    TimeoutMiddleware,
    ToolResultLimitMiddleware,
    TracingMiddleware,
)
from agentrt.model import ScriptedChatModel


async def find_order(number: int) -> str:
    """Find an order."""
    return f"Order {number} is on its way to eve@example.com. " + "It was packed with care. " * 100


def no_promises(text: str, agent: Agent) -> str | None:
    return "promise no date" if "tomorrow" in text else None


def layers() -> list[MiddlewareBase]:
    return [
        TracingMiddleware(),
        ToolResultLimitMiddleware(max_chars=1_000, head=200, tail=0),
        GuardrailMiddleware(output=[no_promises], on_trip="again"),
        HumanApprovalMiddleware(["refund_*"]),
        BudgetMiddleware(reply=Budget(tokens=50_000)),
        RedactionMiddleware(),
        CacheMiddleware(),
        ModelFallbackMiddleware(ScriptedChatModel([], model="spare")),
        RetryMiddleware(initial_delay=0),
        CircuitBreakerMiddleware(),
        RateLimitMiddleware(requests_per_minute=600),
        TimeoutMiddleware(total=60),
    ]


async def main() -> None:
    call = [ToolCallBlock("1", "find_order", '{"number": 7}')]
    model = ScriptedChatModel([Transient("503"), call, "It comes tomorrow.", "It is on its way."])
    agent = Agent("shop", model=model, tools=[find_order], middlewares=layers())
    print(agent.explain())
    for _ in range(2):  # the second conversation is answered from the cache
        message = await agent.with_state(AgentState()).reply("Where is order 7? I am bob@example.com.")
        print(f"{message.get_text_content()} ({len(model.calls)} requests)")
    swapped = layers()
    swapped[5], swapped[6] = swapped[6], swapped[5]
    try:
        Agent("shop", model=model, middlewares=swapped)
    except MiddlewareConfigError as error:
        print(error)


if __name__ == "__main__":
    asyncio.run(main())
