"""The screen for plain text: messages of agents and replies in a terminal share it, line by line."""

import logging
import threading
from typing import TextIO

from agentrt._runtime.text import encodable_text

_logger = logging.getLogger("agentrt")


class Screen:
    """An output stream and the owner of its open line; added text is written by the next flush."""

    __slots__ = ("_in_line", "_is_broken", "_owner", "_pieces", "_stream", "lock")

    def __init__(self) -> None:
        self.lock = threading.RLock()  # held for all new text of a message, so that threads do not mix their lines
        self._stream: TextIO | None = None
        self._is_broken = False
        self._owner: tuple[str, object] | None = None
        self._in_line = False
        self._pieces: list[str] = []

    def use(self, stream: TextIO | None) -> None:
        """Write to this stream from now on; a new one has no open line."""
        if stream is not self._stream:
            self._stream, self._is_broken = stream, False
            self._owner, self._in_line = None, False

    def put(self, owner: tuple[str, object], head: str, text: str) -> None:
        """Add text of the owner: right after its open text, or else on a new line with a head."""
        if owner != self._owner:
            self._end_line()
            self._pieces.append(head)
            self._owner = owner
        self._pieces.append(text)
        self._in_line = not text.endswith("\n")

    def end_line_of(self, name: str) -> None:
        """End the line, if it belongs to this owner."""
        if self._owner is not None and self._owner[0] == name:
            self._end_line()
            self._owner = None

    def flush(self) -> None:
        """Write the added text; raises the errors of the stream."""
        text = "".join(self._pieces)
        self._pieces.clear()
        if text and self._stream is not None:
            try:
                self._stream.write(text)
            except UnicodeEncodeError:  # a terminal's encoding must not break an answer
                self._stream.write(encodable_text(text, self._stream))
            self._stream.flush()  # pieces are shown at once, even through a pipe

    def flush_quietly(self) -> None:
        """Write the added text, unless the stream has failed before."""
        if self._is_broken:
            self._pieces.clear()
            return
        try:
            self.flush()
        except (OSError, ValueError) as error:  # its reader is gone, or it is closed
            _logger.info("messages are no longer shown: %s", type(error).__name__)
            self._is_broken = True

    def _end_line(self) -> None:
        if self._in_line:
            self._pieces.append("\n")
            self._in_line = False


standard_output = Screen()
"""The shared screen of standard output, so that no writer breaks the line of another."""
