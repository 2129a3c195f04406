"""Standard input as typed lines, its terminal without echo, and standard output for prompts."""

import atexit
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from getpass import getpass
from typing import Any

from agentrt.errors import UsageError
from agentrt.terminal.line_reader import Lines

if sys.platform != "win32":
    import termios

__all__ = ["echo_off", "stdin_lines", "write_stdout"]


class _Stdin:
    """Reads standard input so that neither a line nor the interpreter's exit is lost to it."""

    def __init__(self) -> None:
        self._ahead = ""

    def read(self) -> str:
        stream = sys.stdin  # holding it here keeps an exit from closing it while it is read
        if stream is None:
            raise UsageError("there is no standard input: give the agent another way of asking")
        file = _terminal()
        if file is not None:
            return _read_terminal(file).decode(stream.encoding or "utf-8", "replace")
        if "\n" not in self._ahead:
            try:
                self._ahead += stream.readline()
            except UnicodeDecodeError as error:  # and the stream forgets all that it tried to decode at once
                self._ahead += error.object.decode(error.encoding, "replace")
        line, newline, self._ahead = self._ahead.partition("\n")
        return line + newline

    def read_unseen(self) -> str:
        if sys.platform == "win32" and sys.stdin is not None and sys.stdin.isatty():
            return f"{getpass('')}\n"
        return self.read()


_stdin = _Stdin()
stdin_lines = Lines(_stdin.read, _stdin.read_unseen)
"""What is typed or piped into this process, whatever `sys.stdin` is at the time."""


def write_stdout(text: str) -> None:
    """Write to whatever `sys.stdout` is at the time, spelling out what its encoding does not know."""
    stream = sys.stdout
    if stream is not None:
        encoding = getattr(stream, "encoding", None) or "utf-8"
        stream.write(text.encode(encoding, "backslashreplace").decode(encoding))
        stream.flush()


@contextmanager
def echo_off() -> Iterator[None]:
    """Have the terminal show nothing of what is typed; what was typed before stays to be read."""
    file = _terminal()
    if sys.platform == "win32" or file is None:
        yield
        return
    before = termios.tcgetattr(file)
    unseen = [*before[:3], before[3] & ~termios.ECHO, *before[4:]]
    restore = partial(_set_terminal, file, before)
    atexit.register(restore)  # for an exit that leaves the event loop of another thread in the middle of a question
    try:
        termios.tcsetattr(file, termios.TCSANOW, unseen)
        yield
    finally:
        restore()
        atexit.unregister(restore)


def _set_terminal(file: int, attributes: list[Any]) -> None:
    if sys.platform != "win32":
        with suppress(termios.error):  # the terminal is gone
            termios.tcsetattr(file, termios.TCSANOW, attributes)


def _terminal() -> int | None:
    """Return the file of standard input where that is a terminal as Unix has them."""
    if sys.platform == "win32" or sys.stdin is None:
        return None
    try:
        file = sys.stdin.fileno()
    except (OSError, ValueError):  # an editor's or a test's stand-in
        return None
    return file if os.isatty(file) else None


def _read_terminal(file: int) -> bytes:
    # Not through `sys.stdin`, whose lock a thread would hold while it waits: an exit may stumble over it.
    line = b""
    while not line.endswith(b"\n"):
        piece = os.read(file, 65536)
        if not piece:
            break
        line += piece
    return line
