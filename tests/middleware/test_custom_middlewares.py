"""Middlewares that users write first, compared with those that ship: the same results where theirs are right."""

import logging
from typing import Any

import anyio
import pytest

from agentrt import Agent, AgentState, Toolkit
from agentrt.errors import Rejected, Transient
from agentrt.message import TextBlock
from agentrt.middleware import (
    DynamicContextMiddleware,
    LoggingMiddleware,
    MiddlewareBase,
    ModelFallbackMiddleware,
    RateLimitMiddleware,
    TimingMiddleware,
)
from agentrt.model import ChatModelBase, ChatResponse, ScriptedChatModel
from tests.loop.helpers import add, call
from tests.middleware.fake_time import on_both_loops, play


class OwnTiming(MiddlewareBase):
    def __init__(self):
        self.seconds = []

    async def on_model_call(self, agent, input_kwargs, next_handler):
        start = anyio.current_time()
        result = await next_handler()
        self.seconds.append(anyio.current_time() - start)
        return result


class OwnRateLimit(MiddlewareBase):
    def __init__(self, min_interval=1.0):
        self.last_call = float("-inf")
        self.min_interval = min_interval

    async def on_model_call(self, agent, input_kwargs, next_handler):
        wait = self.min_interval - (anyio.current_time() - self.last_call)
        if wait > 0:
            await anyio.sleep(wait)
        self.last_call = anyio.current_time()
        return await next_handler()


class OwnContext(MiddlewareBase):
    def __init__(self, context_fn):
        self.context_fn = context_fn

    async def on_system_prompt(self, agent, current_prompt):
        return f"{current_prompt}\n\n## Current Context\n{self.context_fn()}"


class OwnFallback(MiddlewareBase):
    def __init__(self, fallback_model):
        self.fallback_model = fallback_model

    async def on_model_call(self, agent, input_kwargs, next_handler):
        try:
            return await next_handler()
        except Exception:  # noqa: BLE001  # as people write it
            return await next_handler(current_model=self.fallback_model)


class OwnObservability(MiddlewareBase):
    def __init__(self):
        self.lines = []

    async def on_reply(self, agent, input_kwargs, next_handler):
        self.lines.append("reply start")
        async for item in next_handler(**input_kwargs):
            yield item
        self.lines.append("reply end")

    async def on_reasoning(self, agent, input_kwargs, next_handler):
        self.lines.append("reasoning start")
        async for event in next_handler(**input_kwargs):
            yield event
        self.lines.append("reasoning end")

    async def on_model_call(self, agent, input_kwargs, next_handler):
        result = await next_handler(**input_kwargs)
        self.lines.append("model call")
        return result

    async def on_system_prompt(self, agent, current_prompt):
        self.lines.append(f"system prompt {len(current_prompt)}")
        return current_prompt


class Slow(ChatModelBase):
    """Takes two seconds to begin; when streamed, the rest takes three more."""

    def __init__(self, stream: bool) -> None:
        super().__init__(model="slow", stream=stream)
        self.starts: list[float] = []

    async def _call(self, messages: Any, tools: Any, tool_choice: Any) -> Any:
        self.starts.append(anyio.current_time())
        await anyio.sleep(2)
        return self._pieces() if self.stream else ChatResponse([TextBlock("Done.")])

    async def _pieces(self) -> Any:
        yield ChatResponse([TextBlock("Do", id="1")], is_last=False)
        await anyio.sleep(3)
        yield ChatResponse([TextBlock("Done.", id="1")])


@on_both_loops
@pytest.mark.parametrize(("stream", "own_says", "says"), [(False, 2, 2), (True, 2, 5)])
def test_timing_measures_the_same_and_a_stream_to_its_end(
    backend: str, stream: bool, own_says: float, says: float
) -> None:
    own, found = OwnTiming(), []
    for layer in (own, TimingMiddleware(found.append, clock=anyio.current_time)):
        play(backend, Agent("a", model=Slow(stream), middlewares=[layer]).reply, "go")
    assert own.seconds == [pytest.approx(own_says)]
    assert [timing.seconds for timing in found] == [pytest.approx(says)]


@on_both_loops
@pytest.mark.parametrize("layer", [OwnRateLimit, RateLimitMiddleware])
@pytest.mark.parametrize("at_once", [False, True])
def test_a_rate_limit_spaces_concurrent_calls_as_well(backend: str, layer: type[MiddlewareBase], at_once: bool) -> None:
    starts: list[float] = []

    async def answer(messages: Any, tools: Any) -> str:
        starts.append(anyio.current_time())
        return "Done."

    model = ScriptedChatModel([answer] * 4)

    async def main() -> None:
        agent = Agent("a", model=model, middlewares=[layer()])
        if not at_once:
            for _ in range(4):
                await agent.reply("go")
            return
        async with anyio.create_task_group() as group:
            for _ in range(4):
                group.start_soon(agent.with_state(AgentState()).reply, "go")

    play(backend, main)
    after = [round(start - starts[0], 3) for start in starts]
    assert after == ([0, 1, 1, 1] if at_once and layer is OwnRateLimit else [0, 1, 2, 3])


@pytest.mark.parametrize("layer", [OwnContext, DynamicContextMiddleware])
async def test_dynamic_context_makes_the_same_prompt(layer: Any) -> None:
    model = ScriptedChatModel(["Yes."])
    await Agent("a", "Be brief.", model, middlewares=[layer(lambda: "It rains.")]).reply("Is it raining?")
    assert model.calls[0].messages[0].get_text_content() == "Be brief.\n\n## Current Context\nIt rains."


@pytest.mark.parametrize("layer", [OwnFallback, ModelFallbackMiddleware])
@pytest.mark.parametrize(
    "failure",
    [
        Transient("no connection"),
        Rejected("quota"),
        ConnectionError("refused"),
        RuntimeError("broken"),
        ["Half ", Transient("cut")],
    ],
)
async def test_a_fallback_answers_when_a_model_fails_in_mid_stream(layer: Any, failure: Any) -> None:
    agent = Agent("a", model=ScriptedChatModel([failure]), middlewares=[layer(ScriptedChatModel(["Other answer."]))])
    if layer is OwnFallback and isinstance(failure, list):
        with pytest.raises(Transient):
            await agent.reply("go")
    else:
        assert (await agent.reply("go")).get_text_content() == "Other answer."


@pytest.mark.parametrize("fails", [False, True])
async def test_a_reply_is_observed_to_its_end_even_if_it_fails(fails: bool, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "agentrt")
    own = OwnObservability()
    script = [[call("1", "add", a=1, b=2)], Transient("no connection") if fails else "It is 3."]
    agent = Agent(
        "a", "Be brief.", ScriptedChatModel(script), Toolkit(tools=[add]), middlewares=[LoggingMiddleware(), own]
    )
    if fails:
        with pytest.raises(Transient):
            await agent.reply("go")
    else:
        await agent.reply("go")
    whole = ["reasoning start", "system prompt 9", "model call", "reasoning end"]
    assert own.lines == ["reply start", *whole, *(whole[:2] if fails else [*whole, "reply end"])]
    logged = [record.event for record in caplog.records if hasattr(record, "event")]
    assert logged[:3] == ["REPLY_START", "MODEL_CALL_END", "TOOL_RESULT_END"]
    assert logged[-1] == ("REPLY_FAILED" if fails else "REPLY_END")
