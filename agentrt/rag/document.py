"""Documents, and their searchable chunks."""

import re
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from agentrt._runtime.options import check_whole
from agentrt._runtime.representation import repr_by_settings
from agentrt.errors import ConfigError
from agentrt.types import JSONObject

_MAX_CHUNK = 100_000  # characters
# The best ends of a chunk, in order: before an empty line, a line, a sentence, a word.
_BOUNDARIES = tuple(map(re.compile, (r"\n[ \t]*\n", r"\n", r"[.!?](?=\s)|[。！？；]", r"\s")))


@dataclass(frozen=True, slots=True)
class Section:
    """A part of a document, from the character `start` to the next section."""

    start: int
    heading: str = ""
    page: int | None = None


@dataclass(frozen=True, slots=True)
class Document:
    """A text with an id, such as the path of its file; `sections` are in their order."""

    id: str
    text: str = field(repr=False)
    title: str = ""
    metadata: JSONObject = field(default_factory=dict)
    sections: Sequence[Section] = field(default=(), repr=False)


@dataclass(frozen=True, slots=True)
class Chunk:
    """The characters `start` to `end` of a document, with the heading and the page on which they begin."""

    text: str
    start: int
    end: int
    heading: str = ""
    page: int | None = None


SplitDocument = Callable[[Document], Sequence[Chunk]]
"""Splits a document into chunks."""


class Chunker:
    """Splits a document into chunks of at most `max_chars` characters.

    A chunk ends before a section, a paragraph, a line, a sentence or a word, the first of these that leaves at least
    `min_chars`; without any of them, it is cut anywhere.
    """

    __repr__ = repr_by_settings

    def __init__(self, max_chars: int = 1_200, *, min_chars: int = 300) -> None:
        check_whole("Chunker(max_chars=...)", max_chars, most=_MAX_CHUNK)
        check_whole("Chunker(min_chars=...)", min_chars, 0, _MAX_CHUNK)
        if min_chars >= max_chars:
            raise ConfigError(f"Chunker(min_chars={min_chars}) must be less than max_chars, which is {max_chars}")
        self.max_chars, self.min_chars = max_chars, min_chars

    def __call__(self, document: Document) -> list[Chunk]:
        text, starts = document.text, [section.start for section in document.sections]
        chunks: list[Chunk] = []
        start = 0
        while start < len(text):
            end = self._end(text, start, starts)
            piece = text[start:end]
            words = piece.strip()
            if words:
                first = start + piece.index(words)
                place = bisect_right(starts, first) - 1
                section = document.sections[place] if place >= 0 else Section(0)
                chunks.append(Chunk(words, first, first + len(words), section.heading, section.page))
            start = end
        return chunks

    def _end(self, text: str, start: int, section_starts: list[int]) -> int:
        least, limit = start + self.min_chars, start + self.max_chars
        # The first section start within reach: two sections in one chunk would be found under the name of one.
        place = bisect_right(section_starts, max(least - 1, start))
        if place < len(section_starts) and section_starts[place] <= limit:
            return section_starts[place]
        if limit >= len(text):
            return len(text)
        for boundary in _BOUNDARIES:
            # Only within reach, so that the total time is linear for any text.
            ends = [match.end() for match in boundary.finditer(text, max(least, start + 1), limit)]
            if ends:
                return ends[-1]
        return limit
