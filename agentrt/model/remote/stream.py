"""The answer to one call, and the stream that reads it."""

from collections.abc import Callable, Iterator

from agentrt._runtime.http.limits import CallTimer
from agentrt._runtime.http.peer import HTTPResponse
from agentrt._runtime.model_interface.estimate import characters_of
from agentrt.errors import Malformed, ModelError, UsageError
from agentrt.model.remote.event_stream import FrameReader
from agentrt.model.remote.provider_errors import ProviderErrors, json_or_text
from agentrt.model.remote.reader import AnswerReader
from agentrt.model.remote.sse import EventReader, JSONLineReader, ServerSentEvent, parse_object
from agentrt.types import ChatResponse

_STREAM_READERS: dict[str, Callable[[], EventReader | FrameReader | JSONLineReader]] = {
    "application/vnd.amazon.eventstream": FrameReader,
    "application/x-ndjson": JSONLineReader,
}
"""The readers of streams by content type; other streams are server-sent events."""
_BLANK = b"\xef\xbb\xbf \t\r\n"


class AnswerStream:
    """The streamed answer: iterates like an async generator, but closes its HTTP response even if never iterated."""

    def __init__(self, response: HTTPResponse, reader: AnswerReader, timer: CallTimer, errors: ProviderErrors) -> None:
        self._response = response
        self._reader = reader
        self._timer = timer
        self._errors = errors
        content_type = response.headers.get("content-type", "").partition(";")[0].strip().lower()
        self._events = _STREAM_READERS.get(content_type, EventReader)()
        self._unread_events: Iterator[ServerSentEvent] = iter(())
        self._unstreamed = bytearray()
        self._piece_count = self._character_count = 0
        self._is_blank_so_far = True  # some servers send blank lines until their answer is ready
        self._is_closed = self._is_reading = self._is_at_end = False

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
            # The consumer's time does not count, only our own waiting.
            self._timer.pause()
            self._is_reading = False
        raise StopAsyncIteration

    async def aclose(self) -> None:
        """Close the response; closing it again does no harm. Raises `UsageError` while another task reads it."""
        self._check_not_reading("closed")
        await self._close()

    async def read_whole(self) -> ChatResponse:
        """Return the answer to a request without streaming, and close the response."""
        try:
            while (chunk := await self._read_chunk()) is not None:
                self._unstreamed += chunk
        finally:
            await self._close()
        return self._errors.guard(self._parse_unstreamed)

    def _check_not_reading(self, what: str) -> None:
        if self._is_reading:
            raise UsageError(
                f"the stream of {self._errors.source} cannot be {what} while another task waits for its next piece: "
                f"cancel that task instead, or let it finish"
            )

    async def _close(self) -> None:
        self._is_closed = True
        await self._response.aclose()

    async def _next_response(self) -> ChatResponse | None:
        # One event at a time: events before a failure are delivered, even if both came in one chunk.
        response = self._errors.guard(self._read_unread)
        if response is None:
            if not self._is_at_end:
                await self._read_more()
                return None
            response = self._errors.guard(self._end)
        if response.is_last:
            await self._response.drain()
            await self._close()
        return response

    async def _read_more(self) -> None:
        chunk = await self._read_chunk()
        if chunk is not None:
            self._take_chunk(chunk)
            return
        self._is_at_end = True
        self._unread_events = iter(self._events.end())

    def _take_chunk(self, chunk: bytes) -> None:
        # No server-sent event begins with a brace: the server does not stream, or reports an error.
        begins_object = self._is_blank_so_far and chunk.lstrip(_BLANK).startswith(b"{")
        if self._unstreamed or (begins_object and not isinstance(self._events, JSONLineReader)):
            self._unstreamed += chunk
        else:
            self._unread_events = iter(self._events.feed(chunk))
        self._is_blank_so_far = self._is_blank_so_far and not chunk.strip(_BLANK)

    async def _read_chunk(self) -> bytes | None:
        try:
            return await self._response.read(self._describe_progress)
        except ModelError:
            if self._reader.is_complete:
                return None
            raise

    def _read_unread(self) -> ChatResponse | None:
        """Return the next response among the events that have arrived, `None` when all are read."""
        if self._reader.has_ended:  # the last event had pieces
            return self._reader.answer()
        for event in self._unread_events:
            response = self._read_event(event)
            if response is not None:
                return response
        return None

    def _read_event(self, sent: ServerSentEvent) -> ChatResponse | None:
        if sent.data.startswith(b"[DONE]"):
            return self._reader.answer()
        # Anthropic names events for errors; the others put the error into the data.
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
        """Return the answer at the end of the response, or raise its error."""
        if self._unstreamed:
            return self._parse_unstreamed()
        if self._reader.is_complete:
            return self._reader.answer()
        # Once pieces have come, the URL is right, and a stray line is noise.
        if self._events.stray and not self._piece_count:
            stray = self._events.stray.decode(errors="replace")
            raise Malformed(f"it answered with {stray!r} in place of a stream: does base_url end in its API's path?")
        raise self._response.cut_error("it ended before the answer did", self._describe_progress)

    def _parse_unstreamed(self) -> ChatResponse:
        body = parse_object(bytes(self._unstreamed))
        if body.get("error"):
            raise self._errors.error_for_event(body)
        self._reader.read(body)
        return self._reader.answer()

    def _describe_progress(self) -> str:
        pieces = f"{self._piece_count} pieces with {self._character_count} characters"
        return pieces if self._piece_count else f"{self._response.size} bytes"
