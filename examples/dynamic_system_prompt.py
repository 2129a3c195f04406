"""Tell the model something new each time: a middleware that adds to the system prompt."""
# mypy: disable-error-code="no-untyped-call, no-untyped-def"

import asyncio
from datetime import datetime

from agentrt import Agent
from agentrt.middleware import MiddlewareBase


class DynamicContextMiddleware(MiddlewareBase):
    def __init__(self, context_fn):
        self._context_fn = context_fn

    async def on_system_prompt(self, agent, current_prompt):
        context = self._context_fn()
        return f"{current_prompt}\n\n## Current Context\n{context}"


async def main() -> None:
    agent = Agent(
        name="assistant",
        system_prompt="You are a helpful assistant.",
        model="rules",  # it answers from such lines of the system prompt
        middlewares=[
            DynamicContextMiddleware(
                lambda: f"Time: {datetime.now().isoformat()}",
            ),
        ],
    )
    for _ in range(2):
        msg = await agent.reply("What time is it?")
        print(msg.get_text_content())


if __name__ == "__main__":
    asyncio.run(main())
