"""The rich floor: the loop written by hand, once it has events, ids, validated arguments and closed streams."""

import asyncio
import sys
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from itertools import cycle
from time import time
from typing import Any

from benchmarks import rich_floor
from benchmarks.floor import Chunk, ToolCall, Values
from benchmarks.peers import script
from benchmarks.peers.peer import PeerBase

Conversation = tuple[rich_floor.Loop, list[rich_floor.Message]]


class Model:
    def __init__(self, answers: Sequence[Chunk], chunks: Sequence[Chunk] = (), seconds: float = 0.0):
        self._answers = cycle(answers)
        self._chunks = chunks
        self._seconds = seconds
        self.request: list[rich_floor.Message] = []

    async def __call__(
        self, messages: list[rich_floor.Message], tools: list[dict[str, Any]]
    ) -> Chunk | AsyncGenerator[Chunk, None]:
        self.request = messages
        if self._seconds:
            await asyncio.sleep(self._seconds)
        return self._stream() if self._chunks else next(self._answers)

    async def _stream(self) -> AsyncGenerator[Chunk, None]:
        for chunk in self._chunks:
            yield chunk


async def pass_call(values: Values, next_handler: Any) -> Any:
    return await next_handler(**values)


async def pass_tool(values: Values, next_handler: Any) -> AsyncGenerator[Any, None]:
    async with aclosing(next_handler(**values)) as items:
        async for item in items:
            yield item


async def pass_stream(values: Values, next_handler: Any) -> AsyncGenerator[Any, None]:
    async with aclosing(next_handler(**values)) as items:
        async for item in items:
            yield item


class Peer(PeerBase):
    layers = ((sys.modules[__name__], "pass_call"), (sys.modules[__name__], "pass_tool"))
    stream_layers = ((sys.modules[__name__], "pass_stream"),)

    def make_model(self, rounds: int = 0, seconds: float = 0.0) -> Model:
        calls = [Chunk("", [ToolCall(id, "add", script.ARGUMENTS)]) for id in script.call_ids(rounds)]
        return Model([*calls, Chunk(script.ANSWER)], seconds=seconds)

    def make_streaming_model(self) -> Model:
        return Model([], [Chunk(script.PIECE) for _ in range(script.DELTAS)])

    def make_agent(self, model: Model, tools: Sequence[script.Tool] = (), layers: int = 0) -> rich_floor.Loop:
        return rich_floor.Loop(
            model,
            [rich_floor.Tool(tool) for tool in tools],
            around_call=[pass_call] * layers,
            around_tool=[pass_tool] * layers,
        )

    def make_streaming_agent(self, model: Model, layers: int = 0) -> rich_floor.Loop:
        return rich_floor.Loop(model, around_stream=[pass_stream] * layers)

    async def open_conversation(self, agent: rich_floor.Loop, held: int = 0) -> Conversation:
        user, assistant = _message("user", script.QUESTION), _message("assistant", script.ANSWER)
        return agent, [SYSTEM, *[user, assistant] * (held // 2)]

    async def take_turn(self, conversation: Conversation) -> str:
        loop, history = conversation
        return (await loop.reply(history, script.QUESTION)).blocks[-1].text

    async def take_first_turn(self, agent: rich_floor.Loop) -> str:
        return (await agent.reply([SYSTEM], script.QUESTION)).blocks[-1].text

    async def stream_first_turn(self, agent: rich_floor.Loop) -> tuple[int, str]:
        count = 0
        history = [SYSTEM]
        async with aclosing(agent.stream(history, script.QUESTION)) as events:
            async for event in events:
                if type(event) is rich_floor.TextDelta:
                    count += 1
        return count, history[-1].blocks[-1].text

    def results(self, model: Model) -> list[tuple[str, str]]:
        blocks = [block for message in model.request for block in message.blocks]
        return [(block.id, block.text) for block in blocks if block.type == "tool_result"]


def _message(role: Any, text: str) -> rich_floor.Message:
    return rich_floor.Message(role, role, [rich_floor.Block(role, "text", text)], time())


SYSTEM = _message("system", script.SYSTEM_PROMPT)
