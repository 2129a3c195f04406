"""An MCP server in a process of its own, spoken to over its standard input and output.

The transport of the SDK is not used: it gives the child more of the environment, reads lines of any length, does not
keep its standard error, and leaves processes running that the child has started.
"""

import json
import os
import re
import signal
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import anyio
from anyio.abc import Process
from mcp.shared.message import SessionMessage
from mcp_types import INTERNAL_ERROR, ErrorData, JSONRPCError, jsonrpc_message_adapter

from agentrt._runtime.concurrency.process_group import close_pipes, has_ended, signal_group
from agentrt._runtime.concurrency.wire import Lines, LongLine
from agentrt._runtime.text import one_line
from agentrt.tool.mcp.command import secrets_of, shown_words
from agentrt.tool.mcp.text import clean_text
from agentrt.tool.mcp.transport.group_guard import GroupGuard
from agentrt.tool.mcp.transport.messages import without_malformed_tools

MAX_MESSAGE = 16_000_000
"""Bytes that one message of a server may have."""

_INHERITED = ("PATH", "HOME", "LANG")
_WINDOWS_INHERITED = ("SYSTEMROOT", "SYSTEMDRIVE", "PATHEXT", "TEMP", "USERPROFILE")  # without which nothing starts
_LAST_LINES = 20
_SHOWN_LINES = 8
_SECONDS_TO_END = 2.0
_SECONDS_BETWEEN_LOOKS = 0.25
_GROUP_SECONDS = 0.5
_REQUEST_ID = re.compile(rb'"id"\s*:\s*(\d{1,15}|"[^"\\]{1,100}")')


class ServerProcess:
    """A server that runs as a child, in a process group of its own; all of that group ends with the connection."""

    def __init__(self, command: Sequence[str], env: Mapping[str, str], cwd: str | None) -> None:
        # As they are given: in copies their secrets would be shown.
        self.command = command
        self._env = env
        self._cwd = cwd
        self._process: Process | None = None
        self._last_lines: deque[str] = deque(maxlen=_LAST_LINES)
        self.exit_code: int | None = None  # of one that ended by itself
        self._ended_by_itself = False
        self._on_end: Callable[[], object] = bool  # does nothing
        self._streams: tuple[Any, ...] = ()
        self._group: Any = None
        self._guard = GroupGuard()

    @property
    def last_lines(self) -> str:
        """The last lines of its standard error that are not blank, with " / " between them."""
        # Several, since the reason is seldom in the last one: npm ends with where its log is.
        lines = [one_line(clean_text(line), 300) for line in self._last_lines if line.strip()]
        return " / ".join(lines[-_SHOWN_LINES:])

    @property
    def shown_command(self) -> str:
        """The command, without its secrets."""
        return " ".join(shown_words(self.command))

    @property
    def secrets(self) -> list[str]:
        """The secrets to mask in messages about the server."""
        return [*(value for name, value in self._env.items() if name not in _INHERITED), *secrets_of(self.command)]

    def connect(self, on_end: Callable[[], None]) -> "ServerProcess":
        """Return what starts the server in an `async with`; `on_end` is called when the server has ended by itself."""
        self._on_end = on_end
        return self

    # A class and not a generator, which must not yield while a task group is open.
    async def __aenter__(self) -> Any:
        names = _INHERITED if os.name == "posix" else (*_INHERITED, *_WINDOWS_INHERITED)
        environment = {**{name: os.environ[name] for name in names if name in os.environ}, **self._env}
        try:
            await self._guard.start()
            self._process = process = await anyio.open_process(
                self.command, env=environment, cwd=self._cwd, start_new_session=True
            )
        except BaseException:
            with anyio.CancelScope(shield=True):
                await self._guard.close()
            raise
        with anyio.CancelScope(shield=True):  # otherwise nothing would end the process
            await self._guard.watch(process.pid)
        incoming, read_stream = anyio.create_memory_object_stream[Any](0)
        write_stream, outgoing = anyio.create_memory_object_stream[Any](0)
        self._streams = (incoming, read_stream, write_stream, outgoing)
        self._group = await anyio.create_task_group().__aenter__()
        self._group.start_soon(self._read_messages, process, incoming)
        self._group.start_soon(self._read_errors, process)
        self._group.start_soon(self._write_messages, process, outgoing)
        self._group.start_soon(self._watch, process, incoming)
        return read_stream, write_stream

    async def __aexit__(self, *error: Any) -> None:
        process = self._process
        assert process is not None
        # Shielded: no process may outlive its connection, and each wait in here has a limit.
        with anyio.CancelScope(shield=True):
            await self._end(process)
            await self._guard.close()
        self._group.cancel_scope.cancel()
        try:
            await self._group.__aexit__(*error)
        finally:
            for stream in self._streams:
                stream.close()
            with anyio.CancelScope(shield=True), anyio.move_on_after(_SECONDS_TO_END):
                await close_pipes(process)

    async def _end(self, process: Process) -> None:
        """End the process, by closing its input, then by SIGTERM, then by SIGKILL; and what is left of its group."""
        # Before any signal of ours, so that the code is that of its own end.
        if self._ended_by_itself and await has_ended(process, _SECONDS_TO_END):
            self.exit_code = process.returncode
        if process.stdin is not None:
            with suppress(OSError, anyio.BrokenResourceError, anyio.ClosedResourceError):
                await process.stdin.aclose()
        if not await has_ended(process, _SECONDS_TO_END):
            signal_group(process, signal.SIGTERM)
            await has_ended(process, _SECONDS_TO_END)
        signal_group(process, getattr(signal, "SIGKILL", signal.SIGTERM))
        await has_ended(process, _SECONDS_TO_END)
        with anyio.move_on_after(_GROUP_SECONDS):  # a group lasts as long as nobody has waited for its last process
            while signal_group(process, 0):  # noqa: ASYNC110  # the system has no event for it
                await anyio.sleep(0.01)

    async def _watch(self, process: Process, incoming: Any) -> None:
        while process.returncode is None:  # noqa: ASYNC110  # as `has_ended` does, and for the same reason
            await anyio.sleep(_SECONDS_BETWEEN_LOOKS)
        await anyio.sleep(_SECONDS_BETWEEN_LOOKS)  # to read its last output, if a grandchild keeps the pipe open
        self._note_end()
        incoming.close()

    async def _read_messages(self, process: Process, incoming: Any) -> None:
        assert process.stdout is not None
        lines = Lines(MAX_MESSAGE)
        with suppress(anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError, OSError):
            while True:
                for line in lines.feed(await process.stdout.receive()):
                    message = _read_message(line)
                    if message is not None:
                        # Nobody reads a message that comes while the connection closes, and the server still runs.
                        with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
                            await incoming.send(message)
        self._note_end()
        incoming.close()

    def _note_end(self) -> None:
        self._ended_by_itself = True
        self._on_end()

    async def _write_messages(self, process: Process, outgoing: Any) -> None:
        assert process.stdin is not None
        with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError, OSError):
            async for item in outgoing:
                text = item.message.model_dump_json(by_alias=True, exclude_unset=True)
                await process.stdin.send(text.encode() + b"\n")

    async def _read_errors(self, process: Process) -> None:
        assert process.stderr is not None
        rest = b""
        with suppress(anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError, OSError):
            while True:
                *lines, rest = (rest + await process.stderr.receive()).split(b"\n")
                self._last_lines.extend(line[:2_000].decode(errors="replace") for line in lines[-_LAST_LINES:])
                rest = rest[:2_000]  # one that never ends its line must not fill the memory
        if rest:
            self._last_lines.append(rest.decode(errors="replace"))


def _read_message(line: bytes | LongLine) -> SessionMessage | None:
    """Return the message of a line, or an error in place of an answer that cannot be read; `None` for other lines."""
    if isinstance(line, LongLine):
        problem = f"the answer has {line.size:,} bytes, and at most {MAX_MESSAGE:,} are allowed"
        return _error_message(line.head, line.tail, problem)
    try:
        message = jsonrpc_message_adapter.validate_json(line, by_name=False)
    except ValueError:
        # Servers print other lines than messages, too; many print a greeting.
        if not line.startswith(b'{"'):
            return None
        return _error_message(line[:200], line[-200:], "the answer is not valid JSON, or not a message of the protocol")
    return SessionMessage(without_malformed_tools(message))


def _error_message(head: bytes, tail: bytes, problem: str) -> SessionMessage | None:
    """Return an error in place of an answer that cannot be read, so that its call does not wait for it."""
    # The id of the request stands at its beginning or at its end.
    found = _REQUEST_ID.search(head) or _REQUEST_ID.search(tail)
    if found is None:
        return None
    error = ErrorData(code=INTERNAL_ERROR, message=problem)
    return SessionMessage(JSONRPCError(jsonrpc="2.0", id=json.loads(found.group(1)), error=error))
