"""MCP over two file descriptors: each message is a line of limited length."""

import logging
from contextlib import suppress
from typing import Any

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.server import Server
from mcp.shared.message import SessionMessage
from mcp.types import INVALID_REQUEST, PARSE_ERROR, ErrorData, JSONRPCError, jsonrpc_message_adapter

from agentrt._runtime.concurrency.wire import Lines, LongLine, Wire, read_in_thread, write_bytes

_logger = logging.getLogger("agentrt")
_FLUSH_SECONDS = 1.0
"""How long the last messages may take at the end: a client that has closed its end reads nothing."""


async def serve_wire(server: Server[Any], wire: Wire, *, line_bytes: int) -> None:
    """Serve one client until it closes its end; messages of more than `line_bytes` are refused."""
    read_send, read_receive = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    write_send, write_receive = anyio.create_memory_object_stream[SessionMessage](0)
    messages = _Messages(line_bytes, read_send, write_send.clone())
    read_in_thread(wire.reads, messages.take)
    async with anyio.create_task_group() as group:
        group.start_soon(_write, wire.writes, write_receive, messages)
        await server.run(read_receive, write_send, server.create_initialization_options())
        messages.close()
        group.cancel_scope.deadline = anyio.current_time() + _FLUSH_SECONDS


class _Messages:
    """Passes on the messages in what was read, and refuses any other line."""

    def __init__(
        self,
        limit: int,
        messages: MemoryObjectSendStream[SessionMessage | Exception],
        refusals: MemoryObjectSendStream[SessionMessage],
    ) -> None:
        self._limit = limit
        self._lines = Lines(limit)
        self._messages = messages
        self._refusals = refusals

    async def take(self, chunk: bytes) -> None:
        """Pass on the messages that the chunk completes; an empty chunk is the end."""
        with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):  # the server has ended
            if not chunk:
                self.close()
            for line in self._lines.feed(chunk):
                await self._pass_on(line)

    def close(self) -> None:
        self._messages.close()
        self._refusals.close()

    async def _pass_on(self, line: bytes | LongLine) -> None:
        if isinstance(line, LongLine):
            await self._refuse(INVALID_REQUEST, f"a message may have {self._limit:,} bytes, and this one has more")
            return
        try:
            message = jsonrpc_message_adapter.validate_json(line, by_name=False)
        except ValueError:
            await self._refuse(PARSE_ERROR, "this line is not a message of JSON-RPC")
            return
        await self._messages.send(SessionMessage(message))

    async def _refuse(self, code: int, message: str) -> None:
        # Without an id, which is in the message that was not read.
        error = JSONRPCError(jsonrpc="2.0", id=None, error=ErrorData(code=code, message=message))
        await self._refusals.send(SessionMessage(error))


async def _write(file: int, messages: MemoryObjectReceiveStream[SessionMessage], source: _Messages) -> None:
    try:
        async with messages:
            async for message in messages:
                text = message.message.model_dump_json(by_alias=True, exclude_unset=True)
                await anyio.to_thread.run_sync(write_bytes, file, f"{text}\n".encode(), abandon_on_cancel=True)
    except OSError as error:
        # The client has closed its end: nobody is left to serve.
        _logger.info("the client has stopped reading: %s", type(error).__name__)
        source.close()
