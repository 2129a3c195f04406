"""A console program in a pseudo-terminal of its own, driven as a person drives it."""

import fcntl
import os
import pty
import select
import signal
import struct
import termios
import time
from collections.abc import Callable
from typing import Protocol

from tests.console.program import PATIENCE

PROMPT = "> "


class Process(Protocol):
    """A program that has been started."""

    def send_signal(self, number: int, /) -> None: ...
    def wait(self) -> int: ...


class Terminal:
    """Has `start` run a program at the terminal of a path; leaving the block ends it, if it has not ended."""

    def __init__(self, start: Callable[[str], Process]) -> None:
        self._start = start
        self._seen = ""
        self._is_closed = self._has_ended = False
        self.transcript = ""

    def __enter__(self) -> "Terminal":
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 100, 0, 0))
        self._slave = slave  # kept until the program has it, since a terminal that nobody has open is closed
        self._process = self._start(os.ttyname(slave))
        return self

    def __exit__(self, *_: object) -> None:
        if not self._has_ended:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()
        self._leave_to_program()
        os.close(self._master)

    def _leave_to_program(self) -> None:
        if self._slave != -1:
            os.close(self._slave)
        self._slave = -1

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def say(self, line: str) -> None:
        """Type a line once the prompt is there."""
        self.read(PROMPT)
        self.type(line + "\n")
        self.read(line)

    def paste(self, text: str) -> None:
        """Paste as a terminal does, which marks it where the program has asked for that."""
        self.read(PROMPT)
        text = text.replace("\n", "\r")
        is_marked = "\x1b[?2004h" in self.transcript
        self.type(f"\x1b[200~{text}\x1b[201~\r" if is_marked else f"{text}\r")

    @property
    def has_echo(self) -> bool:
        return bool(termios.tcgetattr(self._master)[3] & termios.ECHO)

    def press_ctrl_c(self) -> None:
        self.type("\x03")

    def press_ctrl_c_until_it_ends(self, pause: float = 5.0) -> int:
        # One that comes in the moment before the program begins to wait for a key is heard only with the next key; one
        # that comes while the interpreter ends kills it, so the pause is long.
        deadline = time.monotonic() + PATIENCE
        while not self._is_closed:
            assert time.monotonic() < deadline, f"Ctrl-C changed nothing:\n{self.transcript}"
            self.press_ctrl_c()
            pause_end = time.monotonic() + pause
            while self._piece(pause_end):
                pass
        return self._exit_code()

    def read(self, wanted: str) -> str:
        """Return what was printed up to `wanted`, and that; each call goes on where the one before stopped."""
        deadline = time.monotonic() + PATIENCE
        while wanted not in self._seen:
            piece = self._piece(deadline)
            assert piece, f"{wanted!r} was never printed, but this was:\n{self.transcript}"
            self._seen += piece
        self._leave_to_program()
        read, _, self._seen = self._seen.partition(wanted)
        return read + wanted

    def end(self) -> int:
        """Read to the end and return the exit code."""
        deadline = time.monotonic() + PATIENCE
        while piece := self._piece(deadline):
            self._seen += piece
        return self._exit_code()

    def _exit_code(self) -> int:
        self._has_ended = True
        return self._process.wait()

    def _piece(self, deadline: float) -> str:
        ready, _, _ = select.select([self._master], [], [], max(0.0, deadline - time.monotonic()))
        try:
            piece = os.read(self._master, 65536).decode(errors="replace") if ready else ""
        except OSError:  # Linux says so when the other side is closed
            piece = ""
        self._is_closed = bool(ready) and not piece
        self.transcript += piece
        return piece
