"""A reply as plain text, for pipes, files, notebooks and simple terminals: without control codes."""

import sys
from typing import Literal, Protocol, Self, TextIO

from agentrt._runtime.output.screen import Screen, standard_output
from agentrt._runtime.text import escape_controls

INDENT = "  "
"""The prefix of a line for each level of sub-agents."""
Kind = Literal["text", "thinking"]


class View(Protocol):
    """A display for a reply: growing text, and lines in between."""

    def stream(self, kind: Kind, piece: str) -> None: ...
    def end(self) -> None: ...
    def line(self, label: str, text: str, depth: int = 0) -> None: ...
    def wait(self, reason: str, *, for_tool: bool = False) -> None: ...


class PlainView:
    """A view for any output; text of models and tools is escaped here.

    Writes everything as it arrives. A line that is not the answer starts with a [label].
    """

    def __init__(self, file: TextIO) -> None:
        self._file = file
        self._screen = standard_output if file is sys.stdout else Screen()
        self._name = f"view {id(self)}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def stream(self, kind: Kind, piece: str) -> None:
        """Add to the open text; the first piece after `end` opens a new one."""
        if piece:
            self._put(kind, "[thinking] " if kind == "thinking" else "", piece)

    def end(self) -> None:
        """End the open text, if any."""
        with self._screen.lock:
            self._screen.use(self._file)
            self._screen.end_line_of(self._name)
            self._screen.flush()

    def line(self, label: str, text: str, depth: int = 0) -> None:
        """End the open text, and print one event, indented by depth."""
        self.end()
        self._put("line", "", INDENT * depth + f"[{label}] {text}".rstrip() + "\n")

    def wait(self, reason: str, *, for_tool: bool = False) -> None:
        """Print nothing: a reason for waiting could not be erased."""

    def _put(self, owner: str, head: str, text: str) -> None:
        with self._screen.lock:
            self._screen.use(self._file)
            self._screen.put((self._name, owner), head, escape_controls(text))
            self._screen.flush()
