"""MCP over two file descriptors: each message is a line of limited length."""

import logging
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

import anyio
import anyio.from_thread
import anyio.lowlevel
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.server import Server
from mcp.shared.message import SessionMessage
from mcp.types import INVALID_REQUEST, PARSE_ERROR, ErrorData, JSONRPCError, jsonrpc_message_adapter

__all__ = ["Wire", "serve_wire", "take_stdio"]

_logger = logging.getLogger("agentrt")
_CHUNK_BYTES = 65_536
_FLUSH_SECONDS = 1.0
"""How long the last messages may take at the end: a client that has closed its end reads nothing."""


class Wire(NamedTuple):
    """The file descriptors on which the client writes and reads."""

    reads: int
    writes: int


@contextmanager
def take_stdio() -> Iterator[Wire]:
    """Keep standard input and output for the protocol alone.

    Meanwhile other code, in Python or not, prints to standard error and reads an empty input: one printed line among
    the messages would break the connection.
    """
    wire = Wire(os.dup(0), os.dup(1))
    try:
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.close(nothing)
        os.dup2(2, 1)
        yield wire
    finally:
        # Standard output stays redirected: what is printed at the end of the program is not for the client either.
        os.close(wire.writes)
        # `wire.reads` is left open: a thread may still read it, and must not read another file of that number.


async def serve_wire(server: Server[Any], wire: Wire, *, line_bytes: int) -> None:
    """Serve one client until it closes its end; messages of more than `line_bytes` are refused."""
    read_send, read_receive = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    write_send, write_receive = anyio.create_memory_object_stream[SessionMessage](0)
    lines = _MessageLines(line_bytes, read_send, write_send.clone())
    # A daemon thread, since nothing ends a read, and the program must not wait for it.
    threading.Thread(target=_read_chunks, args=(wire.reads, lines, anyio.lowlevel.current_token()), daemon=True).start()
    async with anyio.create_task_group() as group:
        group.start_soon(_write, wire.writes, write_receive, lines)
        await server.run(read_receive, write_send, server.create_initialization_options())
        lines.close()
        group.cancel_scope.deadline = anyio.current_time() + _FLUSH_SECONDS


class _MessageLines:
    """Splits what was read into messages, and passes them on."""

    def __init__(
        self,
        limit: int,
        messages: MemoryObjectSendStream[SessionMessage | Exception],
        refusals: MemoryObjectSendStream[SessionMessage],
    ) -> None:
        self._limit = limit
        self._messages = messages
        self._refusals = refusals
        self._buffer = bytearray()
        self._is_skipping = False

    async def take(self, chunk: bytes) -> None:
        """Pass on the messages that the chunk completes; an empty chunk is the end."""
        with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):  # the server has ended
            if not chunk:
                self.close()
                return
            self._buffer += chunk
            *lines, rest = self._buffer.split(b"\n")
            self._buffer = rest
            for line in lines:
                if self._is_skipping:
                    self._is_skipping = False  # the end of a line that was refused
                elif line.strip():
                    await self._pass_on(line)
            # Refused before its end has come, so that all of it is never in memory.
            if len(rest) > self._limit:
                self._buffer.clear()
                if not self._is_skipping:
                    self._is_skipping = True
                    await self._refuse_large()

    def close(self) -> None:
        self._messages.close()
        self._refusals.close()

    async def _pass_on(self, line: bytearray) -> None:
        if len(line) > self._limit:
            await self._refuse_large()
            return
        try:
            message = jsonrpc_message_adapter.validate_json(bytes(line), by_name=False)
        except ValueError:
            await self._refuse(PARSE_ERROR, "this line is not a message of JSON-RPC")
            return
        await self._messages.send(SessionMessage(message))

    async def _refuse_large(self) -> None:
        await self._refuse(INVALID_REQUEST, f"a message may have {self._limit:,} bytes, and this one has more")

    async def _refuse(self, code: int, message: str) -> None:
        # Without an id, which is in the message that was not read.
        error = JSONRPCError(jsonrpc="2.0", id=None, error=ErrorData(code=code, message=message))
        await self._refusals.send(SessionMessage(error))


def _read_chunks(file: int, lines: _MessageLines, token: anyio.lowlevel.EventLoopToken) -> None:
    chunk = b"-"  # anything but the empty chunk, which is the end
    # The event loop may end at any moment, and this thread has nothing to do then.
    with suppress(BaseException):
        while chunk:
            try:
                chunk = os.read(file, _CHUNK_BYTES)
            except OSError:
                chunk = b""
            anyio.from_thread.run(lines.take, chunk, token=token)


async def _write(file: int, messages: MemoryObjectReceiveStream[SessionMessage], lines: _MessageLines) -> None:
    try:
        async with messages:
            async for message in messages:
                # In a thread, since a client that does not read would stop the event loop.
                text = message.message.model_dump_json(by_alias=True, exclude_unset=True)
                await anyio.to_thread.run_sync(_write_all, file, f"{text}\n".encode(), abandon_on_cancel=True)
    except OSError as error:
        # The client has closed its end: nobody is left to serve.
        _logger.info("the client has stopped reading: %s", type(error).__name__)
        lines.close()


def _write_all(file: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(file, view) :]
