"""Markdown that is still being written, cut where what came before cannot change any more."""

import re

__all__ = ["Paragraphs"]

# As CommonMark has it: up to three spaces, then backticks or tildes.
_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})")


class Paragraphs:
    """Collects text piece by piece and returns what is finished, a few paragraphs at a time.

    A paragraph is finished when another one begins: after an empty line, outside of a fenced block, and not indented,
    as it would be inside a list. The cost of a piece depends on its own length only, however long the text is.
    """

    __slots__ = ("_after_empty", "_fence", "_lines", "_parts")

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._parts: list[str] = []
        self._fence: str | None = None
        self._after_empty = False

    @property
    def rest(self) -> str:
        """What was not returned yet."""
        return "\n".join([*self._lines, "".join(self._parts)])

    def feed(self, piece: str) -> list[str]:
        """Take a piece, and return what it finished."""
        # Pieces are joined only where a line ends, so that a long line costs no more per piece than a short one.
        head, newline, tail = piece.rpartition("\n")
        if not newline:
            self._parts.append(piece)
            return []
        lines = ("".join(self._parts) + head).split("\n")
        self._parts = [tail]
        return [paragraphs for line in lines if (paragraphs := self._take(line)) is not None]

    def take_rest(self) -> str:
        """Return what was not returned yet, and begin anew."""
        rest = self.rest
        self._lines, self._parts = [], []
        self._fence, self._after_empty = None, False
        return rest

    def _take(self, line: str) -> str | None:
        finished = None
        if self._after_empty and self._fence is None and line[:1].strip():
            finished = "\n".join([*self._lines, ""])
            self._lines = []
        self._after_empty = not line.strip()
        self._lines.append(line)
        self._note_fence(line)
        return finished

    def _note_fence(self, line: str) -> None:
        match = _FENCE.match(line)
        if match is None:
            return
        if self._fence is None:
            self._fence = match[1]
        # A fence is closed by one of the same character that is at least as long, with nothing behind it.
        elif match[1].startswith(self._fence) and not line[match.end() :].strip():
            self._fence = None
