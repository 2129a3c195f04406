"""The agents of the check; the model's answers depend on the question alone, and it can be paused anywhere."""

import re
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import replace
from functools import cache
from typing import TypedDict, Unpack

import anyio.lowlevel

from agentrt.agent import Agent, ContextConfig, ReActConfig
from agentrt.hooks import MiddlewareBase
from agentrt.message import ContentBlock, DataBlock, Msg, TextBlock, ToolCallBlock, ToolResultBlock
from agentrt.model import ChatModelBase, ChatResponse, ModelResult
from agentrt.model.scripted import stream_response, whole_response
from agentrt.state import AgentState, InMemoryStateStore, StateStore
from agentrt.testing.harness.full_text import full_text
from agentrt.tool import FunctionTool, ToolBase, ToolContext, Toolkit
from agentrt.types import STRUCTURED_OUTPUT, JSONSchema, OpenQuestion, ToolChoice, ToolResponse

OnPoint = Callable[[str], Awaitable[None]]
"""Called with the name of each point that a conversation reaches; its exceptions are raised there."""

PLAIN_QUESTION = "Is it a fine day?"
TOOL_QUESTION = "Please add."
TWO_TOOLS_QUESTION = "Please add and count."
CONFIRM_QUESTION = "Please write."
WAITING_QUESTION = "Please add, write and send."
RESUMABLE_QUESTION = "Please add, write, sign and send."

QUESTIONS = {
    "a plain question": PLAIN_QUESTION,
    "a tool": TOOL_QUESTION,
    "tools side by side": TWO_TOOLS_QUESTION,
    "a call to confirm": CONFIRM_QUESTION,
    "calls to confirm and to execute outside": WAITING_QUESTION,
}
"""The question of each kind of conversation, by the name of the kind."""

FORM: JSONSchema = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
"""The schema of structured output."""

_ID = re.compile(r"\bid='[^']*'(, )?")
_CALL_INPUTS = {
    "add": '{"a": 1, "b": 2}',
    "subtract": "{}",
    "count": '{"to": 3}',
    "write": '{"text": "note"}',
    "sign": "{}",
    "send": '{"text": "note"}',
}


async def pass_point(point: str) -> None:
    """Do nothing at a point."""
    await anyio.lowlevel.checkpoint()


class KitModel(ChatModelBase):
    """A model whose answers depend only on the request; `requests` records those in words.

    `on_point` is awaited "before", "midway" and "after" an answer.
    """

    def __init__(self, *, stream: bool = True, on_point: OnPoint = pass_point) -> None:
        super().__init__(model="kit", stream=stream)
        self.requests: list[list[str]] = []
        self._on_point = on_point

    async def _call(
        self, messages: list[Msg], tools: list[JSONSchema] | None, tool_choice: ToolChoice | None
    ) -> ModelResult:
        # Without ids, so that the requests of two conversations can be compared.
        words = [f"{msg.role} {msg.name}: {_ID.sub('', full_text(msg.get_content_blocks()))}" for msg in messages]
        self.requests.append([*words, f"tools {tools}", f"tool_choice {tool_choice}"])
        await self._on_point("before")
        response = whole_response(_answer_content(messages, tools or []), messages)
        assert response.usage is not None  # always set for these messages
        response.usage = replace(response.usage, estimated=False)  # as a provider reports it
        if self.stream:
            return _stream_past_points(stream_response(response), self._on_point)
        await self._on_point("midway")
        await self._on_point("after")
        return response


class _AuthorModel(ChatModelBase):
    """The author's model, streaming or not, with the points of a `KitModel`."""

    def __init__(self, model: ChatModelBase, *, stream: bool, on_point: OnPoint) -> None:
        super().__init__(model=model.model, stream=stream, context_size=model.context_size)
        self._model = model
        self._on_point = on_point

    async def _call(
        self, messages: list[Msg], tools: list[JSONSchema] | None, tool_choice: ToolChoice | None
    ) -> ModelResult:
        await self._on_point("before")
        result = await self._model(messages, tools, tool_choice)
        if self.stream:
            stream = stream_response(result) if isinstance(result, ChatResponse) else result
            return _stream_past_points(stream, self._on_point)
        if isinstance(result, ChatResponse):
            response = result
        else:
            response = ChatResponse([])
            async with aclosing(result) as pieces:
                async for response in pieces:  # noqa: B007  # the last one has the whole content
                    pass
        await self._on_point("midway")
        await self._on_point("after")
        return response


async def _stream_past_points(
    stream: AsyncGenerator[ChatResponse, None], on_point: OnPoint
) -> AsyncGenerator[ChatResponse, None]:
    position = 0
    async with aclosing(stream):
        async for piece in stream:
            # Between the first piece and the second, so that the answer has started but is not over.
            await (on_point if position == 1 else pass_point)("midway")
            yield piece
            position += 1
    await on_point("after")


def _answer_content(messages: Sequence[Msg], tools: Sequence[JSONSchema]) -> list[ContentBlock]:
    """Return the answer to the user's last question, or to the results since then."""
    names = [tool["function"]["name"] for tool in tools]
    if STRUCTURED_OUTPUT in names:
        return [ToolCallBlock("form", STRUCTURED_OUTPUT, '{"city": "Beijing"}')]
    question, later = "", messages[:0]
    for index in range(len(messages) - 1, -1, -1):
        # The runtime speaks as a user, too, when it asks for another attempt.
        if messages[index].role == "user" and messages[index].name != "runtime":
            question, later = messages[index].get_text_content() or "", messages[index:]
            break
    if any(isinstance(block, ToolResultBlock) for message in later for block in message.get_content_blocks()):
        return [TextBlock("That is done, all of it.")]
    if "Please" in question:
        calls = [name for name in _CALL_INPUTS if name in question.lower() and name in names]
        if calls:
            return [TextBlock("Let me see."), *(ToolCallBlock(name, name, _CALL_INPUTS[name]) for name in calls)]
    return [TextBlock(f"You asked {question!r}, and the answer is yes.")]


class KitStore(InMemoryStateStore):
    """A store; `on_point` is awaited at "save", before anything is saved."""

    def __init__(self, on_point: OnPoint) -> None:
        super().__init__()
        self._on_point = on_point

    async def save(self, state: AgentState) -> None:
        """Save the state, unless `on_point` raises."""
        await self._on_point("save")
        await super().save(state)


class KitQueue:
    """The queue for printed messages; `on_point` is awaited at each "piece" of a message, and at its "last" one."""

    def __init__(self, on_point: OnPoint = pass_point) -> None:
        self._on_point = on_point

    async def put(self, item: tuple[Msg, bool, DataBlock | list[DataBlock] | None]) -> None:
        """Discard the printed message."""
        await self._on_point("last" if item[1] else "piece")


class _SendTool(ToolBase):
    """A tool that runs outside of the agent."""

    name = "send"
    description = "Send a note."
    input_schema = {"type": "object", "properties": {"text": {"type": "string"}}}  # noqa: RUF012
    is_external_tool = True


class _SignTool(ToolBase):
    """A tool whose running call asks the user, and is resumed with the answer."""

    name = "sign"
    description = "Sign the note."
    is_resumable = True

    async def call(self, context: ToolContext) -> ToolResponse:
        """Ask, or return the user's answer."""
        if context.answers:
            return ToolResponse([TextBlock("signed")])
        return ToolResponse(waits=[OpenQuestion(ToolCallBlock("signature", "sign"))])


@cache
def _shared_tools() -> list[ToolBase]:
    """Return tools whose calls are streamed, need approval, ask by themselves, and run outside."""

    async def count(to: int) -> AsyncIterator[str]:
        """Count."""
        for number in range(to):
            await anyio.lowlevel.checkpoint()
            yield f"{number} "

    async def write(text: str) -> str:
        """Write down a note."""
        await anyio.lowlevel.checkpoint()
        return f"wrote {text!r}"

    # Built once: reading signatures is most of the cost of an agent, and a check makes thousands of agents.
    return [FunctionTool(count, is_read_only=True), FunctionTool(write, ask=True), _SignTool(), _SendTool()]


def _make_toolkit(on_point: OnPoint) -> Toolkit:
    async def add(a: int, b: int) -> int:
        """Add two numbers."""
        await on_point("tool")
        return a + b

    async def subtract() -> str:
        """Subtract."""
        await on_point("strict tool")
        return "less"

    # In addition to the shared ones, a tool that runs at once, and one that may raise.
    return Toolkit(tools=[add, FunctionTool(subtract, raise_tool_errors=True), *_shared_tools()])


class AgentOptions(TypedDict, total=False):
    """The options of an agent of the kit; `model` is the author's factory of a model."""

    stream: bool
    on_point: OnPoint
    name: str
    state_store: StateStore | None
    model: Callable[[], ChatModelBase] | None


def make_kit_agent(middlewares: Sequence[MiddlewareBase], **options: Unpack[AgentOptions]) -> Agent:
    """Return an agent with these layers; `on_point` is awaited at the model's points, at "tool" and "strict tool"."""
    stream, on_point = options.get("stream", True), options.get("on_point", pass_point)
    make_model = options.get("model")
    model: ChatModelBase = KitModel(stream=stream, on_point=on_point)
    if make_model is not None:
        model = _AuthorModel(make_model(), stream=stream, on_point=on_point)
    return Agent(
        options.get("name", "tester"),
        "You are tested.",
        model,
        _make_toolkit(on_point),
        middlewares,
        state_store=options.get("state_store"),
        context_config=ContextConfig(reserve_ratio=0),  # so that even a short context can be compressed
        react_config=ReActConfig(max_iters=4),  # a layer that blocks all tools would have them called again and again
    )
