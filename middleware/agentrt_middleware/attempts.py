"""Shared by middlewares: observing model calls to their end, making several attempts, skipping idle hooks."""

from collections.abc import AsyncGenerator, AsyncIterator, Callable
from dataclasses import replace
from functools import wraps
from typing import Any, Protocol, TypeGuard, TypeVar

import anyio

from agentrt.agent import AgentBase
from agentrt.hooks import ModelCallValues, NextModelCall
from agentrt.message import ContentBlock, TextBlock, ThinkingBlock, ToolCallBlock
from agentrt.model import ChatModelBase, ChatResponse, ChatUsage, ModelResult, WireRecord
from agentrt.model.estimate import estimated_usage

ATTEMPT_LAYERS = (
    "ModelFallbackMiddleware",
    "RefusalMiddleware",
    "RetryMiddleware",
    "CircuitBreakerMiddleware",
    "RateLimitMiddleware",
    "TimeoutMiddleware",
)
"""The layers that make several attempts at a request, and those that see each attempt."""

_HookMethod = TypeVar("_HookMethod", bound=Callable[..., object])
_MAX_TOKENS = 1 << 53  # a larger count is a provider's mistake, and would not survive as a float


def only_if(has_work: Callable[[Any, Any], bool]) -> Callable[[_HookMethod], _HookMethod]:
    """Make a hook return the next layer's result directly, for the price of a call, unless it has work to do.

    `has_work` gets the middleware and the agent.
    """

    def decorate(hook: _HookMethod) -> _HookMethod:
        @wraps(hook)
        def entry(self: object, agent: object, input_kwargs: Any, next_handler: Callable[..., object]) -> object:
            if has_work(self, agent):
                return hook(self, agent, input_kwargs, next_handler)
            return next_handler(**input_kwargs)

        return entry  # type: ignore[return-value]  # it returns what the hook would return

    return decorate


async def close(stream: object) -> None:
    """Close a stream, if it can be closed."""
    aclose = getattr(stream, "aclose", None)
    if aclose is not None:
        await aclose()


def is_readable(response: object) -> TypeGuard[ChatResponse]:
    """Say whether an object has the shape of a response; the runtime refuses any other, by name, when it gets there."""
    return isinstance(response, ChatResponse) and isinstance(response.content, (list, tuple))


def usage_of(response: ChatResponse) -> ChatUsage | None:
    """Return the usage of a response in whole numbers, or `None` if it reports no countable usage."""
    usage = response.usage
    if not isinstance(usage, ChatUsage):
        return None
    reported = (usage.input_tokens, usage.output_tokens, usage.cache_input_tokens, usage.cache_creation_input_tokens)
    # A custom model may report anything: `None`, a str of digits, nan, infinity.
    try:
        inputs, outputs, cached, created = (int(count or 0) for count in reported)
    except (TypeError, ValueError, OverflowError):
        return None
    if max(map(abs, (inputs, outputs, cached, created))) > _MAX_TOKENS:
        return None
    return ChatUsage(inputs, outputs, cached, created, bool(usage.estimated), bool(usage.replayed))


def usage_on_wire(agent: AgentBase, record: WireRecord) -> ChatUsage | None:
    """Return the reported or estimated usage of an ended call, `None` for none."""
    response = record.response
    if response is None:  # not even a broken answer, so it probably cost nothing
        return None
    usage = usage_of(response)
    if usage is None:
        if not (response.is_last or response.content):
            return None
        usage = estimated_usage((), response.content, record.model.text_length)
        usage.input_tokens = agent.run.estimate_tokens(record.messages, model=record.model)
    return usage


class StreamedAnswer:
    """The answer of a stream so far: all pieces together, unless one is marked as the last response.

    The content is kept only with `with_content=True`.
    """

    def __init__(self, *, with_content: bool) -> None:
        self._with_content = with_content
        self._content: list[ContentBlock] = []
        self._response: ChatResponse | None = None

    def add(self, piece: ChatResponse) -> None:
        """Add the next piece; a last response holds the whole answer and replaces the pieces before it."""
        response = self._response
        if piece.is_last or response is None:
            self._response = replace(piece)
        else:
            response.usage = piece.usage or response.usage
            response.finished_reason = piece.finished_reason or response.finished_reason
            response.id = piece.id or response.id
            response.metadata = piece.metadata or response.metadata
        if self._with_content:
            if piece.is_last:
                self._content.clear()
            self._content += piece.content

    def response(self) -> ChatResponse | None:
        """Return the whole answer, or `None` if nothing came."""
        return None if self._response is None else replace(self._response, content=self._merged_content())

    def _merged_content(self) -> list[ContentBlock]:
        """Merge the pieces of each tool call, and text or thinking that directly follows its own kind."""
        merged: list[tuple[ContentBlock, list[str]]] = []
        inputs: dict[str, list[str]] = {}
        for piece in self._content:
            last, last_texts = merged[-1] if merged else (None, [])
            match piece:
                # The pieces of parallel tool calls may alternate, so these are joined by id.
                case ToolCallBlock(id=call_id, input=text) if call_id in inputs:
                    inputs[call_id].append(text)
                case ToolCallBlock(id=call_id, input=text):
                    inputs[call_id] = [text]
                    merged.append((piece, inputs[call_id]))
                case TextBlock(text=text) | ThinkingBlock(thinking=text) if type(last) is type(piece):
                    last_texts.append(text)
                case TextBlock(text=text) | ThinkingBlock(thinking=text):
                    merged.append((piece, [text]))
                case _:
                    merged.append((piece, []))
        content: list[ContentBlock] = []
        for block, texts in merged:
            match block:
                case TextBlock():
                    content.append(replace(block, text="".join(texts)))
                case ThinkingBlock():
                    content.append(replace(block, thinking="".join(texts)))
                case ToolCallBlock():
                    content.append(replace(block, input="".join(texts)))
                case _:
                    content.append(block)
        return content


class Watcher(Protocol):
    """Observes one model call; its methods must not raise."""

    def see(self, response: ChatResponse) -> None:
        """Observe the whole answer, or one piece of it."""

    def end(self, error: BaseException | None, *, is_whole: bool) -> None:
        """Observe the end of the call; called once.

        `error` is what ended the call, a `GeneratorExit` if the reader left. `is_whole` says whether the answer is
        complete: it had a last response, or its stream of pieces ended.
        """


async def watch(next_handler: NextModelCall, values: ModelCallValues, watcher: Watcher) -> ModelResult:
    """Call the next layer and have `watcher` observe the call to its end, which may be the end of a stream."""
    try:
        result = await next_handler(**values)
    except BaseException as error:
        watcher.end(error, is_whole=False)
        raise
    if isinstance(result, ChatResponse):
        if is_readable(result):
            watcher.see(result)
        watcher.end(None, is_whole=True)
        return result
    return _WatchedStream(result, watcher)  # type: ignore[return-value]  # as good as an async generator


class _WatchedStream:
    """A stream that reports its end.

    A class, since a generator that is closed before its first item runs none of its code and would report nothing.
    """

    __slots__ = ("_has_begun", "_is_over", "_is_whole", "_stream", "_watcher")

    def __init__(self, stream: AsyncIterator[ChatResponse], watcher: Watcher) -> None:
        self._stream = stream
        self._watcher = watcher
        self._has_begun = False
        self._is_whole = False
        self._is_over = False

    def __aiter__(self) -> "_WatchedStream":
        return self

    async def __anext__(self) -> ChatResponse:
        try:
            response = await anext(self._stream)
        except StopAsyncIteration:
            self._is_whole = self._has_begun
            self._end(None)
            raise
        except BaseException as error:
            self._end(error)
            raise
        if is_readable(response):
            self._has_begun = True
            self._is_whole = self._is_whole or bool(response.is_last)
            self._watcher.see(response)
        return response

    async def aclose(self) -> None:
        try:
            await close(self._stream)
        finally:
            self._end(GeneratorExit())

    def _end(self, error: BaseException | None) -> None:
        if not self._is_over:
            self._is_over = True
            self._watcher.end(error, is_whole=self._is_whole)


class Attempts(Protocol):
    """Defines how a model call is started, and whether and when it is retried."""

    async def start(self) -> ModelResult:
        """Start the next attempt."""

    def wait_after(self, error: Exception) -> float | None:
        """Announce another attempt and return the seconds to wait before it; `None` lets the error propagate."""

    def accept(self, response: ChatResponse) -> ChatResponse:
        """Observe a whole answer of an attempt; return its last response, as it is passed on."""


def name_model(response: ChatResponse, model: ChatModelBase) -> ChatResponse:
    """Return the response with the model's name in its metadata, for a model other than the requested one."""
    # An inner layer may already have named another model, and knows better.
    return replace(response, metadata={"model": model.model, **(response.metadata or {})})


# Stands for the missing last response of a stream; compared by identity.
_NO_LAST_RESPONSE = ChatResponse([], is_last=False)


def add_note_once(error: Exception, note: str) -> None:
    """Add a note to an error unless it has it: a model may raise the same object each time."""
    if note not in getattr(error, "__notes__", ()):
        error.add_note(note)


async def make_attempts(attempts: Attempts) -> ModelResult:
    """Return the answer of the first successful attempt; one that breaks off in mid-stream has failed.

    An error after the last piece of an answer propagates, since a whole answer is not withdrawn.
    """
    result = await _start_until_answered(attempts)
    return result if isinstance(result, ChatResponse) else _stream_attempts(result, attempts)


async def _start_until_answered(attempts: Attempts) -> ModelResult:
    while True:
        try:
            result = await attempts.start()
        except Exception as error:
            wait = attempts.wait_after(error)
            if wait is None:
                raise
        else:
            return attempts.accept(result) if isinstance(result, ChatResponse) else result
        # Outside the `except`, so that the error and its frames are released before the wait.
        await anyio.sleep(wait)


async def _stream_attempts(result: ModelResult, attempts: Attempts) -> AsyncGenerator[ChatResponse, None]:
    """Yield the pieces of all attempts, one after the other, in one stream."""
    while not isinstance(result, ChatResponse):
        has_begun = is_whole = False
        try:
            async for response in result:
                has_begun = True
                if not is_whole and is_readable(response) and response.is_last:
                    is_whole = True
                    response = attempts.accept(response)
                yield response
            if has_begun and not is_whole:  # no piece is marked as the last, so all of them are the answer
                is_whole = True
                end = attempts.accept(_NO_LAST_RESPONSE)
                if end is not _NO_LAST_RESPONSE:
                    yield end
            return
        except Exception as error:
            wait = None if is_whole else attempts.wait_after(error)
            if wait is None:
                raise
        finally:
            # Before the wait and the next attempt, not at the end of the chain: the stream may hold a connection, and
            # a place in a rate limit that the next attempt needs.
            await close(result)
        await anyio.sleep(wait)
        result = await _start_until_answered(attempts)
    yield result
