"""The rich floor: what a hand-written loop takes once it tells what happens, and validates what it is given.

It is the floor plus a full vocabulary of events, each with the id of its run, a number and the time; ids of messages
and blocks; arguments validated by pydantic, whose schema and validator are made at construction; and generators that
are closed by the code that opened them. It still has no permissions, approval, saved state or interruption, and no
check of its layers.
"""

import asyncio
import inspect
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from itertools import count
from time import time
from typing import Any, Literal, Protocol, cast

from pydantic import TypeAdapter

from benchmarks.floor import CallLayer, Chunk, Values, compose

__all__ = ["Block", "Conversation", "Event", "Loop", "Message", "Model", "TextDelta", "Tool"]

StreamLayer = Callable[[Values, Callable[..., AsyncGenerator[Any, None]]], AsyncGenerator[Any, None]]


@dataclass(slots=True)
class Block:
    """A part of a message: text, a tool call or its result."""

    id: str
    type: Literal["text", "tool_call", "tool_result"]
    text: str
    name: str = ""


@dataclass(slots=True)
class Message:
    """One entry of the history."""

    id: str
    role: Literal["system", "user", "assistant", "tool"]
    blocks: list[Block]
    created_at: float


@dataclass(slots=True)
class Conversation:
    """A history and its id."""

    id: str = field(default_factory=lambda: make_id())
    messages: list[Message] = field(default_factory=list)


@dataclass(slots=True)
class Event:
    """Something that happened in a run."""

    run_id: str
    sequence: int
    time: float


@dataclass(slots=True)
class RunStarted(Event): ...


@dataclass(slots=True)
class RunEnded(Event):
    """The last event of a run, with its message."""

    message: Message


@dataclass(slots=True)
class ModelCallStarted(Event): ...


@dataclass(slots=True)
class ModelCallEnded(Event): ...


@dataclass(slots=True)
class TextStarted(Event):
    block_id: str


@dataclass(slots=True)
class TextDelta(Event):
    """A piece of text."""

    block_id: str
    text: str


@dataclass(slots=True)
class TextEnded(Event):
    block_id: str


@dataclass(slots=True)
class ToolCallStarted(Event):
    call_id: str
    name: str


@dataclass(slots=True)
class ToolCallDelta(Event):
    call_id: str
    arguments: str


@dataclass(slots=True)
class ToolCallEnded(Event):
    call_id: str


@dataclass(slots=True)
class ToolResultStarted(Event):
    call_id: str


@dataclass(slots=True)
class ToolResultDelta(Event):
    call_id: str
    text: str


@dataclass(slots=True)
class ToolResultEnded(Event):
    call_id: str


@dataclass(slots=True)
class Run:
    """A run in progress."""

    id: str
    sequence: int = 0

    def next(self) -> int:
        """Return the number of the next event."""
        self.sequence = sequence = self.sequence + 1
        return sequence


_ids = count(1)


def make_id() -> str:
    """Return an id that nothing else in this process has."""
    return f"id-{next(_ids)}"


class Tool:
    """A function, with a schema and a validator made of its signature."""

    def __init__(self, function: Callable[..., Any]) -> None:
        adapter: TypeAdapter[Any] = TypeAdapter(cast(Any, function))
        self.name = function.__name__
        self.is_async = inspect.iscoroutinefunction(function)
        # It validates the arguments, and calls the function with them.
        self.call: Callable[[str], Any] = adapter.validator.validate_json
        self.schema = {
            "name": self.name,
            "description": inspect.getdoc(function),
            "parameters": adapter.json_schema(),
        }


class Model(Protocol):
    """What the loop asks of a model: its whole answer at once, or a stream of pieces."""

    async def __call__(
        self, messages: list[Message], tools: list[dict[str, Any]]
    ) -> Chunk | AsyncGenerator[Chunk, None]: ...


class Loop:
    """Asks the model and runs its tools until it has only words left, and tells of every step."""

    def __init__(
        self,
        model: Model,
        tools: Sequence[Tool] = (),
        *,
        around_call: Sequence[CallLayer] = (),
        around_tool: Sequence[StreamLayer] = (),
        around_stream: Sequence[StreamLayer] = (),
    ) -> None:
        self._tools = {tool.name: tool for tool in tools}
        self._schemas = [tool.schema for tool in tools]
        self._call = compose(model, around_call)
        self._ask = compose(self._ask_once, around_stream)
        self._run_tool = compose(self._run_once, around_tool)

    async def reply(self, history: list[Message], text: str) -> Message:
        """Answer, and leave the question and all that followed in `history`."""
        item: Event | Message
        async with aclosing(self.stream(history, text)) as items:
            async for item in items:  # noqa: B007  # the message comes last
                pass
        return cast("RunEnded", item).message

    async def stream(self, history: list[Message], text: str) -> AsyncGenerator[Event, None]:
        """Answer event by event; the last one has the whole message."""
        run = Run(make_id())
        history.append(Message(make_id(), "user", [Block(make_id(), "text", text)], time()))
        yield RunStarted(run.id, run.next(), time())
        while True:
            answer = Message(make_id(), "assistant", [], time())
            async with aclosing(self._ask(run=run, answer=answer, messages=history, tools=self._schemas)) as events:
                async for event in events:
                    yield event
            history.append(answer)
            calls = [block for block in answer.blocks if block.type == "tool_call"]
            if not calls:
                yield RunEnded(run.id, run.next(), time(), answer)
                return
            results: list[list[Event]] = [[] for _ in calls]
            if len(calls) == 1:
                await self._collect(run, calls[0], results[0], history)
            else:
                async with asyncio.TaskGroup() as group:
                    for call, events_of_call in zip(calls, results, strict=True):
                        group.create_task(self._collect(run, call, events_of_call, history))
            for events_of_call in results:
                for event in events_of_call:
                    yield event

    async def _ask_once(
        self, run: Run, answer: Message, messages: list[Message], tools: list[dict[str, Any]]
    ) -> AsyncGenerator[Event, None]:
        yield ModelCallStarted(run.id, run.next(), time())
        result = await self._call(messages=messages, tools=tools)
        text = TextBuilder(make_id())
        if isinstance(result, Chunk):
            for event in _take(run, answer, text, result):
                yield event
        else:
            async with aclosing(result) as chunks:
                async for chunk in chunks:
                    for event in _take(run, answer, text, chunk):
                        yield event
        if text.pieces:
            answer.blocks.append(Block(text.id, "text", "".join(text.pieces)))
            yield TextEnded(run.id, run.next(), time(), text.id)
        yield ModelCallEnded(run.id, run.next(), time())

    async def _collect(self, run: Run, call: Block, events: list[Event], history: list[Message]) -> None:
        pieces: list[str] = []
        events.append(ToolResultStarted(run.id, run.next(), time(), call.id))
        async with aclosing(self._run_tool(call=call)) as texts:
            async for text in texts:
                pieces.append(text)
                events.append(ToolResultDelta(run.id, run.next(), time(), call.id, text))
        history.append(Message(make_id(), "tool", [Block(call.id, "tool_result", "".join(pieces), call.name)], time()))
        events.append(ToolResultEnded(run.id, run.next(), time(), call.id))

    async def _run_once(self, call: Block) -> AsyncGenerator[str, None]:
        tool = self._tools[call.name]
        result = tool.call(call.text)
        yield await result if tool.is_async else result


@dataclass(slots=True)
class TextBuilder:
    """The block of text that a model is writing."""

    id: str
    pieces: list[str] = field(default_factory=list)


def _take(run: Run, answer: Message, text: TextBuilder, chunk: Chunk) -> list[Event]:
    """Put a chunk into the answer, and return its events."""
    events: list[Event] = []
    if chunk.text:
        if not text.pieces:
            events.append(TextStarted(run.id, run.next(), time(), text.id))
        text.pieces.append(chunk.text)
        events.append(TextDelta(run.id, run.next(), time(), text.id, chunk.text))
    for call in chunk.tool_calls:
        answer.blocks.append(Block(call.id, "tool_call", call.arguments, call.name))
        events.append(ToolCallStarted(run.id, run.next(), time(), call.id, call.name))
        events.append(ToolCallDelta(run.id, run.next(), time(), call.id, call.arguments))
        events.append(ToolCallEnded(run.id, run.next(), time(), call.id))
    return events
