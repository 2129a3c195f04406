"""A process of its own that calls a server, through an agent, for as long as the shared rate limit lets it.

usage: python rate_limit_child.py BACKEND PORT REDIS_URL KEY
"""

import sys
from itertools import repeat
from time import monotonic
from typing import Any

import anyio

from agentrt import Agent
from agentrt.errors import RateLimitTimeout
from agentrt.middleware import RateLimitMiddleware, RedisLimitStore
from agentrt.model import ScriptedChatModel
from agentrt_middleware.stores import guard

guard._TIMEOUT = 30.0  # of a Redis that a busy machine keeps waiting, this process would count alone


async def main(port: int, url: str, key: str) -> None:
    async def call(messages: Any, tools: Any) -> str:
        async with await anyio.connect_tcp("127.0.0.1", port) as stream:
            await stream.send(repr(monotonic()).encode())  # a clock that all processes share
            await stream.receive()
        return "Done."

    layer = RateLimitMiddleware(0.04, requests_per_minute=30, max_wait=1.5, key=key, store=RedisLimitStore(url))
    agent = Agent("caller", model=ScriptedChatModel(repeat(call)), middlewares=[layer])
    try:
        for _ in range(60):
            await agent.reply("go")
    except RateLimitTimeout:
        pass


if __name__ == "__main__":
    anyio.run(main, int(sys.argv[2]), *sys.argv[3:], backend=sys.argv[1])
