"""Time every model call with a middleware around `on_model_call`."""
# mypy: disable-error-code="no-untyped-def"

import asyncio
import time

from agentrt import Agent
from agentrt.message import Msg
from agentrt.middleware import MiddlewareBase
from agentrt.model import ScriptedChatModel
from agentrt.types import JSONSchema


class TimingMiddleware(MiddlewareBase):
    async def on_model_call(self, agent, input_kwargs, next_handler):
        model_name = input_kwargs["current_model"].model
        start = time.time()

        result = await next_handler()

        elapsed = time.time() - start
        print(f"[timing] {agent.name}{model_name}: {elapsed:.2f}s")
        return result


async def slow_answer(messages: list[Msg], tools: list[JSONSchema] | None) -> str:
    await asyncio.sleep(0.05)
    return "Good things take time."


async def main() -> None:
    # A streaming model returns as soon as its answer starts; any other when its answer is complete.
    model = ScriptedChatModel([slow_answer, "This one was quick."], stream=False)
    agent = Agent(name="assistant", model=model, middlewares=[TimingMiddleware()])
    for question in ("How are you?", "And now?"):
        msg = await agent.reply(question)
        print(msg.get_text_content())


if __name__ == "__main__":
    asyncio.run(main())
