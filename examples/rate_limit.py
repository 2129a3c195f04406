"""Keep a minimum interval between model calls, however many replies ask for one."""
# mypy: disable-error-code="no-untyped-def"

import asyncio
import itertools
import time

from agentrt import Agent
from agentrt.middleware import MiddlewareBase
from agentrt.model import ScriptedChatModel


class RateLimitMiddleware(MiddlewareBase):
    def __init__(self, min_interval: float = 1.0):
        self._last_call = 0.0
        self._min_interval = min_interval

    async def on_model_call(self, agent, input_kwargs, next_handler):
        now = time.time()
        wait = self._min_interval - (now - self._last_call)
        if wait > 0:
            await asyncio.sleep(wait)
        self._last_call = time.time()
        return await next_handler()


async def main() -> None:
    model = ScriptedChatModel(itertools.repeat("Done."))
    agent = Agent(name="assistant", model=model, middlewares=[RateLimitMiddleware(min_interval=0.2)])
    start = time.monotonic()
    for number in range(1, 4):
        msg = await agent.reply(f"Task {number}")
        print(f"{time.monotonic() - start:.1f} s: task {number}: {msg.get_text_content()}")


if __name__ == "__main__":
    asyncio.run(main())
