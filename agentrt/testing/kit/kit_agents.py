"""The agents that a middleware is tried in; their model answers by what it is asked, and may be stopped anywhere."""

import re
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any

import anyio.lowlevel

from agentrt.agent import Agent, ContextConfig, ReActConfig
from agentrt.hooks import MiddlewareBase
from agentrt.message import Msg, TextBlock, ToolCallBlock, ToolResultBlock
from agentrt.model import ChatModelBase, ChatResponse, ModelResult
from agentrt.model.scripted import stream_response, whole_response
from agentrt.state import AgentState, InMemoryStateStore, StateStore
from agentrt.tool import FunctionTool, ToolBase, Toolkit
from agentrt.types import JSONSchema, ToolChoice

__all__ = ["FORM", "QUESTIONS", "OnPoint", "PointedModel", "StageModel", "StageQueue", "StageStore", "agent_on_stage"]

OnPoint = Callable[[str], Awaitable[None]]

QUESTIONS = {
    "a plain question": "Is it a fine day?",
    "a tool": "Please add.",
    "tools side by side": "Please add and count.",
    "a call to confirm": "Please write.",
    "calls to confirm and to execute outside": "Please add, write and send.",
}
"""What is asked in each kind of conversation, by what happens then."""

FORM = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
_ID = re.compile(r"\bid='[^']*'(, )?")
_FORM_TOOL = "GenerateStructuredOutput"
_INPUTS = {
    "add": '{"a": 1, "b": 2}',
    "subtract": "{}",
    "count": '{"to": 3}',
    "write": '{"text": "note"}',
    "send": '{"text": "note"}',
}


async def _nothing(point: str) -> None:
    await anyio.lowlevel.checkpoint()


class StageModel(ChatModelBase):
    """A model whose answer depends only on what it is asked, and which keeps that, in words, in `asked`.

    `on_point` is awaited "before", "midway" and "after" an answer.
    """

    def __init__(self, *, stream: bool = True, on_point: OnPoint = _nothing) -> None:
        super().__init__(model="stage", stream=stream)
        self.asked: list[list[str]] = []
        self._on_point = on_point

    async def _call(
        self, messages: list[Msg], tools: list[JSONSchema] | None, tool_choice: ToolChoice | None
    ) -> ModelResult:
        self.asked.append([*map(_in_words, messages), f"tools {tools}", f"tool_choice {tool_choice}"])
        await self._on_point("before")
        whole = whole_response(_content(messages, tools or []), messages)
        assert whole.usage is not None
        whole.usage = replace(whole.usage, estimated=False)  # as a provider reports it
        if self.stream:
            return self._pieces(whole)
        await self._on_point("midway")
        await self._on_point("after")
        return whole

    async def _pieces(self, whole: ChatResponse) -> AsyncGenerator[ChatResponse, None]:
        pieces = stream_response(whole)
        try:
            place = 0
            async for piece in pieces:
                await (_nothing if place != 1 else self._on_point)("midway")
                yield piece
                place += 1
        finally:
            await pieces.aclose()
        await self._on_point("after")


def _in_words(message: Msg) -> str:
    return f"{message.role} {message.name}: {_ID.sub('', repr(message.get_content_blocks()))}"


class PointedModel(ChatModelBase):
    """The author's model, made to stream or not to.

    `on_point` is awaited "before" and "after" its answer, and "midway" in it.
    """

    def __init__(self, model: ChatModelBase, *, stream: bool = True, on_point: OnPoint = _nothing) -> None:
        super().__init__(model=model.model, stream=stream, context_size=model.context_size)
        self._own = model
        self._on_point = on_point

    async def _call(
        self, messages: list[Msg], tools: list[JSONSchema] | None, tool_choice: ToolChoice | None
    ) -> ModelResult:
        await self._on_point("before")
        result = await self._own(messages, tools, tool_choice)
        if self.stream:
            return self._pieces(stream_response(result) if isinstance(result, ChatResponse) else result)
        whole = result if isinstance(result, ChatResponse) else await _last_of(result)
        await self._on_point("midway")
        await self._on_point("after")
        return whole

    async def _pieces(self, stream: AsyncGenerator[ChatResponse, None]) -> AsyncGenerator[ChatResponse, None]:
        place = 0
        try:
            async for piece in stream:
                if place == 1:
                    await self._on_point("midway")
                yield piece
                place += 1
        finally:
            await stream.aclose()
        await self._on_point("after")


async def _last_of(stream: AsyncGenerator[ChatResponse, None]) -> ChatResponse:
    last = ChatResponse([])
    try:
        async for piece in stream:
            last = piece
    finally:
        await stream.aclose()
    return last


def _content(messages: Sequence[Msg], tools: Sequence[JSONSchema]) -> list[Any]:
    names = [tool["function"]["name"] for tool in tools]
    if _FORM_TOOL in names:
        return [ToolCallBlock("form", _FORM_TOOL, '{"city": "Beijing"}')]
    asked, since = _last_question(messages)
    if any(isinstance(block, ToolResultBlock) for message in since for block in message.get_content_blocks()):
        return [TextBlock("That is done, all of it.")]
    wanted = [name for name in _INPUTS if name in asked.lower() and name in names] if "Please" in asked else []
    if wanted:
        return [TextBlock("Let me see."), *(ToolCallBlock(name, name, _INPUTS[name]) for name in wanted)]
    return [TextBlock(f"You asked {asked!r}, and the answer is yes.")]


def _last_question(messages: Sequence[Msg]) -> tuple[str, Sequence[Msg]]:
    for place in range(len(messages) - 1, -1, -1):
        if messages[place].role == "user" and messages[place].name != "runtime":
            return messages[place].get_text_content() or "", messages[place:]
    return "", messages


class StageStore(InMemoryStateStore):
    """A store; `on_point` is awaited at "save", before it keeps anything."""

    def __init__(self, on_point: OnPoint) -> None:
        super().__init__()
        self._on_point = on_point

    async def save(self, state: AgentState) -> None:
        """Keep the state, unless `on_point` raises."""
        await self._on_point("save")
        await super().save(state)


class StageQueue:
    """What messages are printed into; `on_point` is awaited at each "piece" of one, and at the "last" of it."""

    def __init__(self, on_point: OnPoint = _nothing) -> None:
        self._on_point = on_point

    async def put(self, item: tuple[Msg, bool, Any]) -> None:
        """Take what is printed, and forget it."""
        await self._on_point("last" if item[1] else "piece")


class _Send(ToolBase):
    """A tool that somebody else runs."""

    name = "send"
    description = "Send a text."
    input_schema = {"type": "object", "properties": {"text": {"type": "string"}}}  # noqa: RUF012
    is_external_tool = True


def _tools(on_point: OnPoint) -> list[Any]:
    async def add(a: int, b: int) -> int:
        """Add two numbers."""
        await on_point("tool")
        return a + b

    async def subtract() -> str:
        """Subtract."""
        await on_point("strict tool")
        return "less"

    async def count(to: int) -> AsyncIterator[str]:
        """Count."""
        for number in range(to):
            await anyio.lowlevel.checkpoint()
            yield f"{number} "

    async def write(text: str) -> str:
        """Write a text down."""
        await anyio.lowlevel.checkpoint()
        return f"wrote {text!r}"

    strict = FunctionTool(subtract, raise_tool_errors=True)
    return [add, strict, FunctionTool(count, is_read_only=True), FunctionTool(write, ask=True), _Send()]


def agent_on_stage(
    middlewares: Sequence[MiddlewareBase],
    *,
    stream: bool = True,
    on_point: OnPoint = _nothing,
    name: str = "tester",
    state_store: StateStore | None = None,
    model: Callable[[], ChatModelBase] | None = None,
) -> Agent:
    """Return an agent with these layers; `on_point` is awaited at the model's points, at "tool" and "strict tool"."""
    own = StageModel(stream=stream, on_point=on_point)
    return Agent(
        name,
        "You are tested.",
        own if model is None else PointedModel(model(), stream=stream, on_point=on_point),
        Toolkit(tools=_tools(on_point)),
        middlewares,
        state_store=state_store,
        context_config=ContextConfig(reserve_ratio=0),  # however short it is, there is something to be compressed
        react_config=ReActConfig(max_iters=4),  # a layer that lets no tool run would have it asked for again and again
    )
