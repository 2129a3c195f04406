"""Keep a minimum interval between model calls, for any number of replies."""

import asyncio
import itertools
import time

from agentrt import Agent, AgentState
from agentrt.middleware import RateLimitMiddleware
from agentrt.model import ScriptedChatModel


async def main() -> None:
    model = ScriptedChatModel(itertools.repeat("Done."))
    agent = Agent(name="assistant", model=model, middlewares=[RateLimitMiddleware(min_interval=0.2)])
    start = time.monotonic()

    async def run(number: int) -> None:
        msg = await agent.with_state(AgentState()).reply(f"Task {number}")
        print(f"{time.monotonic() - start:.1f} s: {msg.get_text_content()}")

    await asyncio.gather(*(run(number) for number in range(1, 4)))


if __name__ == "__main__":
    asyncio.run(main())
