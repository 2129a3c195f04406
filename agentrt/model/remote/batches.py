"""The batch API of a provider: the requests, records and results that all of them have in common."""

import json
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from math import inf
from typing import Any, ClassVar, Protocol

from agentrt._runtime.block import JSONObject
from agentrt._runtime.http.limits import CallTimer, Timeouts
from agentrt._runtime.http.peer import HTTPResponse
from agentrt._runtime.model_interface.base import check_request
from agentrt._runtime.model_interface.batch import BatchRequest, BatchResult, BatchStatus
from agentrt._runtime.text import lazy_pattern
from agentrt.errors import InvalidInputError, Malformed, ModelError, Unsupported
from agentrt.message import Msg
from agentrt.model.remote.provider_errors import ProviderErrors
from agentrt.model.remote.sse import parse_object
from agentrt.types import ChatResponse, ChatUsage

GetAnswer = Callable[[], ChatResponse]
"""Returns the answer in a line of results, or raises its error."""

_JSON = {"content-type": "application/json"}
_REQUEST_KEY = lazy_pattern(r"request-(\d{1,7})")
_BATCH_NAME = lazy_pattern(r"[ -~]{1,64}")
_PAGES_OF_BATCHES = 10  # of 100 batches each
_BATCH_EXAMPLE = 'model.batch([[UserMsg("user", "Hi")], ...])'


class _Send(Protocol):
    def __call__(
        self, method: str, path: str, content: bytes | None, headers: Mapping[str, str], timer: CallTimer, size: float
    ) -> Awaitable[HTTPResponse]: ...


@dataclass(frozen=True, slots=True)
class BatchConnection:
    """A model as its batches use it: its connection, and the functions that read and price one answer."""

    model: str
    url: str
    path: str
    timeouts: Timeouts
    max_bytes: float
    errors: ProviderErrors
    send: _Send
    read: Callable[[dict[str, object]], ChatResponse]
    cost: Callable[[ChatUsage], float | None]


class BatchEndpoint:
    """The batch API of one model. A subclass knows its provider's paths, records and lines of results.

    No request is repeated here. Results are read line by line, each of them at most as long as an answer may be.
    """

    max_requests: ClassVar[int]
    """The most requests that the provider takes in one batch."""
    max_size: ClassVar[int]
    """The most bytes that the provider takes in one batch."""
    id_pattern: ClassVar[re.Pattern[str]] = lazy_pattern(r"[\w-][\w.-]{0,199}", re.ASCII)
    """Matches the id of a batch, which becomes part of a path."""
    id_field: ClassVar[str] = "id"
    cancel_suffix: ClassVar[str] = "/cancel"

    def __init__(self, connection: BatchConnection) -> None:
        self.connection = connection
        self.source = connection.errors.source

    # Different for each provider.

    def line(self, key: str, body: JSONObject) -> JSONObject:
        """Return a request as an object of the provider's list or file."""
        raise NotImplementedError

    async def submit(self, lines: Sequence[bytes], name: str | None) -> dict[str, Any]:
        """Submit the requests, each a `line` in JSON, and return the record of the batch."""
        raise NotImplementedError

    def path_of(self, id: str) -> str:
        """Return the path of a batch, below the base URL."""
        raise NotImplementedError

    def read_status(self, record: dict[str, Any]) -> BatchStatus:
        """Return the status in the provider's record of a batch."""
        raise NotImplementedError

    def result_paths(self, record: dict[str, Any]) -> list[str]:
        """Return the paths of the files with the results; raises `Rejected` for a batch that was refused as a whole."""
        raise NotImplementedError

    def read_line(self, line: dict[str, Any]) -> tuple[str, GetAnswer]:
        """Return the key of a request, and the function that reads its result."""
        raise NotImplementedError

    def page_path(self, token: str) -> str:
        """Return the path of a page of all batches, the latest first; "" for the first page."""
        raise Unsupported(
            f"{self.source}: a batch there has no name: leave out name=..., and save batch.id at once",
            capability="batch name",
        )

    def read_page(self, page: dict[str, Any]) -> tuple[list[tuple[object, dict[str, Any]]], str]:
        """Return the records of a page, each with the name of its batch, and the token of the next page, or ""."""
        raise NotImplementedError

    # Common to all.

    def status(self, record: dict[str, Any]) -> BatchStatus:
        """Return the status in the provider's record of a batch."""
        return self.connection.errors.guard(lambda: self.read_status(record))

    def id_of(self, record: dict[str, Any]) -> str:
        """Return the id in a record."""
        return self.connection.errors.guard(lambda: self.check_part(record.get(self.id_field), self.id_pattern))

    def check_id(self, id: object) -> str:
        """Return the id that a user gives; raises `InvalidInputError` for one that cannot be of this provider."""
        if not isinstance(id, str) or not self.id_pattern.fullmatch(id):
            raise InvalidInputError(f"{self.source}: {id!r:.100} is not the id of a batch: give the saved batch.id")
        return id

    def check_part(self, text: object, pattern: re.Pattern[str]) -> str:
        """Return text of the provider that becomes part of a path; raises `Malformed` for any that may not."""
        if not isinstance(text, str) or not pattern.fullmatch(text):
            raise Malformed(f"it named a batch or a file {text!r}, which is not an id")
        return text

    async def submit_once(self, lines: Sequence[bytes], name: str | None) -> str:
        """Return the id of the batch with this name, which is submitted unless there is one.

        Raises `InvalidInputError` for a wrong name, and for more bytes than the provider takes.
        """
        size = sum(map(len, lines)) + len(lines)
        if size > self.max_size:
            raise InvalidInputError(
                f"{self.source}: a batch there has at most {self.max_size:,} bytes, and these requests have {size:,}: "
                f"submit several batches"
            )
        label: object = name
        if label is not None and not (isinstance(label, str) and _BATCH_NAME.fullmatch(label)):
            raise InvalidInputError(
                f"batch(name=...) must be a str of 1 to 64 printable characters, not {label!r:.100}"
            )
        found = None if name is None else await self.find(name)
        return found or self.id_of(await self.submit(lines, name))

    async def find(self, name: str) -> str | None:
        """Return the id of a batch with this name that is in progress or completed, `None` if there is none."""
        token = ""
        for _ in range(_PAGES_OF_BATCHES):
            page = await self.call("GET", self.page_path(token))
            records, token = self.connection.errors.guard(lambda page=page: self.read_page(page))  # type: ignore[misc]
            for batch_name, record in records:
                if batch_name == name and self.status(record).state in ("in_progress", "completed"):
                    return self.id_of(record)
            if not token:
                break
        return None

    async def fetch(self, id: str) -> dict[str, Any]:
        """Return the provider's record of a batch."""
        return await self.call("GET", self.path_of(id))

    async def cancel(self, id: str) -> None:
        """Ask the provider to stop a batch."""
        await self.call("POST", f"{self.path_of(id)}{self.cancel_suffix}", {})

    async def call(self, method: str, path: str, body: JSONObject | None = None) -> dict[str, Any]:
        """Return the object in the answer to a request."""
        content = None if body is None else json.dumps(body).encode()
        return await self.upload(path, content, _JSON, method)

    async def upload(
        self, path: str, content: bytes | None, headers: Mapping[str, str], method: str = "POST"
    ) -> dict[str, Any]:
        """Return the object in the answer to a request whose content has any form."""
        response = await self.open(method, path, content, headers)
        text = bytearray()
        try:
            while (chunk := await response.read()) is not None:
                text += chunk
        finally:
            await response.aclose()
        return self.connection.errors.guard(lambda: parse_object(bytes(text)) if text.strip() else {})

    async def open(
        self, method: str, path: str, content: bytes | None = None, headers: Mapping[str, str] = _JSON
    ) -> HTTPResponse:
        """Return the response to a request once its headers have arrived; the caller closes it."""
        timer = CallTimer(self.connection.timeouts, self.source, streams=False)
        return await self.connection.send(method, path, content, headers, timer, self.connection.max_bytes)

    async def results(self, record: dict[str, Any]) -> AsyncGenerator[BatchResult, None]:
        """Yield the results of a batch that has ended; raises `Rejected` for one that was refused as a whole."""
        for path in self.connection.errors.guard(lambda: self.result_paths(record)):
            timer = CallTimer(self.connection.timeouts, self.source)
            response = await self.connection.send("GET", path, None, {}, timer, inf)
            async with aclosing(self._lines(response, timer)) as lines:
                async for line in lines:
                    yield self._result(line)

    async def _lines(self, response: HTTPResponse, timer: CallTimer) -> AsyncGenerator[bytes, None]:
        waiting: list[bytes] = []  # pieces of a line, joined once
        size = 0
        try:
            while (chunk := await response.read()) is not None:
                timer.note_progress()
                *lines, rest = chunk.split(b"\n")
                for line in lines:
                    text = b"".join([*waiting, line])
                    waiting, size = [], 0
                    if text.strip():
                        timer.pause()  # the reader's time does not count
                        yield text
                waiting.append(rest)
                size += len(rest)
                if size > self.connection.max_bytes:
                    raise Malformed(
                        f"{self.source}: one result has more than {self.connection.max_bytes:,} bytes: to take more, "
                        f"give max_bytes=..."
                    )
            if (text := b"".join(waiting)).strip():
                yield text
        finally:
            await response.aclose()

    def _result(self, line: bytes) -> BatchResult:
        guard = self.connection.errors.guard
        index, answer = guard(lambda: self._entry(parse_object(line)))
        try:
            response = guard(answer)
        except ModelError as error:
            return BatchResult(index, error=error.with_traceback(None))  # whose frames would keep the line
        # An estimate would leave out the request, which is unknown here.
        usage = None if response.usage is None or response.usage.estimated else response.usage
        cost = None if usage is None else self.connection.cost(usage)
        return BatchResult(index, response, cost=cost)

    def _entry(self, line: dict[str, object]) -> tuple[int, GetAnswer]:
        key, answer = self.read_line(line)
        match = _REQUEST_KEY.fullmatch(key)
        if match is None:
            raise Malformed(f"its result has the key {key!r}: was this batch submitted by model.batch()?")
        return int(match[1]), answer

    def count(self, counts: Mapping[str, object], *names: str) -> int:
        """Return the sum of the counts with these names, at most as many as there may be requests."""
        # Google's are text, as all of its numbers with 64 bits.
        texts = [str(counts.get(name)) for name in names]
        return min(sum(int(text) for text in texts if text.isdecimal()), self.max_requests)


def read_requests(requests: Iterable[BatchRequest | Sequence[Msg]], most: int, source: str) -> list[BatchRequest]:
    """Return the requests of a batch; raises `InvalidInputError` for what is not a request, for none, and too many."""
    if isinstance(requests, (str, Msg, BatchRequest, Mapping)) or not isinstance(requests, Iterable):
        raise InvalidInputError(f"batch() takes a list of requests, not {requests!r:.200}: write {_BATCH_EXAMPLE}")
    checked: list[BatchRequest] = []
    for request in requests:
        if len(checked) == most:
            raise InvalidInputError(f"{source}: a batch there has at most {most:,} requests: submit several batches")
        request = request if isinstance(request, BatchRequest) else BatchRequest(request)
        messages: object = request.messages
        if not isinstance(messages, (list, tuple)) or not all(isinstance(message, Msg) for message in messages):
            raise InvalidInputError(
                f"batch() was given {messages!r:.200} as request {len(checked)}, not a list of messages: write "
                f"{_BATCH_EXAMPLE}"
            )
        check_request(messages, request.tools, request.tool_choice)
        checked.append(request)
    if not checked:
        raise InvalidInputError(f"batch() was given no requests: write {_BATCH_EXAMPLE}")
    return checked
