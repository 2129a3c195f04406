"""Calls through `call_tool`: how a model calls a tool that it is not offered, and the call that this stands for."""

import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from dataclasses import replace

from agentrt.message import ContentBlock, Msg, ToolCallBlock, ToolResultBlock
from agentrt.model import ChatResponse, ModelResult
from agentrt_middleware.attempts import close, is_readable

CALL_TOOL = "call_tool"

NameTest = Callable[[str], bool]


def call_by_name(result: ModelResult, is_known: NameTest) -> ModelResult:
    """Return the answer with the calls that those of `call_tool` stand for, where there is such a tool."""
    if isinstance(result, ChatResponse):
        return _with_named_calls(result, is_known) if is_readable(result) else result
    return call_by_name_in_stream(result, is_known)


async def call_by_name_in_stream(
    stream: AsyncIterator[ChatResponse], is_known: NameTest
) -> AsyncGenerator[ChatResponse, None]:
    """Pass the stream on; calls of `call_tool` are held until they are whole, since only then their names are known."""
    held = _HeldCalls(is_known)
    try:
        async for response in stream:
            if not is_readable(response):
                yield response
                continue
            if response.is_last:  # with the whole of what was held
                held = _HeldCalls(is_known)
                yield _with_named_calls(response, is_known)
                continue
            passing = [block for arrived in response.content for block in held.pass_on(arrived)]
            if passing or not response.content or response.usage is not None:
                yield response if passing == response.content else replace(response, content=passing)
        left = held.release()
        if left:
            yield ChatResponse(left, False)
    finally:
        await close(stream)


class _HeldCalls:
    """The calls of `call_tool` whose input is still arriving."""

    def __init__(self, is_known: NameTest) -> None:
        self._is_known = is_known
        self._calls: dict[str, ToolCallBlock | None] = {}  # `None` once a call has passed

    def pass_on(self, block: ContentBlock) -> list[ContentBlock]:
        """Return the blocks that may pass now that this one has arrived."""
        if isinstance(block, ToolCallBlock) and block.id in self._calls:
            known = self._calls[block.id]
            self._calls[block.id] = known and replace(known, input=known.input + block.input)
            return []
        # In their order: this block stands after the calls that are complete by now.
        passing = self.release(lambda call: isinstance(_parsed(call.input), dict))
        if isinstance(block, ToolCallBlock) and block.name == CALL_TOOL:
            self._calls[block.id] = block
            return passing
        return [*passing, block]

    def release(self, is_complete: Callable[[ToolCallBlock], bool] = lambda call: True) -> list[ContentBlock]:
        released: list[ContentBlock] = []
        for call in [call for call in self._calls.values() if call and is_complete(call)]:
            released.append(_named_call(call, self._is_known))
            self._calls[call.id] = None
        return released


def call_through_tool(message: Msg, is_offered: NameTest) -> Msg:
    """Return the message as the model wrote it: calls of tools that it is not offered are calls of `call_tool`."""
    if isinstance(message.content, str):
        return message
    content = [_unnamed(block, is_offered) for block in message.content]
    if all(block is before for block, before in zip(content, message.content, strict=True)):
        return message
    message = message.snapshot()  # this one is shared
    message.content = content
    return message


def _with_named_calls(response: ChatResponse, is_known: NameTest) -> ChatResponse:
    if not any(isinstance(block, ToolCallBlock) and block.name == CALL_TOOL for block in response.content):
        return response
    content = [
        _named_call(block, is_known) if isinstance(block, ToolCallBlock) else block for block in response.content
    ]
    return replace(response, content=content)


def _named_call(call: ToolCallBlock, is_known: NameTest) -> ToolCallBlock:
    """Return the call that this one stands for; if there is none, the call itself, whose result says so."""
    inner = _parsed(call.input) if call.name == CALL_TOOL else None
    if not isinstance(inner, dict):
        return call
    name, arguments = inner.get("name"), inner.get("arguments", {})
    if isinstance(arguments, str):  # some models write the JSON of an object into a str
        arguments = _parsed(arguments)
    if not isinstance(name, str) or name == CALL_TOOL or not is_known(name) or not isinstance(arguments, dict):
        return call
    return replace(call, name=name, input=json.dumps(arguments, ensure_ascii=False))


def _unnamed(block: ContentBlock, is_offered: NameTest) -> ContentBlock:
    if isinstance(block, ToolResultBlock) and not is_offered(block.name):
        return replace(block, name=CALL_TOOL)
    if isinstance(block, ToolCallBlock) and not is_offered(block.name):
        arguments = _parsed(block.input) if block.input else {}
        inner = {"name": block.name, "arguments": block.input if arguments is None else arguments}
        return replace(block, name=CALL_TOOL, input=json.dumps(inner, ensure_ascii=False))
    return block


def _parsed(text: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
