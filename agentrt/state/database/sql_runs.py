"""The rows of runs in three tables of a SQL database, whatever that calls its text and its marks."""

from abc import abstractmethod
from collections.abc import Callable, Collection, Iterator
from json import dumps
from typing import Any

from pydantic_core import from_json

from agentrt.state.records.rows import RunQuery, RunRow, RunRows

_RUN_COLUMNS = """
    session, reply, root, parent_session, parent_reply, begun_at, ended_at, expires_at, status, title, labels, lines,
    hash, about, is_deleted, number"""
_LASTING = {"session", "reply", "root", "parent_session", "parent_reply", "begun_at", "expires_at"}
_MAX_HASHES = 500  # in one statement


class SQLRunRows(RunRows):
    """Keeps rows, lines and contents in the tables `runs`, `run_lines` and `run_contents`.

    Statements mark each value with `?`. A subclass runs them, and writes lines and contents in its database's own way.
    """

    def __init__(self, make_database: Callable[[], Any], schema: str = "") -> None:
        self._make_database, self._schema = make_database, schema
        self._in_schema = f"{schema}." if schema else ""
        self._database: Any = make_database()

    def __getstate__(self) -> dict[str, Any]:
        return {"make_database": self._make_database, "schema": self._schema}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]  # as if it were new

    @abstractmethod
    def _execute(self, statement: str, *values: object) -> list[Any]:
        """Return the rows of a statement, which is part of the transaction in progress if there is one."""

    @abstractmethod
    def _conditions(self, query: RunQuery) -> Iterator[tuple[Any, ...]]:
        """Yield the conditions for the labels and the text of a query, each with its values."""

    def _encode(self, text: str) -> Any:
        return text

    def _decode(self, stored: Any) -> str:
        return str(stored)

    def _columns(self, row: RunRow) -> dict[str, Any]:
        parent = (None, None) if row.parent is None else tuple(map(self._encode, row.parent))
        return {
            "session": self._encode(row.session_id),
            "reply": self._encode(row.reply_id),
            "root": self._encode(row.root),
            "parent_session": parent[0],
            "parent_reply": parent[1],
            "begun_at": row.begun_at,
            "ended_at": row.ended_at,
            "expires_at": row.expires_at,
            "status": row.status,
            "title": self._encode(row.title),
            "labels": dumps(dict(row.labels)),
            "lines": row.lines,
            "hash": row.hash,
            "about": row.about,
            "is_deleted": row.is_deleted,
        }

    def _save(self, row: RunRow) -> int:
        columns = self._columns(row)
        changes = ", ".join(f"{name} = excluded.{name}" for name in columns if name not in _LASTING)
        [[number]] = self._execute(
            f"INSERT INTO {self._in_schema}runs ({', '.join(columns)}) VALUES ({', '.join('?' * len(columns))}) "
            f"ON CONFLICT (session, reply) DO UPDATE SET {changes} RETURNING number",
            *columns.values(),
        )
        return int(number)

    def _select(self, condition: str, *values: object) -> list[RunRow]:
        rows = self._execute(f"SELECT {_RUN_COLUMNS} FROM {self._in_schema}runs WHERE {condition}", *values)
        return list(map(self._read_row, rows))

    def _read_row(self, values: Any) -> RunRow:
        *ids, parent_session, parent_reply, begun_at, ended_at, expires_at, status, title, labels = values[:11]
        lines, digest, about, is_deleted, number = values[11:]
        session, reply, root = map(self._decode, ids)
        parent = None if parent_session is None else (self._decode(parent_session), self._decode(parent_reply))
        labels = labels if isinstance(labels, dict) else from_json(labels)
        more = (self._decode(title), labels, lines, digest, bytes(about), bool(is_deleted), number)
        return RunRow(session, reply, root, parent, begun_at, ended_at, expires_at, status, *more)

    def find(self, session_id: str, reply_id: str) -> RunRow | None:
        found = self._select("session = ? AND reply = ?", self._encode(session_id), self._encode(reply_id))
        return found[0] if found else None

    def last(self, session_id: str) -> RunRow | None:
        found = self._select("session = ? ORDER BY number DESC LIMIT 1", self._encode(session_id))
        return found[0] if found else None

    def of_session(self, session_id: str) -> list[RunRow]:
        return self._select("session = ? ORDER BY number", self._encode(session_id))

    def of_root(self, root: str) -> list[RunRow]:
        return self._select("root = ? ORDER BY number", self._encode(root))

    def lines(self, session_id: str, reply_id: str, after: int = 0) -> list[bytes]:
        rows = self._execute(
            f"SELECT line FROM {self._in_schema}run_lines JOIN {self._in_schema}runs ON run = number "
            f"WHERE session = ? AND reply = ? AND n > ? ORDER BY n",
            self._encode(session_id),
            self._encode(reply_id),
            after,
        )
        return [str(line).encode() if isinstance(line, (str, int, float)) else bytes(line) for (line,) in rows]

    def contents(self, root: str, hashes: Collection[str]) -> dict[str, bytes]:
        found: dict[str, bytes] = {}
        for condition, part in _in_lists(hashes):
            statement = f"SELECT hash, content FROM {self._in_schema}run_contents WHERE root = ? AND {condition}"
            rows = self._execute(statement, self._encode(root), *part)
            found |= {digest: bytes(content) for digest, content in rows}
        return found

    def page(self, query: RunQuery) -> list[RunRow]:
        conditions = [
            ("begun_at >= ?", query.since),
            ("session = ?", None if query.session_id is None else self._encode(query.session_id)),
            ("status = ?", query.status),
            ("number < ?", query.before),
            *self._conditions(query),
        ]
        where = "NOT is_deleted" if query.session_id is not None else "NOT is_deleted AND parent_session IS NULL"
        values: list[Any] = []
        for condition, *compared in conditions:
            if None not in compared:
                where += f" AND {condition}"
                values += compared
        return self._select(f"{where} ORDER BY number DESC LIMIT ?", *values, query.limit + 1)

    def expired(self, now: int) -> list[RunRow]:
        return self._select("expires_at <= ? ORDER BY number", now)

    def bury(self, row: RunRow) -> None:
        with self.transaction():
            self._execute(f"DELETE FROM {self._in_schema}run_lines WHERE run = ?", self._save(row))

    def remove(self, row: RunRow) -> None:
        statement = f"DELETE FROM {self._in_schema}runs WHERE session = ? AND reply = ?"
        self._execute(statement, *map(self._encode, row.key))

    def sweep(self, root: str, keep: Collection[str]) -> None:
        contents = f"{self._in_schema}run_contents WHERE root = ?"
        with self.transaction():
            there = {digest for (digest,) in self._execute(f"SELECT hash FROM {contents}", self._encode(root))}
            for condition, part in _in_lists(there.difference(keep)):
                self._execute(f"DELETE FROM {contents} AND {condition}", self._encode(root), *part)

    def close(self) -> None:
        self._database.close()


def _in_lists(hashes: Collection[str]) -> Iterator[tuple[str, list[str]]]:
    chosen = list(hashes)
    for start in range(0, len(chosen), _MAX_HASHES):
        part = chosen[start : start + _MAX_HASHES]
        yield f"hash IN ({', '.join('?' * len(part))})", part
