"""A reply as plain text, for pipes, files, notebooks and simple terminals: no control codes at all."""

from types import TracebackType
from typing import TextIO

from agentrt.console.render.view import Kind
from agentrt.text import escape_controls

__all__ = ["PlainView"]


class PlainView:
    """Writes everything as it comes; a line that is not the answer begins with a [label]."""

    def __init__(self, file: TextIO) -> None:
        self._file = file
        self._open: Kind | None = None
        self._in_line = False

    def __enter__(self) -> "PlainView":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.end()

    def stream(self, kind: Kind, piece: str) -> None:
        """Write more of the text that is open."""
        if self._open != kind:
            self.end()
            self._open = kind
            if kind == "thinking":
                self._write("[thinking] ")
        self._write(piece)

    def end(self) -> None:
        """End the line that is open."""
        self._open = None
        if self._in_line:
            self._write("\n")

    def line(self, label: str, text: str) -> None:
        """Write a line of its own."""
        self.end()
        self._write(f"[{label}] {text}".rstrip() + "\n")

    def wait(self, reason: str) -> None:
        """Do nothing: what is written cannot be taken back."""

    def _write(self, text: str) -> None:
        if text:
            # A character that the output lacks is spelt out: no answer fails because of a terminal's encoding.
            encoding = getattr(self._file, "encoding", None) or "utf-8"
            self._file.write(escape_controls(text).encode(encoding, "backslashreplace").decode(encoding))
            self._file.flush()  # a piece is shown when it comes, also through a pipe
            self._in_line = not text.endswith("\n")
