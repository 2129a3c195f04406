"""Splits growing Markdown where the earlier part is final."""

import re

# As in CommonMark: up to three spaces, then backticks or tildes.
_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})")


class Paragraphs:
    """Collects text piece by piece and returns finished paragraphs.

    A paragraph is finished when another one starts: after an empty line, outside a fenced block, and not indented,
    as inside a list. The cost of a piece depends only on its own length, not on that of the text.
    """

    __slots__ = ("_after_empty", "_fence", "_lines", "_parts")

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._parts: list[str] = []
        self._fence: str | None = None
        self._after_empty = False

    @property
    def rest(self) -> str:
        """The text not yet returned."""
        return "\n".join([*self._lines, "".join(self._parts)])

    def feed(self, piece: str) -> list[str]:
        """Add a piece, and return the finished text."""
        # Pieces are joined only at the end of a line, so that a long line costs no more per piece than a short one.
        head, newline, tail = piece.rpartition("\n")
        if not newline:
            self._parts.append(piece)
            return []
        lines = ("".join(self._parts) + head).split("\n")
        self._parts = [tail]
        return [paragraphs for line in lines if (paragraphs := self._take(line)) is not None]

    def take_rest(self) -> str:
        """Return the rest, and reset."""
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
        # A fence is closed by one of the same character, at least as long, with nothing after it.
        elif match[1].startswith(self._fence) and not line[match.end() :].strip():
            self._fence = None
