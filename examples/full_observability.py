"""Watch a reply from four hooks at once: the whole reply, each round, each model call and each system prompt."""
# mypy: disable-error-code="type-arg"

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable

from agentrt import Agent
from agentrt.event import AgentEvent
from agentrt.message import Msg
from agentrt.middleware import MiddlewareBase
from agentrt.model import ChatResponse


class FullObservabilityMiddleware(MiddlewareBase):
    """Observes reply, reasoning, model_call and system_prompt."""

    async def on_reply(
        self,
        agent: Agent,
        # {"inputs": Msg | list[Msg] | UserConfirmResultEvent | ExternalExecutionResultEvent | None}
        input_kwargs: dict,
        next_handler: Callable[..., AsyncGenerator[AgentEvent | Msg, None]],
    ) -> AsyncGenerator[AgentEvent | Msg, None]:
        print(f"[reply] start for {agent.name}")
        async for item in next_handler(**input_kwargs):
            yield item
        print(f"[reply] end for {agent.name}")

    async def on_reasoning(
        self,
        agent: Agent,
        # {"tool_choice": ToolChoice | None}
        input_kwargs: dict,
        next_handler: Callable[..., AsyncGenerator[AgentEvent, None]],
    ) -> AsyncGenerator[AgentEvent, None]:
        print("[reasoning] start")
        async for event in next_handler(**input_kwargs):
            yield event
        print("[reasoning] end")

    async def on_model_call(
        self,
        agent: Agent,
        # {"messages": list[Msg], "tools": list[dict], "tool_choice": ToolChoice | None, "current_model": ChatModelBase}
        input_kwargs: dict,
        next_handler: Callable[..., Awaitable[ChatResponse | AsyncGenerator[ChatResponse, None]]],
    ) -> ChatResponse | AsyncGenerator[ChatResponse, None]:
        print(f"[model_call] {input_kwargs['current_model'].model}")
        result = await next_handler(**input_kwargs)
        print("[model_call] done")
        return result

    async def on_system_prompt(
        self,
        agent: Agent,
        current_prompt: str,
    ) -> str:
        print(f"[system_prompt] length={len(current_prompt)}")
        return current_prompt


def get_weather(city: str) -> str:
    """Tell the weather in a city."""
    return f"It is sunny in {city}."


async def main() -> None:
    agent = Agent(
        name="assistant",
        system_prompt="You are a helpful assistant.",
        model="rules",
        tools=[get_weather],
        middlewares=[FullObservabilityMiddleware()],
    )
    msg = await agent.reply("What is the weather in Beijing?")
    print(msg.get_text_content())


if __name__ == "__main__":
    asyncio.run(main())
