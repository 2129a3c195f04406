"""A process of its own that reads an endless answer, and so holds the only place of a shared limit.

It prints a line for each piece and for each log record.

usage: python rate_limit_holder.py BACKEND REDIS_URL KEY LEASE_SECONDS
"""

import logging
import sys
from collections.abc import AsyncGenerator, Sequence
from typing import Any

import anyio

from agentrt import Agent
from agentrt.event import TextBlockDeltaEvent
from agentrt.message import TextBlock
from agentrt.middleware import RateLimitMiddleware, RedisLimitStore
from agentrt.model import ChatModelBase, ChatResponse


class Endless(ChatModelBase):
    def __init__(self) -> None:
        super().__init__(model="endless", stream=True)

    async def _call(self, messages: Sequence[Any], tools: Any, tool_choice: Any) -> AsyncGenerator[ChatResponse, None]:
        return self._words()

    async def _words(self) -> AsyncGenerator[ChatResponse, None]:
        while True:
            await anyio.sleep(0.01)
            yield ChatResponse([TextBlock("word ")], is_last=False)


async def main(url: str, key: str, lease_seconds: float) -> None:
    layer = RateLimitMiddleware(max_concurrency=1, key=key, store=RedisLimitStore(url, lease_seconds))
    async with Agent("holder", model=Endless(), middlewares=[layer]).reply_stream("go") as events:
        async for event in events:
            if isinstance(event, TextBlockDeltaEvent):
                sys.stdout.write("piece\n")
                sys.stdout.flush()


if __name__ == "__main__":
    logging.basicConfig(stream=sys.stdout, format="%(message)s")
    anyio.run(main, sys.argv[2], sys.argv[3], float(sys.argv[4]), backend=sys.argv[1])
