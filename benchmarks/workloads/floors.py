"""The workloads on the two floors. Each has its twin in `agents.py`, with the same script, tools and layers."""

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing
from itertools import cycle
from time import time
from typing import Any, get_type_hints

from benchmarks import floor, rich_floor
from benchmarks.workloads.script import (
    ANSWER,
    ARGUMENTS,
    DELTAS,
    PIECE,
    QUESTION,
    ROUNDS,
    SUM,
    SYSTEM_PROMPT,
    Workload,
    add,
    expect,
    make_functions,
)

__all__ = [
    "FloorChat",
    "FloorConstruct",
    "FloorModel",
    "FloorNew",
    "FloorStream",
    "RichChat",
    "RichConstruct",
    "RichNew",
    "RichStream",
]


class FloorModel:
    """Plays prebuilt answers round and round, or streams prebuilt chunks; both floors can ask it."""

    def __init__(self, answers: Sequence[floor.Chunk] = (), chunks: Sequence[floor.Chunk] = ()) -> None:
        self._answers = cycle(answers)
        self._chunks = chunks

    async def __call__(
        self, messages: list[Any], tools: list[dict[str, Any]]
    ) -> floor.Chunk | AsyncGenerator[floor.Chunk, None]:
        return self._pieces() if self._chunks else next(self._answers)

    async def _pieces(self) -> AsyncGenerator[floor.Chunk, None]:
        for chunk in self._chunks:
            yield chunk


def answers(rounds: int, calls: int = 1) -> list[floor.Chunk]:
    """Return what the model says in a reply of `rounds` rounds with `calls` tool calls each."""
    numbers = [range(number * calls, (number + 1) * calls) for number in range(rounds)]
    rounds_of_calls = [
        floor.Chunk("", [floor.ToolCall(f"call-{number}", "add", ARGUMENTS) for number in group]) for group in numbers
    ]
    return [*rounds_of_calls, floor.Chunk(ANSWER)]


async def pass_call(values: floor.Values, next_handler: Callable[..., Awaitable[Any]]) -> Any:
    """Pass a call on."""
    return await next_handler(**values)


async def pass_stream(values: floor.Values, next_handler: Callable[..., AsyncIterator[Any]]) -> AsyncIterator[Any]:
    """Pass each item of a stream on."""
    async for item in next_handler(**values):
        yield item


async def pass_closed_stream(
    values: floor.Values, next_handler: Callable[..., AsyncGenerator[Any, None]]
) -> AsyncGenerator[Any, None]:
    """Pass each item of a stream on, and close the stream."""
    async with aclosing(next_handler(**values)) as items:
        async for item in items:
            yield item


class FloorChat(Workload):
    """A reply in `rounds` rounds of `calls` tool calls each, then words; not streamed."""

    def __init__(
        self, rounds: int = ROUNDS, layers: int = 0, *, calls: int = 1, tool: Callable[..., Awaitable[str]] = add
    ) -> None:
        tools = [floor.Tool("add", tool, {"a": int, "b": int})] if rounds else []
        self._rounds, self._calls = rounds, calls
        self._history = [floor.Message("system", SYSTEM_PROMPT)]
        self._loop = floor.Loop(
            FloorModel(answers(rounds, calls)),
            tools,
            around_call=[pass_call] * layers,
            around_tool=[pass_stream] * layers,
        )

    async def __call__(self) -> None:
        del self._history[1:]
        answer = await self._loop.reply(self._history, QUESTION)
        if answer.content != ANSWER:
            expect(answer.content, ANSWER)

    def check(self) -> None:
        calls = self._calls
        roles = ["system", "user", *["assistant", *["tool"] * calls] * self._rounds, "assistant"]
        expect([message.role for message in self._history], roles)
        results = [(message.tool_call_id, message.content) for message in self._history if message.role == "tool"]
        expect(results, [(f"call-{number}", SUM) for number in range(self._rounds * calls)])


class RichChat(Workload):
    """The same on the rich floor."""

    def __init__(
        self, rounds: int = ROUNDS, layers: int = 0, *, calls: int = 1, tool: Callable[..., Awaitable[str]] = add
    ) -> None:
        self._rounds, self._calls = rounds, calls
        self._history = [system_message()]
        self._loop = rich_floor.Loop(
            FloorModel(answers(rounds, calls)),
            [rich_floor.Tool(tool)] if rounds else [],
            around_call=[pass_call] * layers,
            around_tool=[pass_closed_stream] * layers,
        )

    async def __call__(self) -> None:
        del self._history[1:]
        answer = await self._loop.reply(self._history, QUESTION)
        if answer.blocks[-1].text != ANSWER:
            expect(answer.blocks[-1].text, ANSWER)

    def check(self) -> None:
        calls = self._calls
        roles = ["system", "user", *["assistant", *["tool"] * calls] * self._rounds, "assistant"]
        expect([message.role for message in self._history], roles)
        blocks = [block for message in self._history for block in message.blocks]
        results = [(block.id, block.text) for block in blocks if block.type == "tool_result"]
        expect(results, [(f"call-{number}", SUM) for number in range(self._rounds * calls)])


def system_message() -> rich_floor.Message:
    """Return the first message of each history of the rich floor."""
    return rich_floor.Message("system", "system", [rich_floor.Block("system", "text", SYSTEM_PROMPT)], time())


class FloorNew(Workload):
    """A new conversation on the floor."""

    def __init__(self) -> None:
        self._history: list[floor.Message] = []

    async def __call__(self) -> None:
        self._history = [floor.Message("system", SYSTEM_PROMPT)]

    def check(self) -> None:
        expect(len(self._history), 1)


class RichNew(Workload):
    """The same on the rich floor."""

    def __init__(self) -> None:
        self._conversation = rich_floor.Conversation()

    async def __call__(self) -> None:
        self._conversation = rich_floor.Conversation(messages=[system_message()])

    def check(self) -> None:
        expect(len(self._conversation.messages), 1)


class FloorStream(Workload):
    """One answer in `deltas` deltas, each seen by every layer."""

    def __init__(self, deltas: int = DELTAS, layers: int = 0) -> None:
        self._text = PIECE * deltas
        self._deltas = deltas
        model = FloorModel(chunks=[floor.Chunk(PIECE) for _ in range(deltas)])
        self._loop = floor.Loop(model, around_stream=[pass_stream] * layers)
        self._history = [floor.Message("system", SYSTEM_PROMPT)]

    async def __call__(self) -> None:
        del self._history[1:]
        count = 0
        item: floor.Chunk | floor.Message | None = None
        async for item in self._loop.stream(self._history, QUESTION):
            if type(item) is floor.Chunk:
                count += 1
        expect(count, self._deltas)
        expect(item.content if isinstance(item, floor.Message) else item, self._text)

    def check(self) -> None:
        expect([message.role for message in self._history], ["system", "user", "assistant"])


class RichStream(Workload):
    """The same on the rich floor."""

    def __init__(self, deltas: int = DELTAS, layers: int = 0) -> None:
        self._text = PIECE * deltas
        self._deltas = deltas
        model = FloorModel(chunks=[floor.Chunk(PIECE) for _ in range(deltas)])
        self._loop = rich_floor.Loop(model, around_stream=[pass_closed_stream] * layers)
        self._history = [system_message()]

    async def __call__(self) -> None:
        del self._history[1:]
        count = 0
        async with aclosing(self._loop.stream(self._history, QUESTION)) as events:
            async for event in events:
                if type(event) is rich_floor.TextDelta:
                    count += 1
        expect(count, self._deltas)
        expect(self._history[-1].blocks[-1].text, self._text)

    def check(self) -> None:
        expect([message.role for message in self._history], ["system", "user", "assistant"])


class FloorConstruct(Workload):
    """A loop with ten new tools and ten layers."""

    def __init__(self) -> None:
        self._loop: floor.Loop | None = None

    async def __call__(self) -> None:
        tools = [floor.Tool(tool.__name__, tool, get_type_hints(tool)) for tool in make_functions()]
        self._loop = floor.Loop(
            FloorModel(), tools, around_call=[pass_call] * len(tools), around_tool=[pass_stream] * len(tools)
        )


class RichConstruct(Workload):
    """The same on the rich floor, with a schema and a validator for each tool."""

    def __init__(self) -> None:
        self._loop: rich_floor.Loop | None = None

    async def __call__(self) -> None:
        tools = [rich_floor.Tool(tool) for tool in make_functions()]
        self._loop = rich_floor.Loop(
            FloorModel(), tools, around_call=[pass_call] * len(tools), around_tool=[pass_closed_stream] * len(tools)
        )
