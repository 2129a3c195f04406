"""The calls that recording takes of a reply, in proportion to the reply itself: a busy machine cannot bend that."""

import sys
from collections.abc import AsyncIterator
from types import FrameType
from typing import Any

import pytest

from agentrt import Agent, AgentState, MiddlewareBase
from agentrt.message import TextBlock
from agentrt.model import ChatModelBase, ChatResponse, ChatUsage
from agentrt.runs import RunRecorder
from agentrt.state import InMemoryStateStore
from tests.runs.conftest import call, find


class Model(ChatModelBase):
    """Calls a tool, and then answers in twenty pieces."""

    def __init__(self) -> None:
        super().__init__(model="m", stream=True)

    async def _call(self, messages: Any, tools: Any, tool_choice: Any) -> AsyncIterator[ChatResponse]:
        return self._stream(len(messages))

    async def _stream(self, messages: int) -> AsyncIterator[ChatResponse]:
        usage = ChatUsage(10, 10)
        if messages == 2:
            yield ChatResponse([call("c1")], usage=usage)
            return
        for _ in range(20):
            yield ChatResponse([TextBlock("word ")], is_last=False)
        yield ChatResponse([TextBlock("word " * 20)], usage=usage)


class PassesOn(MiddlewareBase):
    inherited = False

    def __init__(self, key: str) -> None:
        self.key = key

    async def on_reply(self, agent, input_kwargs, next_handler):
        async for item in next_handler():
            yield item

    async def on_reasoning(self, agent, input_kwargs, next_handler):
        async for item in next_handler():
            yield item

    async def on_model_call(self, agent, input_kwargs, next_handler):
        return await next_handler()


async def count_calls(layers: int, *recorders: RunRecorder) -> int:
    """Return the calls of functions in one turn, in the thread of the reply."""
    passing = [PassesOn(str(number)) for number in range(layers)]
    agent = Agent("a", "You find.", Model(), [find], [*recorders, *passing])
    count = 0

    def see(frame: FrameType, event: str, _: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    for is_counted in (False, True):  # the first turn imports and compiles
        turn = agent.with_state(AgentState(session_id=f"s{is_counted}"))
        sys.setprofile(see if is_counted else None)
        try:
            async with turn.reply_stream("Find it") as events:
                async for _ in events:
                    pass
        finally:
            sys.setprofile(None)
    return count


@pytest.mark.parametrize(("layers", "most"), [(0, 1.37), (5, 2.03)])
async def test_recording_costs_a_part_of_the_turn(store: InMemoryStateStore, layers: int, most: float):
    plain = await count_calls(layers)
    recorded = await count_calls(layers, RunRecorder(store))
    assert recorded / plain < most
