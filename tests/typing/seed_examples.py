# mypy: allow-any-generics
# pyright: standard
# ruff: noqa: T201, UP035
"""The annotated example that people bring along, word for word but for the package's name.

It writes `input_kwargs: dict` and takes its types from `typing`; both is what users copy, so both must pass.
"""

from typing import AsyncGenerator, Awaitable, Callable

from agentrt import Agent
from agentrt.event import AgentEvent
from agentrt.message import Msg
from agentrt.middleware import MiddlewareBase
from agentrt.model import ChatResponse


class FullObservabilityMiddleware(MiddlewareBase):
    """同时观察 reply、reasoning、model_call、system_prompt 四个位置。"""

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

    async def on_system_prompt(self, agent: Agent, current_prompt: str) -> str:
        print(f"[system_prompt] length={len(current_prompt)}")
        return current_prompt
