"""Patterns with `*` and `?`, matched in time linear in the text for any pattern.

`*` stands for any characters, line breaks and slashes as well, `?` for any one; `[*]` and `[?]` stand for the
characters themselves, and everything else for itself. Case counts.
"""

from functools import lru_cache
from typing import Protocol

_ANY = None


class _Piece(Protocol):
    """The part of a pattern between two `*`; `find` is called only if the text is long enough."""

    size: int

    def is_at(self, text: str, start: int) -> bool: ...

    def find(self, text: str, start: int, end: int) -> int: ...


# Text is searched by C code here; only pieces with `?` are searched in Python.
class _LiteralPiece:
    __slots__ = ("_text", "size")

    def __init__(self, text: str) -> None:
        self._text = text
        self.size = len(text)

    def is_at(self, text: str, start: int) -> bool:
        return text.startswith(self._text, start)

    def find(self, text: str, start: int, end: int) -> int:
        return text.find(self._text, start, end)


class _PieceWithHoles:
    """A piece with `?` in it; `find` keeps one bit for each prefix of the piece that ends at the current character."""

    __slots__ = ("_characters", "_masks", "_others", "size")

    def __init__(self, characters: list[str | None]) -> None:
        self._characters = characters
        self.size = len(characters)
        self._others = sum(1 << place for place, character in enumerate(characters) if character is _ANY)
        # For each character, the positions where it may stand: its own, and those of `?`.
        self._masks: dict[str, int] = {}
        for place, character in enumerate(characters):
            if character is not _ANY:
                self._masks[character] = self._masks.get(character, self._others) | 1 << place

    def is_at(self, text: str, start: int) -> bool:
        part = text[start : start + self.size]
        pairs = zip(self._characters, part, strict=True)
        return all(expected is _ANY or expected == actual for expected, actual in pairs)

    def find(self, text: str, start: int, end: int) -> int:
        # The Shift-And algorithm (Baeza-Yates and Gonnet): one step per character, for any piece.
        masks, others, complete, partial = self._masks, self._others, 1 << self.size - 1, 0
        for place in range(start, end):
            partial = (partial << 1 | 1) & masks.get(text[place], others)
            if partial & complete:
                return place + 1 - self.size
        return -1


class _Glob:
    __slots__ = ("_first", "_last", "_middle", "_size")

    def __init__(self, pieces: list[_Piece]) -> None:
        self._first, self._last = pieces[0], pieces[-1] if len(pieces) > 1 else None
        # `**` leaves an empty piece, which matches anywhere.
        self._middle = [piece for piece in pieces[1:-1] if piece.size]
        self._size = sum(piece.size for piece in pieces)

    def matches(self, text: str) -> bool:
        if self._last is None:
            return len(text) == self._size and self._first.is_at(text, 0)
        end = len(text) - self._last.size
        if len(text) < self._size or not (self._first.is_at(text, 0) and self._last.is_at(text, end)):
            return False
        start = self._first.size
        for piece in self._middle:  # the first match leaves the most text for the next pieces
            position = piece.find(text, start, end)
            if position < 0:
                return False
            start = position + piece.size
        return True


def matches(pattern: str, text: str) -> bool:
    """Say whether the whole text fits the pattern."""
    return _compile_glob(pattern).matches(text)


def escape(text: str) -> str:
    """Return the pattern that fits this text and no other."""
    return "".join(f"[{character}]" if character in "*?" else character for character in text)


@lru_cache(maxsize=1024)
def _compile_glob(pattern: str) -> _Glob:
    pieces: list[list[str | None]] = [[]]
    place = 0
    while place < len(pattern):
        character = pattern[place]
        if pattern[place : place + 3] in ("[*]", "[?]"):
            pieces[-1].append(pattern[place + 1])
            place += 2
        elif character == "*":
            pieces.append([])
        else:
            pieces[-1].append(_ANY if character == "?" else character)
        place += 1
    return _Glob(
        [
            _PieceWithHoles(characters) if _ANY in characters else _LiteralPiece("".join(filter(None, characters)))
            for characters in pieces
        ]
    )
