"""The rows of runs in this process."""

from bisect import bisect_right
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

from agentrt.state.records.rows import RunKey, RunQuery, RunRow, RunRows, RunWrite


class MemoryRunRows(RunRows):
    """Keeps rows, lines and contents in dicts."""

    def __init__(self) -> None:
        self._rows: dict[RunKey, RunRow] = {}
        self._lines: dict[RunKey, list[bytes]] = {}
        self._contents: dict[str, dict[str, bytes]] = {}
        self._last_number = 0

    def __getstate__(self) -> dict[str, Any]:
        return {}  # what is recorded belongs to this process

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__()  # type: ignore[misc]  # as if it were new

    def write(self, writes: Sequence[RunWrite]) -> None:
        for write in writes:
            row, before = write.row, self._rows.get(write.row.key)
            if before is None:
                self._last_number += 1
            number = self._last_number if before is None else before.number
            self._rows[row.key] = replace(row, number=number)
            self._lines.setdefault(row.key, []).extend(write.lines)
            self._contents.setdefault(row.root, {}).update(write.contents)

    def find(self, session_id: str, reply_id: str) -> RunRow | None:
        return self._rows.get((session_id, reply_id))

    def of_session(self, session_id: str) -> list[RunRow]:
        return [row for row in self._rows.values() if row.session_id == session_id]

    def of_root(self, root: str) -> list[RunRow]:
        return [row for row in self._rows.values() if row.root == root]

    def lines(self, session_id: str, reply_id: str, after: int = 0) -> list[bytes]:
        return self._lines.get((session_id, reply_id), [])[after:]

    def contents(self, root: str, hashes: Collection[str]) -> dict[str, bytes]:
        there = self._contents.get(root, {})
        return {digest: there[digest] for digest in hashes if digest in there}

    def page(self, query: RunQuery) -> list[RunRow]:
        rows = list(self._rows.values())
        if query.before is not None:
            del rows[bisect_right(rows, query.before, key=lambda row: row.number) :]
        return [row for row in reversed(rows) if query.matches(row)][: query.limit + 1]

    def expired(self, now: int) -> list[RunRow]:
        return [row for row in self._rows.values() if row.expires_at <= now]

    def bury(self, row: RunRow) -> None:
        self._rows[row.key] = row
        self._lines.pop(row.key, None)

    def remove(self, row: RunRow) -> None:
        self._rows.pop(row.key, None)
        self._lines.pop(row.key, None)

    def sweep(self, root: str, keep: Collection[str]) -> None:
        kept = self.contents(root, keep)
        self._contents.pop(root, None)
        if kept:
            self._contents[root] = kept
