"""Switch to another model when the first one fails: a middleware that calls `next_handler` twice."""
# mypy: disable-error-code="no-untyped-call, no-untyped-def"

import asyncio

from agentrt import Agent
from agentrt.errors import Transient
from agentrt.middleware import MiddlewareBase
from agentrt.model import ScriptedChatModel


class ModelFallbackMiddleware(MiddlewareBase):
    def __init__(self, fallback_model):
        self._fallback = fallback_model

    async def on_model_call(self, agent, input_kwargs, next_handler):
        try:
            return await next_handler()
        except Exception as e:  # noqa: BLE001  # whatever went wrong, the other model may do better
            print(f"Primary model failed: {e}, switching to fallback")
            return await next_handler(
                current_model=self._fallback,
            )


async def main() -> None:
    primary = ScriptedChatModel([Transient("connection refused")], model="primary")
    fallback = ScriptedChatModel(["Hello from the other model."], model="fallback")
    agent = Agent(name="assistant", model=primary, middlewares=[ModelFallbackMiddleware(fallback)])
    msg = await agent.reply("Hello")
    print(msg.get_text_content())


if __name__ == "__main__":
    asyncio.run(main())
