"""What the layers around a model call share: watching it to its end, and starting it again."""

from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import replace
from typing import Any, Protocol

import anyio

from agentrt.hooks import ModelCallValues, NextModelCall
from agentrt.message import ContentBlock, TextBlock, ThinkingBlock, ToolCallBlock
from agentrt.model import ChatResponse, ChatUsage, ModelResult

__all__ = ["Attempts", "Pieces", "Watcher", "close", "is_readable", "make_attempts", "usage_of", "watch"]

_MAX_TOKENS = 1 << 53  # what is more cannot be


async def close(stream: Any) -> None:
    """Close a stream, if that is anything that can be closed."""
    aclose = getattr(stream, "aclose", None)
    if aclose is not None:
        await aclose()


def is_readable(response: Any) -> bool:
    """Say whether a response can be looked into; any other is handed on, to be refused by name."""
    return isinstance(response, ChatResponse) and isinstance(response.content, (list, tuple))


def usage_of(response: ChatResponse) -> ChatUsage | None:
    """Return the usage of a response in whole numbers, `None` where it reports none that can be counted."""
    usage = response.usage
    if not isinstance(usage, ChatUsage):
        return None
    counts = (usage.input_tokens, usage.output_tokens, usage.cache_input_tokens, usage.cache_creation_input_tokens)
    try:
        asked, said, cached, created = (int(count or 0) for count in counts)
    except (TypeError, ValueError, OverflowError):
        return None
    is_possible = max(map(abs, (asked, said, cached, created))) <= _MAX_TOKENS
    return ChatUsage(asked, said, cached, created, bool(usage.estimated)) if is_possible else None


class Pieces:
    """The pieces of a stream, which are the whole answer where none of them is marked as the last.

    What they say is kept with `with_content` only.
    """

    def __init__(self, *, with_content: bool) -> None:
        self._with_content = with_content
        self._content: list[ContentBlock] = []
        self._whole: ChatResponse | None = None

    def add(self, piece: ChatResponse) -> None:
        """Take the next piece, or the last response, which says it all itself."""
        before = self._whole
        if piece.is_last or before is None:
            self._whole = replace(piece)
        else:
            before.usage = piece.usage or before.usage
            before.finished_reason = piece.finished_reason or before.finished_reason
            before.id = piece.id or before.id
            before.metadata = piece.metadata or before.metadata
        if self._with_content:
            if piece.is_last:
                self._content.clear()
            self._content += piece.content

    def whole(self) -> ChatResponse | None:
        """Return the whole answer, `None` where nothing came."""
        return None if self._whole is None else replace(self._whole, content=_joined(self._content))


def _joined(pieces: list[ContentBlock]) -> list[ContentBlock]:
    """Join the pieces of each call, and text or thinking that follows on text or thinking."""
    blocks: list[tuple[ContentBlock, list[str]]] = []
    calls: dict[str, list[str]] = {}
    for piece in pieces:
        if isinstance(piece, ToolCallBlock):
            name, texts = "input", calls.get(piece.id)
        elif isinstance(piece, TextBlock | ThinkingBlock):
            name = "text" if isinstance(piece, TextBlock) else "thinking"
            texts = blocks[-1][1] if blocks and type(blocks[-1][0]) is type(piece) else None
        else:
            blocks.append((piece, []))
            continue
        if texts is None:
            texts = []
            blocks.append((piece, texts))
            if isinstance(piece, ToolCallBlock):
                calls[piece.id] = texts
        texts.append(getattr(piece, name))
    return [_with_text(block, "".join(texts)) for block, texts in blocks]


def _with_text(block: ContentBlock, text: str) -> ContentBlock:
    if isinstance(block, TextBlock):
        return replace(block, text=text)
    if isinstance(block, ThinkingBlock):
        return replace(block, thinking=text)
    return replace(block, input=text) if isinstance(block, ToolCallBlock) else block


class Watcher(Protocol):
    """Is told what becomes of one model call; must not raise."""

    def see(self, response: ChatResponse) -> None:
        """Take note of the whole answer, or of one piece of it."""

    def end(self, error: BaseException | None, *, is_whole: bool) -> None:
        """The call is over; `error` is what ended it, a `GeneratorExit` if its reader left. Called once.

        `is_whole` says that the answer came to its end: with a last response, or because a stream of pieces ended.
        """


async def watch(next_handler: NextModelCall, values: ModelCallValues, watcher: Watcher) -> ModelResult:
    """Call the next layer and have the call watched to its end, also where that is the end of a stream."""
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
    """A stream whose end is told of also when it is closed before it was ever iterated."""

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
    """Says how a model call is begun, and whether and when it is begun again."""

    async def start(self) -> ModelResult:
        """Begin the next attempt."""

    def wait_after(self, error: Exception) -> float | None:
        """Announce another attempt and return the seconds to wait before it, or `None` to let the error leave."""

    def answered(self, response: ChatResponse) -> ChatResponse:
        """An attempt has brought a whole answer; return its last response as it is to be handed on."""


_END = ChatResponse([], is_last=False)


async def make_attempts(attempts: Attempts) -> ModelResult:
    """Return the answer of the first attempt that brings one; attempts that break off in mid-stream count as well.

    What an answer has brought after its last piece is not undone: an error that comes then leaves.
    """
    result = await _begin(attempts)
    return result if isinstance(result, ChatResponse) else _go_on(result, attempts)


async def _begin(attempts: Attempts) -> ModelResult:
    while True:
        try:
            result = await attempts.start()
        except Exception as error:
            wait = attempts.wait_after(error)
            if wait is None:
                raise
        else:
            return attempts.answered(result) if isinstance(result, ChatResponse) else result
        await anyio.sleep(wait)


async def _go_on(result: ModelResult, attempts: Attempts) -> AsyncGenerator[ChatResponse, None]:
    while not isinstance(result, ChatResponse):
        has_begun = is_whole = False
        try:
            async for response in result:
                has_begun = True
                if not is_whole and is_readable(response) and response.is_last:
                    is_whole = True
                    response = attempts.answered(response)
                yield response
            if has_begun and not is_whole:  # the pieces are the answer
                is_whole = True
                end = attempts.answered(_END)
                if end is not _END:
                    yield end
            return
        except Exception as error:
            wait = None if is_whole else attempts.wait_after(error)
            if wait is None:
                raise
        finally:
            # Before the next attempt begins, and not at the end of the chain: it holds a connection, and a place.
            await close(result)
        await anyio.sleep(wait)
        result = await _begin(attempts)
    yield result
