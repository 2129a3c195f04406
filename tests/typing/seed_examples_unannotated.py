# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls
# pyright: standard
# ruff: noqa: BLE001, T201
"""The short examples that people bring along, word for word but for the package's name.

They have no annotations, which strict mode forbids in one's own code; whether their bodies and their overrides fit is
checked all the same.
"""

import asyncio
import time
from datetime import datetime

from agentrt import Agent
from agentrt.middleware import MiddlewareBase
from agentrt.model import ScriptedChatModel


class TimingMiddleware(MiddlewareBase):
    async def on_model_call(self, agent, input_kwargs, next_handler):
        model_name = input_kwargs["current_model"].model
        start = time.time()

        result = await next_handler()

        elapsed = time.time() - start
        print(f"[timing] {agent.name} → {model_name}: {elapsed:.2f}s")
        return result


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


class DynamicContextMiddleware(MiddlewareBase):
    def __init__(self, context_fn):
        self._context_fn = context_fn

    async def on_system_prompt(self, agent, current_prompt):
        context = self._context_fn()
        return f"{current_prompt}\n\n## Current Context\n{context}"


class ModelFallbackMiddleware(MiddlewareBase):
    def __init__(self, fallback_model):
        self._fallback = fallback_model

    async def on_model_call(self, agent, input_kwargs, next_handler):
        try:
            return await next_handler()
        except Exception as e:
            print(f"Primary model failed: {e}, switching to fallback")
            return await next_handler(current_model=self._fallback)


agent = Agent(
    name="assistant",
    system_prompt="You are a helpful assistant.",
    model=ScriptedChatModel(["Hello."]),
    middlewares=[
        TimingMiddleware(),
        RateLimitMiddleware(min_interval=0.5),
        ModelFallbackMiddleware(ScriptedChatModel(["Hello."])),
        DynamicContextMiddleware(lambda: f"Time: {datetime.now().isoformat()}"),
    ],
)
