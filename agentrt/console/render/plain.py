"""A reply as plain text, for pipes, files, notebooks and simple terminals: no control codes at all."""

import sys
from types import TracebackType
from typing import Literal, Protocol, Self, TextIO

from agentrt.output.screen import Screen, standard_output
from agentrt.text import escape_controls

__all__ = ["INDENT", "Kind", "PlainView", "View"]

INDENT = "  "
"""Before a line, for each sub-agent that it is inside of."""
Kind = Literal["text", "thinking"]


class View(Protocol):
    """A place to show a reply: text that grows, and lines between."""

    def stream(self, kind: Kind, piece: str) -> None: ...
    def end(self) -> None: ...
    def line(self, label: str, text: str, depth: int = 0) -> None: ...
    def wait(self, reason: str, *, for_tool: bool = False) -> None: ...


class PlainView:
    """A view that needs nothing of its output; what comes from models and tools is made safe here.

    Writes everything as it comes. A line that is not the answer begins with a [label].
    """

    def __init__(self, file: TextIO) -> None:
        self._file = file
        self._screen = standard_output if file is sys.stdout else Screen()
        self._name = f"view {id(self)}"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.end()

    def stream(self, kind: Kind, piece: str) -> None:
        """Show more of the text that is open; the first piece after `end` opens one."""
        if piece:
            self._put(kind, "[thinking] " if kind == "thinking" else "", piece)

    def end(self) -> None:
        """Close the text that is open, if one is."""
        with self._screen.lock:
            self._screen.use(self._file)
            self._screen.end_line_of(self._name)
            self._screen.flush()

    def line(self, label: str, text: str, depth: int = 0) -> None:
        """Close the text that is open, and show one thing that happened, inside of so many sub-agents."""
        self.end()
        self._put("line", "", INDENT * depth + f"[{label}] {text}".rstrip() + "\n")

    def wait(self, reason: str, *, for_tool: bool = False) -> None:
        """Print nothing: a reason for waiting could not be erased again."""

    def _put(self, owner: str, head: str, text: str) -> None:
        with self._screen.lock:
            self._screen.use(self._file)
            self._screen.put((self._name, owner), head, escape_controls(text))
            self._screen.flush()
