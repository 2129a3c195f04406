"""The floor: the least code that still does the work of a turn, written by hand.

It has what every agent loop must have: slotted dataclasses, a history in a list, JSON arguments with a type check, and
an onion that is composed once. It has no events, no ids, no clock, no permissions, no state to save, no check of what a
layer passes on and no care for streams that are left open.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, cast

__all__ = ["CallLayer", "Chunk", "Loop", "Message", "Model", "StreamLayer", "Tool", "ToolCall"]

Values = dict[str, Any]
CallLayer = Callable[[Values, Callable[..., Awaitable[Any]]], Awaitable[Any]]
StreamLayer = Callable[[Values, Callable[..., AsyncIterator[Any]]], AsyncIterator[Any]]


@dataclass(slots=True)
class ToolCall:
    """A model's wish to run a tool; `arguments` is JSON text."""

    id: str
    name: str
    arguments: str


@dataclass(slots=True)
class Message:
    """One entry of the history."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str
    tool_calls: list[ToolCall] = field(default_factory=list)
    tool_call_id: str | None = None


@dataclass(slots=True)
class Chunk:
    """A piece of a model's answer, or all of it."""

    text: str
    tool_calls: list[ToolCall] = field(default_factory=list)


@dataclass(slots=True)
class Tool:
    """A function and the types of its arguments."""

    name: str
    function: Callable[..., Any]  # that returns a str, or an awaitable of one
    parameters: dict[str, type]

    def schema(self) -> dict[str, Any]:
        """Return the form in which the model learns about the tool."""
        return {"name": self.name, "parameters": {name: kind.__name__ for name, kind in self.parameters.items()}}


class Model(Protocol):
    """What the loop asks of a model: its whole answer at once, or a stream of pieces."""

    async def __call__(self, messages: list[Message], tools: list[dict[str, Any]]) -> Chunk | AsyncIterator[Chunk]: ...


class Loop:
    """Asks the model and runs its tools until it has only words left."""

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
        self._schemas = [tool.schema() for tool in tools]
        self._call = compose(model, around_call)
        self._ask = compose(self._ask_once, around_stream)
        self._run_tool = compose(self._run_once, around_tool)

    async def reply(self, history: list[Message], text: str) -> Message:
        """Answer, and leave the question and all that followed in `history`."""
        item: Chunk | Message
        async for item in self.stream(history, text):  # noqa: B007  # the message comes last
            pass
        return cast("Message", item)

    async def stream(self, history: list[Message], text: str) -> AsyncIterator[Chunk | Message]:
        """Answer piece by piece; the whole message comes last."""
        history.append(Message("user", text))
        while True:
            texts: list[str] = []
            calls: list[ToolCall] = []
            async for chunk in self._ask(messages=history, tools=self._schemas):
                texts.append(chunk.text)
                if chunk.tool_calls:
                    calls += chunk.tool_calls
                yield chunk
            answer = Message("assistant", "".join(texts), calls)
            history.append(answer)
            if not calls:
                yield answer
                return
            if len(calls) == 1:
                await self._collect(calls[0], history)
            else:
                async with asyncio.TaskGroup() as group:
                    for call in calls:
                        group.create_task(self._collect(call, history))

    async def _collect(self, call: ToolCall, history: list[Message]) -> None:
        pieces = [piece async for piece in self._run_tool(call=call)]
        history.append(Message("tool", "".join(pieces), tool_call_id=call.id))

    async def _ask_once(self, messages: list[Message], tools: list[dict[str, Any]]) -> AsyncIterator[Chunk]:
        answer = await self._call(messages=messages, tools=tools)
        if isinstance(answer, Chunk):
            yield answer
            return
        async for chunk in answer:
            yield chunk

    async def _run_once(self, call: ToolCall) -> AsyncIterator[str]:
        tool = self._tools[call.name]
        arguments = json.loads(call.arguments)
        for name, kind in tool.parameters.items():
            if not isinstance(arguments.get(name), kind):
                raise TypeError(f"{call.name} wants {name} to be {kind.__name__}, not {arguments.get(name)!r}")
        yield await tool.function(**arguments)


def compose(core: Callable[..., Any], layers: Sequence[Callable[..., Any]]) -> Callable[..., Any]:
    """Fold the layers around the core, the first listed outermost; no layers, no onion."""
    if not layers:
        return core

    def innermost(values: Values) -> Any:
        return core(**values)

    step: Callable[[Values], Any] = innermost
    for layer in reversed(layers):
        step = _wrap(layer, step)
    return lambda **values: step(values)


def _wrap(layer: Callable[..., Any], inner: Callable[[Values], Any]) -> Callable[[Values], Any]:
    # One fold serves both shapes: an awaitable and an async iterator are passed on as they are.
    def step(values: Values) -> Any:
        def next_handler(**overrides: Any) -> Any:
            return inner({**values, **overrides})

        return layer(values, next_handler)

    return step
