"""Standard input line by line, its terminal without echo, and standard output for prompts."""

import atexit
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from getpass import getpass

from agentrt._runtime.terminal.line_reader import LineReader
from agentrt._runtime.text import encodable_text
from agentrt.errors import UsageError

if sys.platform != "win32":
    import termios


class _Stdin:
    """Reads standard input without losing a line and without blocking the interpreter's exit."""

    def __init__(self) -> None:
        self._ahead = ""  # decoded but not yet returned, after undecodable bytes

    def read(self) -> str:
        stream = sys.stdin  # this reference keeps an exit from closing it while it is read
        if stream is None:
            raise UsageError("this process has no standard input: give the agent another input method")
        file = _terminal()
        if file is not None:
            # Not through `sys.stdin`, whose lock the waiting thread would hold, which blocks an exit.
            typed = b""
            while not typed.endswith(b"\n") and (piece := os.read(file, 65536)):
                typed += piece
            return typed.decode(stream.encoding or "utf-8", "replace")
        if "\n" not in self._ahead:
            try:
                self._ahead += stream.readline()
            except UnicodeDecodeError as error:  # the stream has dropped the whole chunk that it tried to decode
                self._ahead += error.object.decode(error.encoding, "replace")
        line, newline, self._ahead = self._ahead.partition("\n")
        return line + newline

    def read_hidden(self) -> str:
        if sys.platform == "win32" and sys.stdin is not None and sys.stdin.isatty():
            return f"{getpass('')}\n"
        return self.read()


_stdin = _Stdin()
stdin_reader = LineReader(_stdin.read, _stdin.read_hidden)
"""Reads typed or piped input of this process, from the current `sys.stdin`."""


def write_stdout(text: str) -> None:
    """Write to the current `sys.stdout`, with escapes for characters that its encoding lacks."""
    stream = sys.stdout
    if stream is not None:
        stream.write(encodable_text(text, stream))
        stream.flush()


@contextmanager
def echo_off() -> Iterator[None]:
    """Turn off the terminal's echo; earlier input can still be read."""
    file = _terminal()
    if sys.platform == "win32" or file is None:
        yield
        return
    before = termios.tcgetattr(file)
    without_echo = [*before[:3], before[3] & ~termios.ECHO, *before[4:]]

    def restore() -> None:
        with suppress(termios.error):  # the terminal is gone
            termios.tcsetattr(file, termios.TCSANOW, before)

    atexit.register(restore)  # for an exit while the event loop of another thread asks a question
    try:
        termios.tcsetattr(file, termios.TCSANOW, without_echo)
        yield
    finally:
        restore()
        atexit.unregister(restore)


def _terminal() -> int | None:
    """Return the file descriptor of standard input if it is a Unix terminal."""
    if sys.platform == "win32" or sys.stdin is None:
        return None
    try:
        file = sys.stdin.fileno()
    except (OSError, ValueError):  # a replacement by an editor or a test
        return None
    return file if os.isatty(file) else None
