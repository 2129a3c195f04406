"""Files as documents: plain text and Markdown."""

import re
from abc import ABC, abstractmethod
from codecs import lookup
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import ClassVar

from agentrt._runtime.representation import repr_by_settings
from agentrt.errors import ConfigError, ReaderError
from agentrt.rag.document import Document, Section

MAX_FILE_BYTES = 50_000_000
"""The maximum size of a file, in bytes."""

_HEADING = re.compile(r"(#{1,6})[ \t]+")
_CODE_FENCE = re.compile(r" {0,3}(```+|~~~+)")
_FRONT_MATTER = re.compile(r"---\n.*?\n---\n", re.DOTALL)


class ReaderBase(ABC):
    """Makes a document from the bytes of a file; `suffixes` are the supported suffixes, in lower case."""

    suffixes: ClassVar[tuple[str, ...]] = ()

    __repr__ = repr_by_settings

    @abstractmethod
    def parse(self, data: bytes, path: Path, is_over: Callable[[], bool]) -> Document:
        """Return the document, whose id is the path; runs in a thread.

        Raises `ReaderError` for a file that cannot be read. Long work checks `is_over()` now and then, and raises
        `TimeoutError` at the deadline.
        """


class TextReader(ReaderBase):
    """Reads plain text, in UTF-8 unless told otherwise."""

    suffixes: ClassVar[tuple[str, ...]] = (".txt", ".text", ".log", ".rst")

    def __init__(self, *, encoding: str = "utf-8") -> None:
        try:
            lookup(encoding)
        except (LookupError, TypeError, ValueError) as error:
            raise ConfigError(
                f"{type(self).__name__}(encoding=...) must be the name of an encoding, such as 'gb18030', "
                f"not {encoding!r:.100}"
            ) from error
        self.encoding = encoding

    def parse(self, data: bytes, path: Path, is_over: Callable[[], bool]) -> Document:
        return Document(str(path), self._decode(data, path), path.stem)

    def _decode(self, data: bytes, path: Path) -> str:
        # Text never has a zero byte; in UTF-16, nearly every second byte is zero.
        if b"\0" in data and not self.encoding.lower().startswith(("utf-16", "utf16", "utf-32", "utf32")):
            raise ReaderError(
                f"{str(path)!r:.300} is not text, or is UTF-16: it has zero bytes; for UTF-16, read it with "
                f"{type(self).__name__}(encoding='utf-16')"
            )
        try:
            return data.decode(self.encoding).removeprefix("\ufeff").replace("\r\n", "\n")
        except UnicodeError as error:
            place = f"byte {error.start}" if isinstance(error, UnicodeDecodeError) else "the beginning"
            raise ReaderError(
                f"{str(path)!r:.300} is not in {self.encoding}, see {place}: name its encoding, as in "
                f"{type(self).__name__}(encoding='gb18030'), or save it as UTF-8"
            ) from None  # its text quotes the bytes


class MarkdownReader(TextReader):
    """Reads Markdown: the title is the first heading, and each heading starts a section."""

    suffixes = (".md", ".markdown")

    def parse(self, data: bytes, path: Path, is_over: Callable[[], bool]) -> Document:
        text = self._decode(data, path)
        sections = list(_sections(text))
        title = sections[0].heading if sections else path.stem
        return Document(str(path), text, title, sections=sections)


def _sections(text: str) -> Iterator[Section]:
    """Yield a section for each heading outside code, named by its path of headings."""
    front = _FRONT_MATTER.match(text)
    place = front.end() if front else 0
    path: list[tuple[int, str]] = []
    fence = ""
    for line in text[place:].splitlines(keepends=True):
        mark = _CODE_FENCE.match(line)
        if mark:
            # A fence is closed by one of its kind, at least as long.
            if not fence:
                fence = mark[1]
            elif mark[1].startswith(fence):
                fence = ""
        heading = None if fence else _HEADING.match(line.rstrip())
        if heading:
            level = len(heading[1])
            path = [*((above, name) for above, name in path if above < level), (level, _heading_text(heading))]
            yield Section(place, " > ".join(name for _, name in path))
        place += len(line)


def _heading_text(mark: re.Match[str]) -> str:
    """Return the text of a heading without closing marks, which follow a space: "C#" keeps its own."""
    text = mark.string[mark.end() :]
    title = text.rstrip("#")
    return text if title and title == title.rstrip() else title.rstrip()
