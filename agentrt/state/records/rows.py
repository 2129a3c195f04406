"""The rows that a store keeps of runs, and what may be done with them. Nothing here knows what a line says."""

import zlib
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

from agentrt._runtime.text import lazy_pattern

RunKey = tuple[str, str]
"""The ids of a session and of a reply in it."""

_DEFLATE_BITS = -12  # bits, without a header
_MAX_SMALL_TEXT = 8_000
_MAX_PLAIN = 200  # bytes: shorter texts grow when they are compressed
_CONTENT_REFERENCE = lazy_pattern(rb"#([0-9a-f]{32})")


@dataclass(frozen=True, slots=True)
class RunRow:
    """The facts about a run that a store has beside its lines.

    `root` is the session of the outermost run, which contents belong to. `lines` and `hash` are those of the last line.
    `about` is JSON for the reader. A deleted run keeps its place, its times, `lines`, and the `hash` that the run
    after it names.
    """

    session_id: str
    reply_id: str
    root: str
    parent: RunKey | None
    begun_at: int
    ended_at: int | None
    expires_at: int
    status: str
    title: str
    labels: Mapping[str, str] = field(default_factory=dict)
    lines: int = 0
    hash: str = ""
    about: bytes = b"{}"
    is_deleted: bool = False
    number: int = 0

    @property
    def key(self) -> RunKey:
        return self.session_id, self.reply_id

    @property
    def is_unfinished(self) -> bool:
        """Whether nobody has written its end."""
        return self.status == "running" and not self.is_deleted

    def buried(self) -> "RunRow":
        """Return what is left of the run when it is deleted."""
        return replace(self, title="", labels={}, about=b"{}", is_deleted=True)


@dataclass(frozen=True, slots=True)
class RunWrite:
    """The row of a run after some further lines, which end with its last one, and the contents that they name."""

    row: RunRow
    lines: Sequence[bytes]
    contents: Mapping[str, bytes]


@dataclass(frozen=True, slots=True)
class RunQuery:
    """A query for runs, newest first; those of sub-agents only with the id of their session."""

    session_id: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    status: str | None = None
    text: str = ""
    since: int = 0
    limit: int = 100
    before: int | None = None

    def matches(self, row: RunRow) -> bool:
        """Say whether the run is one of those."""
        return (
            not row.is_deleted
            and (row.parent is None if self.session_id is None else row.session_id == self.session_id)
            and self.labels.items() <= row.labels.items()
            and self.status in (None, row.status)
            and self.text.casefold() in row.title.casefold()
            and row.begun_at >= self.since
            and (self.before is None or row.number < self.before)
        )


class RunRows(ABC):
    """The rows of a store. Its methods block, and are called by one thread at a time.

    Where a database fails, they raise an `Exception` of any kind.
    """

    @abstractmethod
    def write(self, writes: Sequence[RunWrite]) -> None:
        """Keep all of it, or nothing: rows, lines after those that are there, and contents that are not there."""

    @abstractmethod
    def find(self, session_id: str, reply_id: str) -> RunRow | None:
        """Return the row of a run, deleted or not."""

    @abstractmethod
    def of_session(self, session_id: str) -> list[RunRow]:
        """Return the rows of a session, oldest first, deleted ones too."""

    @abstractmethod
    def of_root(self, root: str) -> list[RunRow]:
        """Return the rows whose contents belong to a session, oldest first, deleted ones too."""

    @abstractmethod
    def lines(self, session_id: str, reply_id: str, after: int = 0) -> list[bytes]:
        """Return the lines of a run with numbers above `after`."""

    @abstractmethod
    def contents(self, root: str, hashes: Collection[str]) -> dict[str, bytes]:
        """Return those of the contents that are there, by their hashes."""

    @abstractmethod
    def page(self, query: RunQuery) -> list[RunRow]:
        """Return at most one row more than the limit."""

    @abstractmethod
    def expired(self, now: int) -> list[RunRow]:
        """Return the rows that expired before, deleted ones too."""

    @abstractmethod
    def bury(self, row: RunRow) -> None:
        """Put the row in the place of that run, and remove its lines."""

    @abstractmethod
    def remove(self, row: RunRow) -> None:
        """Remove the row, and its lines."""

    @abstractmethod
    def sweep(self, root: str, keep: Collection[str]) -> None:
        """Remove the contents of a session but these."""

    def transaction(self) -> AbstractContextManager[Any]:
        """Make the changes inside atomic, as far as the store can."""
        return nullcontext()

    def close(self) -> None:  # noqa: B027  # there may be nothing to do
        """Close files and connections; the next call opens them again."""

    def last(self, session_id: str) -> RunRow | None:
        """Return the newest row of a session, deleted or not."""
        rows = self.of_session(session_id)
        return rows[-1] if rows else None

    # What follows is the same for all stores.

    def delete(self, session_id: str, reply_id: str | None = None) -> int:
        """Bury a run with those below it, or all of a session; returns how many there were."""
        with self.transaction():
            rows = self.of_session(session_id)
            chosen = [row for row in rows if reply_id in (None, row.reply_id)]
            return self._bury_all(chosen)

    def forget(self, session_id: str) -> None:
        """Remove all that is kept of a session, without a trace."""
        with self.transaction():
            for row in self.of_root(session_id):
                self.remove(row)
            self.sweep(session_id, ())

    def expire(self, now: int) -> int:
        """Bury the runs that have expired, and remove those buried before the oldest that is left."""
        with self.transaction():
            rows = self.expired(now)
            count = self._bury_all([row for row in rows if not row.is_deleted])
            # Graves would pile up in a long session, so those that no run names are removed.
            for session_id in {row.session_id for row in rows}:
                # The newest of them stays where a run follows it, whose first line has its hash.
                for row, following in pairwise([*self.of_session(session_id), None]):
                    if row is None or not row.is_deleted or row.expires_at > now:
                        break
                    if following is None or following.is_deleted:
                        self.remove(row)
            return count

    def _bury_all(self, rows: Iterable[RunRow]) -> int:
        buried: dict[RunKey, RunRow] = {}
        roots: set[str] = set()
        # A run is deleted with those of its sub-agents, whatever their depth.
        for row in rows:
            family = self.of_root(row.root)
            below = {row.key}
            for other in family:  # parents begin before their children
                if other.parent in below:
                    below.add(other.key)
            for other in family:
                if other.key in below and not other.is_deleted and other.key not in buried:
                    buried[other.key] = other
                    roots.add(other.root)
        following: dict[RunKey, RunRow] = {}
        for session_id in {row.session_id for row in buried.values()}:
            following |= {row.key: after for row, after in pairwise(self.of_session(session_id))}
        for row in buried.values():
            self.bury(self._grave_of(row, following.get(row.key)))
        # After all of them, since two runs may share what neither of the rest has.
        for root in roots:
            kept = [line for row in self.of_root(root) if not row.is_deleted for line in self.lines(*row.key)]
            self.sweep(root, self.named_in(root, kept))
        return len(buried)

    def _grave_of(self, row: RunRow, following: RunRow | None) -> RunRow:
        """Return what is left of a run, with the hash by which the run after it in the session names it."""
        begin = b"" if following is None else b"".join(self.lines(*following.key)[:1])
        # It is not the last one where the run waited meanwhile, and all others are deleted.
        hashes = (line[-66:-2] for line in reversed(self.lines(*row.key)))
        named = next((found for found in hashes if found in begin), None)
        return row.buried() if named is None else replace(row.buried(), hash=named.decode())

    def named_in(self, root: str, lines: Iterable[bytes]) -> set[str]:
        """Return the hashes of all contents that the lines name, or that these name in turn."""
        named: set[str] = set()
        new: set[str] = set().union(*map(_references_in, lines))
        # Contents name contents: a list its messages, and a message its blocks.
        while new:
            named |= new
            texts = self.contents(root, new).values()
            new = set().union(*(_references_in(content_text(text)) for text in texts)) - named
        return named


def _references_in(text: bytes) -> set[str]:
    return {match.decode() for match in _CONTENT_REFERENCE.findall(text)}


def content_text(content: bytes) -> bytes:
    """Return the text of a content, which is compressed where that is shorter."""
    return zlib.decompress(content[1:], -15) if content[:1] == b"z" else content[1:]


def pack_content(text: bytes) -> bytes:
    """Return the content that has this text."""
    if len(text) <= _MAX_PLAIN:
        return b"r" + text
    # A small window: making the tables of the usual one takes ten times as long as compressing a kilobyte.
    small = len(text) < _MAX_SMALL_TEXT
    packer = zlib.compressobj(1, zlib.DEFLATED, _DEFLATE_BITS if small else -15, 3 if small else 8)
    packed = packer.compress(text) + packer.flush()
    return b"z" + packed if len(packed) < len(text) else b"r" + text
