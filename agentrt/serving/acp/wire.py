"""ACP over two file descriptors."""

import json
import logging
import threading
from typing import Any, TypeGuard

import acp
import anyio
from acp.exceptions import RequestError

from agentrt._runtime.concurrency.wire import Lines, LongLine, Wire, read_in_thread, write_bytes

_logger = logging.getLogger("agentrt")
_SECONDS_FOR_ANSWERS = 1.0
"""How long answers may take at the end: an editor that has closed its end may still read them."""


async def serve_editor(editor_agent: acp.Agent, wire: Wire, *, line_bytes: int) -> None:
    """Serve one editor until it closes its end; messages of more than `line_bytes` are refused."""
    await acp.run_agent(editor_agent, _WireTransport(wire, line_bytes))


class _WireTransport:
    """Messages as the SDK sends and receives them; anything else is refused here."""

    def __init__(self, wire: Wire, line_bytes: int) -> None:
        self._wire = wire
        self._limit = line_bytes
        self._lines = Lines(line_bytes)
        self._send, self._receive = anyio.create_memory_object_stream[bytes | LongLine](0)
        self._writing = anyio.Lock()  # for the order
        # For threads whose caller was cancelled: the next message must not begin in the middle of theirs.
        self._lines_whole = threading.Lock()
        self._unanswered: set[int | str] = set()
        self._answered = anyio.Event()
        read_in_thread(wire.reads, self._take)

    async def receive(self) -> dict[str, Any] | None:
        async for line in self._receive:
            if isinstance(line, LongLine):
                await self._refuse(RequestError.invalid_request({"details": f"more than {self._limit:,} bytes"}))
                continue
            try:
                message = json.loads(line)
            except (ValueError, RecursionError):
                await self._refuse(RequestError.parse_error({"details": "this line is not JSON"}))
                continue
            if not _is_message(message):
                await self._refuse(RequestError.invalid_request({"details": "this line is not a message of JSON-RPC"}))
                continue
            if "method" in message and message.get("id") is not None:
                self._unanswered.add(message["id"])
            return message
        with anyio.move_on_after(_SECONDS_FOR_ANSWERS):
            while self._unanswered:
                await self._answered.wait()
        return None

    async def send(self, message: dict[str, Any]) -> None:
        # The SDK quotes what was wrong with parameters, and may quote what has no JSON form.
        data = json.dumps(message, separators=(",", ":"), default=repr).encode() + b"\n"
        async with self._writing:
            try:
                # In a thread, since an editor that does not read would stop the event loop.
                await anyio.to_thread.run_sync(self._write, data, abandon_on_cancel=True)
            except OSError as error:
                _logger.info("the editor has stopped reading: %s", type(error).__name__)
                self._receive.close()
                raise ConnectionError("the editor has closed its end") from None
        if "method" not in message:
            self._unanswered.discard(message.get("id"))
            # An event is set once; who waits later waits for the next one.
            answered, self._answered = self._answered, anyio.Event()
            answered.set()

    def _write(self, data: bytes) -> None:
        with self._lines_whole:
            write_bytes(self._wire.writes, data)

    async def close(self) -> None:
        self._send.close()
        self._receive.close()

    async def _take(self, chunk: bytes) -> None:
        try:
            if not chunk:
                self._send.close()
            for line in self._lines.feed(chunk):
                await self._send.send(line)
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            pass  # the server has ended

    async def _refuse(self, error: RequestError) -> None:
        # Without an id, which is in the message that was not read.
        await self.send({"jsonrpc": "2.0", "id": None, "error": error.to_error_obj()})


def _is_message(message: Any) -> TypeGuard[dict[str, Any]]:
    """Say whether the SDK can handle it: its whole connection would end with one that it cannot."""
    if not isinstance(message, dict):
        return False
    is_named = isinstance(message.get("method", ""), str) and isinstance(message.get("id"), int | str | None)
    return is_named and isinstance(message.get("error"), dict | None)
