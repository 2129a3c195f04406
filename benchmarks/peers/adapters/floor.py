"""The loop written by hand, which is what all others are compared with."""

import asyncio
import sys
from collections.abc import AsyncIterator, Sequence
from itertools import cycle
from typing import Any

from benchmarks import floor
from benchmarks.peers import script
from benchmarks.peers.peer import PeerBase

SYSTEM = floor.Message("system", script.SYSTEM_PROMPT)
Conversation = tuple[floor.Loop, list[floor.Message]]


class Model:
    def __init__(self, answers: Sequence[floor.Chunk], chunks: Sequence[floor.Chunk] = (), seconds: float = 0.0):
        self._answers = cycle(answers)
        self._chunks = chunks
        self._seconds = seconds
        self.request: list[floor.Message] = []

    async def __call__(
        self, messages: list[floor.Message], tools: list[dict[str, Any]]
    ) -> floor.Chunk | AsyncIterator[floor.Chunk]:
        self.request = messages
        if self._seconds:
            await asyncio.sleep(self._seconds)
        return self._stream() if self._chunks else next(self._answers)

    async def _stream(self) -> AsyncIterator[floor.Chunk]:
        for chunk in self._chunks:
            yield chunk


async def pass_call(values: floor.Values, next_handler: Any) -> Any:
    return await next_handler(**values)


async def pass_tool(values: floor.Values, next_handler: Any) -> AsyncIterator[Any]:
    async for item in next_handler(**values):
        yield item


async def pass_stream(values: floor.Values, next_handler: Any) -> AsyncIterator[Any]:
    async for item in next_handler(**values):
        yield item


class Peer(PeerBase):
    layers = ((sys.modules[__name__], "pass_call"), (sys.modules[__name__], "pass_tool"))
    stream_layers = ((sys.modules[__name__], "pass_stream"),)

    def make_model(self, rounds: int = 0, seconds: float = 0.0) -> Model:
        calls = [floor.Chunk("", [floor.ToolCall(id, "add", script.ARGUMENTS)]) for id in script.call_ids(rounds)]
        return Model([*calls, floor.Chunk(script.ANSWER)], seconds=seconds)

    def make_streaming_model(self) -> Model:
        return Model([], [floor.Chunk(script.PIECE) for _ in range(script.DELTAS)])

    def make_agent(self, model: Model, tools: Sequence[script.Tool] = (), layers: int = 0) -> floor.Loop:
        return floor.Loop(
            model,
            [floor.Tool(tool.__name__, tool, {"a": int, "b": int}) for tool in tools],
            around_call=[pass_call] * layers,
            around_tool=[pass_tool] * layers,
        )

    def make_streaming_agent(self, model: Model, layers: int = 0) -> floor.Loop:
        return floor.Loop(model, around_stream=[pass_stream] * layers)

    async def open_conversation(self, agent: floor.Loop, held: int = 0) -> Conversation:
        user, assistant = floor.Message("user", script.QUESTION), floor.Message("assistant", script.ANSWER)
        return agent, [SYSTEM, *[user, assistant] * (held // 2)]

    async def take_turn(self, conversation: Conversation) -> str:
        loop, history = conversation
        return (await loop.reply(history, script.QUESTION)).content

    async def take_first_turn(self, agent: floor.Loop) -> str:
        return (await agent.reply([SYSTEM], script.QUESTION)).content

    async def stream_first_turn(self, agent: floor.Loop) -> tuple[int, str]:
        count = 0
        item: floor.Chunk | floor.Message | None = None
        async for item in agent.stream([SYSTEM], script.QUESTION):
            if type(item) is floor.Chunk:
                count += 1
        return count, item.content if isinstance(item, floor.Message) else ""

    def results(self, model: Model) -> list[tuple[str, str]]:
        return [(msg.tool_call_id or "", msg.content) for msg in model.request if msg.role == "tool"]
