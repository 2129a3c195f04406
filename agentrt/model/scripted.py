"""A model that gives the answers it was built with: for tests, examples and benchmarks, with no key and no network."""

import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from inspect import isawaitable
from typing import Any, TypeGuard

import anyio.lowlevel

from agentrt._runtime.block import BLOCKS, ContentBlock, TextBlock, ThinkingBlock, ToolCallBlock, new_id
from agentrt._runtime.model_interface.base import ChatModelBase, ModelResult
from agentrt._runtime.model_interface.capabilities import ModelCapabilities
from agentrt._runtime.model_interface.estimate import CountTokens, estimated_usage
from agentrt._runtime.model_interface.pieces import join_blocks
from agentrt.errors import ConfigError, UsageError
from agentrt.message import Msg
from agentrt.types import ChatResponse, JSONSchema, ToolChoice

Raised = BaseException | type[BaseException]
Script = str | ChatResponse | Raised | Sequence[str | ChatResponse | ContentBlock | Raised]
ScriptedResponse = Script | Callable[[list[Msg], list[JSONSchema] | None], Script | Awaitable[Script]]
"""One entry of the script of a `ScriptedChatModel`."""

_END_OF_SCRIPT: Any = object()
_INPUT_PIECE = 16  # characters of a tool call's input that are streamed at a time


@dataclass(slots=True)
class ScriptedCall:
    """The input of one call of the model."""

    messages: list[Msg]
    tools: list[JSONSchema] | None
    tool_choice: ToolChoice | None


class ScriptedChatModel(ChatModelBase):
    """A model that gives `responses` one after the other, whatever it is asked, and remembers its `calls`.

    A response is one of:

    - a `str`: streams word by word, or is one `ChatResponse` with `stream=False`;
    - a `ChatResponse`: is returned as it is, but streams in pieces with `stream=True`;
    - an exception, instance or class: is raised;
    - a list of blocks: is a `ChatResponse` of these blocks;
    - any other list: is streamed item by item. A `str` is more text, a block or a `ChatResponse` is a piece, an
      exception is raised at that point; the piece with `is_last=True` that ends a stream is added unless the list has
      one. With `stream=False` the items are joined to one response;
    - a function or coroutine function `(messages, tools)` that returns any of these.

    `responses` may be endless: `itertools.repeat("ok")`. Unless a `ChatResponse` gives its usage, it is estimated.
    """

    calls: list[ScriptedCall]
    _completes_streams = True

    def __init__(
        self,
        responses: Iterable[ScriptedResponse],
        *,
        model: str = "scripted",
        stream: bool | None = None,
        context_size: int | None = None,
        capabilities: ModelCapabilities | Collection[str] | None = None,
        count_tokens: CountTokens | None = None,
    ) -> None:
        super().__init__(
            model=model,
            stream=stream is not False,
            context_size=context_size,
            capabilities=capabilities,
            count_tokens=count_tokens,
        )
        self.calls = []
        self._stream_wanted = stream
        # A single response would be taken apart, letter by letter or error by error.
        is_single = isinstance(responses, (str, ChatResponse)) or _is_raised(responses)
        if is_single or not isinstance(responses, Iterable):
            raise ConfigError(
                f"ScriptedChatModel takes a list or an iterator of responses, not {responses!r}: "
                f"write ScriptedChatModel([...])"
            )
        self._responses = iter(responses)

    async def _call(
        self, messages: list[Msg], tools: list[JSONSchema] | None, tool_choice: ToolChoice | None
    ) -> ModelResult:
        await anyio.lowlevel.checkpoint()
        # A copy: the runtime's list may grow, and a test wants to see what this call was given.
        self.calls.append(ScriptedCall(list(messages), tools, tool_choice))
        response: object = self._next_response()
        if callable(response) and not _is_raised(response):
            response = response(messages, tools)
            if isawaitable(response):
                response = await response
        return await self._play(response, messages)

    def _next_response(self) -> ScriptedResponse:
        response = next(self._responses, _END_OF_SCRIPT)
        if response is not _END_OF_SCRIPT:
            return response
        messages = self.calls[-1].messages
        text = (messages[-1].get_text_content() if messages else None) or ""
        excerpt = text if len(text) <= 200 else text[:200] + "..."
        raise UsageError(
            f"{type(self).__name__} {self.model!r} has no response left: {len(self.calls) - 1} were scripted, and the "
            f"last message of call {len(self.calls)} is {excerpt!r}: script one more, or end with itertools.repeat(...)"
        )

    async def _play(self, response: object, messages: list[Msg]) -> ModelResult:
        if _is_raised(response):
            raise _without_traceback(response)
        if isinstance(response, ChatResponse):
            return stream_response(response) if self._stream_wanted and response.is_last else response
        if isinstance(response, str):
            whole = whole_response([TextBlock(response)], messages)
            return whole if self._stream_wanted is False else stream_response(whole)
        if not isinstance(response, (list, tuple)):
            raise _wrong_response(response)
        if response and all(isinstance(item, BLOCKS) for item in response):
            return await self._play(whole_response(list(response), messages), messages)
        stream = _stream_items(response, messages)
        if self._stream_wanted is not False:
            return stream
        async for piece in stream:
            last = piece  # the whole response, with which every such stream ends
        return last


def whole_response(content: list[ContentBlock], messages: list[Msg]) -> ChatResponse:
    """Return the whole response with this content, its usage estimated from the length of `messages` and answer."""
    calls_tools = any(block.__class__ is ToolCallBlock for block in content)
    return ChatResponse(content, True, estimated_usage(messages, content), "tool_calls" if calls_tools else "stop")


async def stream_response(response: ChatResponse) -> AsyncGenerator[ChatResponse, None]:
    """Yield a whole response as a stream: text word by word, the input of tool calls in pieces, then the response."""
    for block in response.content:
        for piece in _pieces(block):
            yield ChatResponse([piece], False)
    yield response


def _is_raised(response: object) -> TypeGuard[Raised]:
    return isinstance(response, BaseException) or (isinstance(response, type) and issubclass(response, BaseException))


def _without_traceback(error: Raised) -> Raised:
    # An instance that is raised again and again would carry a traceback that grows with each time.
    return error.with_traceback(None) if isinstance(error, BaseException) else error


def _wrong_response(item: object) -> UsageError:
    return UsageError(
        f"a scripted response must be a str, a ChatResponse, an exception, a list of blocks or of pieces, or a "
        f"function that returns one of these, not {item!r}"
    )


def _pieces(block: ContentBlock) -> Iterator[ContentBlock]:
    if isinstance(block, TextBlock):
        return (TextBlock(word, block.id) for word in _words(block.text))
    if isinstance(block, ThinkingBlock):
        pieces = [ThinkingBlock(word, block.id) for word in _words(block.thinking)] or [ThinkingBlock("", block.id)]
        pieces[-1].signature = block.signature
        return iter(pieces)
    if isinstance(block, ToolCallBlock):
        cuts = range(0, len(block.input) or 1, _INPUT_PIECE)
        return (ToolCallBlock(block.id, block.name, block.input[cut : cut + _INPUT_PIECE]) for cut in cuts)
    return iter([block])


def _words(text: str) -> list[str]:
    return re.findall(r"^\s+|\S+\s*", text)


async def _stream_items(items: Sequence[object], messages: list[Msg]) -> AsyncGenerator[ChatResponse, None]:
    text_id = new_id()
    content: list[ContentBlock] = []
    for item in items:
        if _is_raised(item):
            raise _without_traceback(item)
        if isinstance(item, str):
            piece = ChatResponse([TextBlock(item, text_id)], False)
        elif isinstance(item, BLOCKS):
            piece = ChatResponse([item], False)
        elif isinstance(item, ChatResponse):
            piece = item
        else:
            raise _wrong_response(item)
        yield piece
        if piece.is_last:
            return
        content += piece.content
    yield whole_response(join_blocks(content), messages)
