"""The answer to one call: its time limits, the stream that reads it, and how that is closed."""

from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import suppress
from typing import Any, Protocol, TypeVar

import anyio

from agentrt.block import ContentBlock
from agentrt.errors import Malformed, ModelError, Timeout, Transient, UsageError
from agentrt.model.remote.connection import CLOSE_SECONDS
from agentrt.model.remote.provider_errors import ProviderErrors, json_or_text
from agentrt.model.remote.settings import Timeouts
from agentrt.model.remote.sse import EventReader, ServerSentEvent, parse_object
from agentrt.model_interface.estimate import characters_of
from agentrt.types import ChatResponse

__all__ = ["AnswerReader", "AnswerStream", "CallTimer", "WrappedReader"]

_Returned = TypeVar("_Returned")

_DRAIN_SECONDS = 0.1  # for the end of an HTTP response, without which its connection cannot be used again
_BLANK = b"\xef\xbb\xbf \t\r\n"


class AnswerReader(Protocol):
    """Makes one answer out of what one provider sends; made anew for each call.

    Raises `Malformed` for what does not fit. Whatever it raises, the model names itself in the message and keeps its
    key out of it.
    """

    @property
    def is_complete(self) -> bool:
        """Whether the answer's end has been seen; a stream that ends or fails after that is not cut short."""

    @property
    def has_ended(self) -> bool:
        """Whether no event can follow; "[DONE]" needs no reader to be understood."""

    @property
    def has_progressed(self) -> bool:
        """Whether the last event brought anything of the answer, even if no piece of it is ready yet."""

    def feed(self, event: dict[str, object]) -> list[ContentBlock]:
        """Take one event of a stream, and return the new pieces."""

    def read(self, body: dict[str, object]) -> None:
        """Take the whole answer at once, when it was not streamed."""

    def answer(self) -> ChatResponse:
        """Return the whole answer; raises `Refused` when the model declined."""


class WrappedReader:
    """Reads as the reader in it does, where a subclass does not say otherwise."""

    def __init__(self, reader: AnswerReader) -> None:
        self._reader = reader

    @property
    def is_complete(self) -> bool:
        return self._reader.is_complete

    @property
    def has_ended(self) -> bool:
        return self._reader.has_ended

    @property
    def has_progressed(self) -> bool:
        return self._reader.has_progressed

    def feed(self, event: dict[str, object]) -> list[ContentBlock]:
        return self._reader.feed(event)

    def read(self, body: dict[str, object]) -> None:
        self._reader.read(body)

    def answer(self) -> ChatResponse:
        return self._reader.answer()


class CallTimer:
    """Keeps the waiting of one call within its limits.

    The time that is left is counted down here and not by one scope around everything, since a scope may not be open
    while a stream is in its reader's hands. It runs from a wait to the next pause.
    """

    def __init__(self, limits: Timeouts, errors: ProviderErrors, *, streams: bool) -> None:
        self._limits = limits
        self._errors = errors
        self._streams = streams
        self._total_left = limits.total
        self._idle_left = limits.idle
        self._running_since: float | None = None

    def check(self) -> None:
        """Raise `Timeout` if no time is left; the time since the last wait counts, unless there was a pause."""
        self._count_down()
        if self._seconds_left() <= 0:
            raise self._timeout_error()

    def pause(self) -> None:
        """Do not count the time until the next wait."""
        self._running_since = None

    def note_progress(self) -> None:
        """Note that a piece has come."""
        self._idle_left = self._limits.idle

    async def wait(self, work: Awaitable[_Returned]) -> _Returned:
        """Return what the work gives, unless it takes longer than is left."""
        if self._running_since is None:
            self._running_since = anyio.current_time()
        with anyio.move_on_after(self._seconds_left()):
            result = await work
            self._count_down()
            return result
        # Only the scope's own deadline leads here: any other cancellation leaves as what it is.
        raise self._timeout_error()

    def _seconds_left(self) -> float:
        return min(self._idle_left, self._total_left) if self._streams else self._total_left

    def _count_down(self) -> None:
        now = anyio.current_time()
        if self._running_since is not None:
            self._idle_left -= now - self._running_since
            self._total_left -= now - self._running_since
        self._running_since = now

    def _timeout_error(self) -> Timeout:
        if self._streams and self._idle_left <= self._total_left:
            name, limit, what = "idle", self._limits.idle, "sent nothing new for"
        else:
            name, limit, what = "total", self._limits.total, "kept us waiting for more than"
        return Timeout(
            f"{self._errors.source} {what} {limit:g} s ({name}): to wait longer, give timeouts=Timeouts({name}=...)"
        )


class AnswerStream:
    """The streamed answer: iterates like an async generator, but closes its HTTP response even if never iterated."""

    def __init__(
        self,
        response: Any,
        reader: AnswerReader,
        timer: CallTimer,
        errors: ProviderErrors,
        max_bytes: float,
        leave: Callable[[], Awaitable[None]],
    ) -> None:
        self._response = response
        self._chunks: AsyncGenerator[bytes, None] = response.aiter_bytes()
        self._reader = reader
        self._timer = timer
        self._errors = errors
        self._max_bytes = max_bytes
        self._leave = leave  # tells the client that this call no longer uses it
        self._events = EventReader()
        self._unread_events: deque[ServerSentEvent] = deque()
        self._unstreamed = bytearray()
        self._byte_count = self._piece_count = self._character_count = 0
        self._is_blank_so_far = True  # some servers send blank lines until their answer is there
        self._is_closed = self._is_reading = False

    def __aiter__(self) -> "AnswerStream":
        return self

    async def __anext__(self) -> ChatResponse:
        self._check_not_reading("read")
        self._is_reading = True
        try:
            while not self._is_closed:
                response = await self._next_response()
                if response is not None:
                    return response
        except BaseException:
            await self._close()
            raise
        finally:
            # The reader may take its time with what it was given; only our own waiting counts.
            self._timer.pause()
            self._is_reading = False
        raise StopAsyncIteration

    async def aclose(self) -> None:
        """Close the response; more than once does no harm. Raises `UsageError` while another task reads it."""
        self._check_not_reading("closed")
        await self._close()

    async def read_whole(self) -> ChatResponse:
        """Return the answer to a request that did not ask for a stream, and close the response."""
        try:
            while (chunk := await self._read_chunk()) is not None:
                self._unstreamed += chunk
        finally:
            await self._close()
        return self._guard(self._parse_unstreamed)

    def _check_not_reading(self, what: str) -> None:
        if self._is_reading:
            raise UsageError(
                f"the stream of {self._errors.source} cannot be {what} while another task waits for its next piece: "
                f"cancel that task instead, or let it finish"
            )

    async def _close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        # Shielded, since a caller that is being cancelled must not leave the connection open; limited, since the server
        # may not answer any more.
        with anyio.move_on_after(CLOSE_SECONDS, shield=True):
            try:
                await self._stop_reading()
            finally:
                await self._response.aclose()
        await self._leave()

    async def _stop_reading(self) -> None:
        # Closing httpx2's generator leaves those inside it suspended, for the garbage collector to find; a read that is
        # cancelled ends them all.
        with anyio.CancelScope() as scope:
            scope.cancel()
            with suppress(Exception):
                async for _ in self._chunks:
                    pass
        await self._chunks.aclose()

    async def _next_response(self) -> ChatResponse | None:
        # One event at a time: what came before a failure is seen, even if both came in one chunk.
        if self._reader.has_ended:  # and its last event had pieces
            response: ChatResponse | None = self._guard(self._reader.answer)
        elif self._unread_events:
            event = self._unread_events.popleft()
            response = self._guard(lambda: self._read_event(event))
        else:
            chunk = await self._read_chunk()
            if chunk is not None:
                self._take_chunk(chunk)
                return None
            self._unread_events.extend(self._events.end())
            if self._unread_events:
                return None
            response = self._guard(self._end)
        if response is not None and response.is_last:
            await self._drain()
            await self._close()
        return response

    def _take_chunk(self, chunk: bytes) -> None:
        # No event begins with a brace: the server does not stream, or has an error to report.
        if self._unstreamed or (self._is_blank_so_far and chunk.lstrip(_BLANK).startswith(b"{")):
            self._unstreamed += chunk
        else:
            self._unread_events.extend(self._events.feed(chunk))
        self._is_blank_so_far = self._is_blank_so_far and not chunk.strip(_BLANK)

    async def _read_chunk(self) -> bytes | None:
        try:
            self._timer.check()
            chunk = await self._timer.wait(anext(self._chunks))
            self._byte_count += len(chunk)
            # Checked here, since a server that sends one endless line never completes an event.
            if self._byte_count > self._max_bytes:
                raise Malformed(
                    f"{self._errors.source} answered with more than {self._max_bytes:,} bytes: to take more, "
                    f"give max_bytes=..."
                )
            return chunk
        except StopAsyncIteration:
            return None
        except (Malformed, Timeout):
            if self._reader.is_complete:
                return None
            raise
        except Exception as error:  # noqa: BLE001  # the boundary to httpx2
            if self._reader.is_complete:
                return None
            failure = self._connection_error(error)
        # Outside of the `except`, or httpx2's error, which may hold a key, would become its context.
        raise failure

    def _read_event(self, sent: ServerSentEvent) -> ChatResponse | None:
        if sent.data.startswith(b"[DONE]"):
            return self._reader.answer()
        # Anthropic names the events that report an error; the others put it into the data.
        if sent.name == "error":
            raise self._errors.error_for_event(json_or_text(sent.data.decode(errors="replace")))
        event = parse_object(sent.data)
        if event.get("error"):
            raise self._errors.error_for_event(event)
        pieces = self._reader.feed(event)
        if self._reader.has_ended and not pieces:
            return self._reader.answer()
        if pieces or self._reader.has_progressed:
            self._timer.note_progress()
        if not pieces:
            return None
        self._piece_count += len(pieces)
        self._character_count += sum(characters_of(piece, len) for piece in pieces)
        return ChatResponse(pieces, False)

    def _end(self) -> ChatResponse:
        """Return the answer at the end of the response, or raise what was wrong with it."""
        if self._unstreamed:
            return self._parse_unstreamed()
        if self._reader.is_complete:
            return self._reader.answer()
        # Once pieces have come, the URL was right, and a line that belongs to no event is noise.
        if self._events.stray and not self._piece_count:
            stray = self._events.stray.decode(errors="replace")
            raise Malformed(f"it answered with {stray!r} in place of a stream: does base_url end in its API's path?")
        raise self._cut_error("it ended before the answer did")

    def _parse_unstreamed(self) -> ChatResponse:
        body = parse_object(bytes(self._unstreamed))
        if body.get("error"):
            raise self._errors.error_for_event(body)
        self._reader.read(body)
        return self._reader.answer()

    def _guard(self, read: Callable[[], _Returned]) -> _Returned:
        """Return what reading an answer gives.

        Whatever it raises becomes an error of the tree that names the model, without its key.
        """
        try:
            return read()
        except ModelError as error:
            if str(error).startswith(self._errors.source):  # one of ours, without secrets
                raise
            failure: ModelError = type(error)(f"{self._errors.source}: {self._errors.excerpt(str(error))}")
        except Exception as error:  # noqa: BLE001  # an answer of an unforeseen shape
            why = self._errors.describe(error)
            failure = Malformed(f"{self._errors.source}: its answer cannot be read ({why})")
            failure.__cause__ = self._errors.safe_cause(error)
        raise failure

    def _connection_error(self, error: Exception) -> ModelError:
        why = self._errors.describe(error)
        failure: ModelError = self._cut_error(why)
        if type(error).__name__ == "DecodingError":
            failure = Malformed(f"{self._errors.source} sent what cannot be decoded ({why})")
        failure.__cause__ = self._errors.safe_cause(error)
        return failure

    def _cut_error(self, why: str) -> Transient:
        pieces = f"{self._piece_count} pieces with {self._character_count} characters"
        amount = pieces if self._piece_count else f"{self._byte_count} bytes"
        return Transient(f"{self._errors.source}: its answer was cut after {amount}: {why}")

    async def _drain(self) -> None:
        # The answer is whole by now: a failure here costs the connection and nothing else.
        with anyio.move_on_after(_DRAIN_SECONDS), suppress(Exception):
            async for _ in self._chunks:
                pass
