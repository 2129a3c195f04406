"""What the layers around a model call share: watching it to its end, and starting it again."""

from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any, Protocol

import anyio

from agentrt.hooks import ModelCallValues, NextModelCall
from agentrt.model import ChatResponse, ModelResult

__all__ = ["Attempts", "Watcher", "close", "make_attempts", "watch"]


async def close(stream: Any) -> None:
    """Close a stream, if that is anything that can be closed."""
    aclose = getattr(stream, "aclose", None)
    if aclose is not None:
        await aclose()


class Watcher(Protocol):
    """Is told what becomes of one model call; must not raise."""

    def see(self, response: ChatResponse) -> None:
        """Take note of the whole answer, or of one piece of it."""

    def end(self, error: BaseException | None) -> None:
        """The call is over; `error` is what ended it, a `GeneratorExit` if its reader left. Called once."""


async def watch(next_handler: NextModelCall, values: ModelCallValues, watcher: Watcher) -> ModelResult:
    """Call the next layer and have the call watched to its end, also where that is the end of a stream."""
    try:
        result = await next_handler(**values)
    except BaseException as error:
        watcher.end(error)
        raise
    if isinstance(result, ChatResponse):
        watcher.see(result)
        watcher.end(None)
        return result
    return _WatchedStream(result, watcher)  # type: ignore[return-value]  # as good as an async generator


class _WatchedStream:
    """A stream whose end is told of also when it is closed before it was ever iterated."""

    __slots__ = ("_is_over", "_stream", "_watcher")

    def __init__(self, stream: AsyncIterator[ChatResponse], watcher: Watcher) -> None:
        self._stream = stream
        self._watcher = watcher
        self._is_over = False

    def __aiter__(self) -> "_WatchedStream":
        return self

    async def __anext__(self) -> ChatResponse:
        try:
            response = await anext(self._stream)
        except StopAsyncIteration:
            self._end(None)
            raise
        except BaseException as error:
            self._end(error)
            raise
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
            self._watcher.end(error)


class Attempts(Protocol):
    """Says how a model call is begun, and whether and when it is begun again."""

    async def start(self) -> ModelResult:
        """Begin the next attempt."""

    def wait_after(self, error: Exception) -> float | None:
        """Announce another attempt and return the seconds to wait before it, or `None` to let the error leave."""

    def answered(self, response: ChatResponse) -> ChatResponse:
        """An attempt has brought a whole answer; return it as it is to be handed on."""


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
        is_whole = False
        try:
            async for response in result:
                if response.is_last and not is_whole:
                    is_whole = True
                    response = attempts.answered(response)
                yield response
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
