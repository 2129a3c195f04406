"""Texts in a SQLite database, with a full-text index."""

import json
import os
import sqlite3
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import accumulate
from time import time_ns
from typing import Any

from agentrt._runtime.database.sqlite import SQLiteConnection, SQLiteDatabase
from agentrt.embedding import Vector
from agentrt.errors import ConfigError
from agentrt.rag.checked_store import CheckedStore, TextChange, TextSelection
from agentrt.rag.search_terms import index_terms
from agentrt.rag.store import StoredText, TextMatch, VectorSpace
from agentrt.types import JSONObject

_COLUMNS = "id, text, source, metadata, created_at, ended_at"
# Several versions may share an id; only the current one, which has no end, is in the index and has a vector. The
# numbers of an owner's texts are contiguous, so that a search visits only these.
_TEXT_TABLES = """
CREATE TABLE rag_owners (place INTEGER PRIMARY KEY, owner TEXT NOT NULL UNIQUE);
CREATE TABLE rag_texts (
    number INTEGER PRIMARY KEY, owner TEXT NOT NULL, id TEXT NOT NULL, source TEXT NOT NULL,
    created_at INTEGER NOT NULL, ended_at INTEGER, text TEXT NOT NULL, metadata TEXT NOT NULL
);
CREATE UNIQUE INDEX rag_current_texts ON rag_texts (owner, id) WHERE ended_at IS NULL;
CREATE INDEX rag_texts_by_id ON rag_texts (owner, id, number);
CREATE INDEX rag_texts_by_source ON rag_texts (owner, source, number);
CREATE VIRTUAL TABLE rag_terms USING fts5(terms, tokenize = 'porter unicode61');
CREATE TABLE rag_vectors (number INTEGER PRIMARY KEY, vector BLOB NOT NULL);
CREATE TABLE rag_vector_space (model TEXT NOT NULL, dimensions INTEGER NOT NULL)"""
_NUMBERS_OF_OWNER = 1 << 32
_KEPT_SPACE = "SELECT model, dimensions FROM rag_vector_space WHERE EXISTS (SELECT 1 FROM rag_vectors)"
# Only this index has all the columns.
_COUNT_TEXTS = "SELECT count(*) FROM rag_texts INDEXED BY rag_current_texts WHERE owner = :owner AND ended_at IS NULL"
_COUNT_TEXTS_WITH_TERM = """
SELECT count(*) FROM (
    SELECT 1 FROM rag_terms WHERE rag_terms MATCH :wanted AND rowid BETWEEN :first AND :last LIMIT :budget
)
"""
# The budget of matches to score: this number, or half the number of texts, if that is
# more: scoring one takes fifteen times as long as finding it.
_MAX_SCORED_WORDS = 10_000
# Only the best are read: `CROSS` and `+` keep SQLite from starting with all texts of the owner.
_BEST_TEXTS = f"""
SELECT {_COLUMNS}, score FROM (
    SELECT {{number}} AS best, {{score}} AS score FROM {{table}} WHERE {{match}}
    ORDER BY score DESC LIMIT :limit + 1
) CROSS JOIN rag_texts ON number = best WHERE +owner = :owner ORDER BY score DESC, id
"""
_BEST_TEXTS_WHERE = f"""
SELECT {_COLUMNS}, score FROM (
    SELECT rag_texts.number AS best, {{score}} AS score
    FROM {{table}} CROSS JOIN rag_texts ON rag_texts.number = {{number}}
    WHERE {{match}} AND {{condition}} ORDER BY score DESC, id LIMIT :limit
) CROSS JOIN rag_texts ON number = best WHERE +owner = :owner ORDER BY score DESC, id
"""
_BATCH = 500  # ids per statement; some builds of SQLite take at most 999 values


@dataclass(frozen=True)
class _TextIndex:
    """An index of texts by their numbers, and its score of a match of `:wanted`."""

    table: str
    number: str
    score: str
    match: str


_WORD_INDEX = _TextIndex("rag_terms", "rag_terms.rowid", "-bm25(rag_terms)", "rag_terms MATCH :wanted")
# A plain table, so that a program without the extension can still delete its rows.
_VECTOR_INDEX = _TextIndex(
    "rag_vectors", "rag_vectors.number", "1 - vec_distance_cosine(vec_int8(vector), vec_int8(:wanted))", "1"
)


class SQLiteTextStore(CheckedStore):
    """Keeps texts in the SQLite database at `path`, which several processes may use, or in memory with ":memory:".

    The file is created at the first use, for its owner alone; its folder must exist. English words are found by their
    stems, and Chinese, Japanese and Korean by pairs of characters. Needs no package, and for an embedding the extra
    `rag`. Each number of a vector is stored in one byte, which finds nearly the same.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        # Tried, since SQLite's compile options need not list all features.
        try:
            connection = sqlite3.connect(":memory:")
            connection.execute("CREATE VIRTUAL TABLE terms USING fts5(term)")
            connection.close()
        except sqlite3.Error as error:
            raise ConfigError(
                f"SQLiteTextStore needs SQLite's full-text search, which SQLite {sqlite3.sqlite_version} of this "
                f"Python lacks: use another build of Python"
            ) from error
        self._database = SQLiteDatabase("SQLiteTextStore", path, schema=_TEXT_TABLES, name="rag_schema", version=2)
        self.path = self._database.path

    def __reduce__(self) -> tuple[Any, ...]:
        return _remake, (type(self), self._database.path_to_pickle(), self._space)

    def use_vectors(self, model: str, dimensions: int) -> None:
        space = VectorSpace(model, dimensions)
        if self._space is not None:
            space.check_same(self._space, f"the SQLiteTextStore {self.path!r:.200}")
        self._database.use_vectors()
        self._space = space

    async def _write(self, owner: str, change: TextChange) -> None:
        def work(connection: SQLiteConnection) -> None:
            self._check_space(connection)
            edit = _Edit(connection, owner)
            edit.delete("source", change.delete_sources)
            edit.delete("id", change.delete)
            edit.end(change.retract)
            if self._space is not None and any(text.vector is not None for text in change.put):
                edit.put_space(self._space)
            for text in change.put:
                edit.put(text)

        await self._database.write(work, change.extra_seconds)

    async def _get(self, owner: str, ids: Sequence[str]) -> list[StoredText]:
        statement = f"SELECT {_COLUMNS} FROM rag_texts WHERE owner = ? AND ended_at IS NULL AND id IN "

        def work(connection: SQLiteConnection) -> list[StoredText]:
            return [
                _stored_text(row)
                for batch in _name_batches(ids)
                for row in connection.execute(statement + _value_marks(batch), (owner, *batch))
            ]

        return await self._database.read(work)

    async def _history(self, owner: str, id: str) -> list[StoredText]:
        statement = f"SELECT {_COLUMNS} FROM rag_texts WHERE owner = :owner AND id = :id ORDER BY number"
        return await self._select(statement, {"owner": owner, "id": id})

    async def _list(self, owner: str, source: str | None, selection: TextSelection) -> list[StoredText]:
        condition, values = _filter(selection.where)
        if source is not None:
            condition += " AND source = :source"
        return await self._select(
            f"SELECT {_COLUMNS} FROM rag_texts WHERE owner = :owner AND ended_at IS NULL AND {condition} "
            f"ORDER BY created_at DESC, number LIMIT :limit",
            {**values, "owner": owner, "source": source, "limit": selection.limit},
        )

    async def _list_sources(self, owner: str) -> dict[str, JSONObject]:
        # In a group, SQLite takes the other columns from the row with the minimum.
        statement = (
            "SELECT source, metadata, MIN(number) FROM rag_texts WHERE owner = ? AND ended_at IS NULL "
            "GROUP BY source ORDER BY source"
        )

        def work(connection: SQLiteConnection) -> dict[str, JSONObject]:
            return {row[0]: json.loads(row[1]) for row in connection.execute(statement, (owner,))}

        return await self._database.read(work)

    async def _search_terms(self, owner: str, terms: Sequence[str], selection: TextSelection) -> list[TextMatch]:
        # Quotes disable operators; a star after them asks for a prefix.
        phrases = [f'"{term[:-1]}"*' if term.endswith("*") else f'"{term}"' for term in terms]

        def work(connection: SQLiteConnection) -> list[TextMatch]:
            search = _Search(connection, owner, selection)
            rarest, telling = search.rarest_first(phrases)
            matches: list[TextMatch] = []
            if not rarest:
                return matches
            # If the rare ones find too few, the next one is added, and then all of them.
            for count in sorted({telling, telling + 1, len(rarest)}):
                matches = search.best(_WORD_INDEX, " OR ".join(rarest[:count]))
                if len(matches) == selection.limit:
                    break
            return matches

        return await self._database.read(work)

    async def _search_vectors(self, owner: str, vector: Sequence[float], selection: TextSelection) -> list[TextMatch]:
        def work(connection: SQLiteConnection) -> list[TextMatch]:
            self._check_space(connection)
            return _Search(connection, owner, selection).best(_VECTOR_INDEX, _as_bytes(vector))

        return await self._database.read(work)

    def _check_space(self, connection: SQLiteConnection) -> None:
        if self._space is not None:
            kept = connection.execute(_KEPT_SPACE).fetchone()
            if kept is not None:
                self._space.check_same(VectorSpace(*kept), f"the SQLiteTextStore {self.path!r:.200}")

    async def _forget(self, owner: str) -> None:
        def work(connection: SQLiteConnection) -> None:
            _Edit(connection, owner).delete_all()

        await self._database.write(work)

    async def _select(self, statement: str, values: Mapping[str, object]) -> list[StoredText]:
        return await self._database.read(
            lambda connection: [_stored_text(row) for row in connection.execute(statement, values)]
        )


class _Search:
    __slots__ = ("_condition", "_connection", "_values")

    def __init__(self, connection: SQLiteConnection, owner: str, selection: TextSelection) -> None:
        self._connection = connection
        first = _first_number(connection, owner)
        self._values: dict[str, Any] = {
            "owner": owner,
            "first": first,
            "last": first + _NUMBERS_OF_OWNER - 1,
            "limit": selection.limit,
        }
        self._condition = ""
        if selection.where:
            self._condition, values = _filter(selection.where)
            self._values |= values

    def rarest_first(self, phrases: Sequence[str]) -> tuple[list[str], int]:
        """Return the phrases found in texts, rarest first, and the number of selective ones.

        A phrase in most texts adds next to nothing to a score, but would make most texts be scored.
        """
        (texts,) = self._connection.execute(_COUNT_TEXTS, self._values).fetchone()
        budget = max(texts // 2, _MAX_SCORED_WORDS)
        if texts * len(phrases) <= budget:
            return list(phrases), len(phrases)
        counts: dict[str, int] = {}
        for phrase in phrases:
            values = {**self._values, "wanted": phrase, "budget": budget}
            (counts[phrase],) = self._connection.execute(_COUNT_TEXTS_WITH_TERM, values).fetchone()
        rarest = sorted((phrase for phrase in phrases if counts[phrase]), key=counts.__getitem__)
        totals = accumulate(counts[phrase] for phrase in rarest)
        return rarest, max(1, sum(total <= budget for total in totals))

    def best(self, index: _TextIndex, wanted: object) -> list[TextMatch]:
        """Return the texts with the highest scores; ties are broken by id."""
        parts = asdict(replace(index, match=f"{index.match} AND {index.number} BETWEEN :first AND :last"))
        values, limit, condition = {**self._values, "wanted": wanted}, self._values["limit"], self._condition
        if not condition:
            rows = self._connection.execute(_BEST_TEXTS.format(**parts), values).fetchall()
            if len(rows) <= limit or rows[limit][-1] < rows[limit - 1][-1]:
                return [TextMatch(_stored_text(row[:-1]), row[-1]) for row in rows[:limit]]
            # A tie across the limit: the index does not know the order by id.
            condition, values["least"] = f"{index.score} >= :least", rows[limit][-1]
        rows = self._connection.execute(_BEST_TEXTS_WHERE.format(**parts, condition=condition), values)
        return [TextMatch(_stored_text(row[:-1]), row[-1]) for row in rows]


class _Edit:
    """The statements of one write, each bound to the owner."""

    __slots__ = ("_connection", "_last_number", "_now", "_owner")

    def __init__(self, connection: SQLiteConnection, owner: str) -> None:
        self._connection, self._owner, self._now = connection, owner, time_ns()
        self._last_number = 0

    def delete(self, column: str, names: Sequence[str]) -> None:
        for batch in _name_batches(names):
            where = f"owner = ? AND {column} IN {_value_marks(batch)}"
            self._drop_from_index(where, (self._owner, *batch))
            self._connection.execute(f"DELETE FROM rag_texts WHERE {where}", (self._owner, *batch))

    def delete_all(self) -> None:
        self._drop_from_index("owner = ?", (self._owner,))
        for table in ("rag_texts", "rag_owners"):
            self._connection.execute(f"DELETE FROM {table} WHERE owner = ?", (self._owner,))

    def end(self, ids: Sequence[str]) -> None:
        for batch in _name_batches(ids):
            where, values = f"owner = ? AND id IN {_value_marks(batch)} AND ended_at IS NULL", (self._owner, *batch)
            self._drop_from_index(where, values)
            self._connection.execute(f"UPDATE rag_texts SET ended_at = ? WHERE {where}", (self._now, *values))

    def put(self, text: StoredText) -> None:
        metadata = json.dumps(text.metadata, ensure_ascii=False)
        current = self._connection.execute(
            "SELECT text, source, metadata, number FROM rag_texts WHERE owner = ? AND id = ? AND ended_at IS NULL",
            (self._owner, text.id),
        ).fetchone()
        if current is not None and current[:3] == (text.text, text.source, metadata):
            self._put_vector(current[3], text.vector)
            return
        # The older version stays, for queries about the past.
        if current is not None:
            self.end([text.id])
        number = self._next_number()
        columns = "number, owner, id, source, created_at, text, metadata"
        row = (number, self._owner, text.id, text.source, self._now, text.text, metadata)
        self._connection.execute(f"INSERT INTO rag_texts ({columns}) VALUES {_value_marks(row)}", row)
        terms = index_terms(f"{text.keywords}\n{text.text}")
        self._connection.execute("INSERT INTO rag_terms (rowid, terms) VALUES (?, ?)", (number, terms))
        self._put_vector(number, text.vector)

    def _next_number(self) -> int:
        if self._last_number == 0:
            self._connection.execute("INSERT OR IGNORE INTO rag_owners (owner) VALUES (?)", (self._owner,))
            first = _first_number(self._connection, self._owner)
            statement = "SELECT max(number) FROM rag_texts WHERE number BETWEEN ? AND ?"
            values = (first, first + _NUMBERS_OF_OWNER - 1)
            self._last_number = self._connection.execute(statement, values).fetchone()[0] or first
        self._last_number += 1
        return self._last_number

    def put_space(self, space: VectorSpace) -> None:
        """Record the model of the vectors; existing ones are of the same model."""
        self._connection.execute("DELETE FROM rag_vector_space")
        self._connection.execute("INSERT INTO rag_vector_space VALUES (?, ?)", tuple(space))

    def _put_vector(self, number: int, vector: Vector | None) -> None:
        if vector is not None and any(vector):
            self._connection.execute("REPLACE INTO rag_vectors VALUES (?, ?)", (number, _as_bytes(vector)))

    # Before the rows change: afterwards, nothing shows which of them are in the index.
    def _drop_from_index(self, where: str, values: Sequence[str]) -> None:
        for table, number in (("rag_terms", "rowid"), ("rag_vectors", "number")):
            self._connection.execute(
                f"DELETE FROM {table} WHERE {number} IN "
                f"(SELECT number FROM rag_texts WHERE {where} AND ended_at IS NULL)",
                tuple(values),
            )


def _remake(cls: type[SQLiteTextStore], path: str, space: VectorSpace | None) -> SQLiteTextStore:
    store = cls(path)
    if space is not None:
        store.use_vectors(*space)
    return store


def _first_number(connection: SQLiteConnection, owner: str) -> int:
    """Return the number before the owner's range; 0, with an empty range, for an unknown owner."""
    row = connection.execute("SELECT place FROM rag_owners WHERE owner = ?", (owner,)).fetchone()
    return row[0] * _NUMBERS_OF_OWNER if row is not None else 0


def _as_bytes(vector: Vector) -> bytes:
    """Return the direction of the vector, one byte per number."""
    largest = max(map(abs, vector))
    return array("b", [round(number / largest * 127) for number in vector]).tobytes()


def _stored_text(row: Any) -> StoredText:
    id, text, source, metadata, created_at, ended_at = row
    return StoredText(id, text, source, json.loads(metadata), created_at=created_at, ended_at=ended_at)


def _filter(where: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return a condition on the metadata and its values; it is true for an empty filter."""
    conditions = ["1"]
    values: dict[str, Any] = {}
    for place, (key, value) in enumerate(where.items()):
        # JSON's own types, since for SQLite `true` equals 1.
        types = {str: "'text'", bool: "'true', 'false'", type(None): "'null'"}.get(type(value), "'integer', 'real'")
        conditions.append(
            f"EXISTS (SELECT 1 FROM json_each(rag_texts.metadata) "
            f"WHERE key = :key{place} AND type IN ({types}) AND value IS :value{place})"
        )
        # SQLite reads integers beyond its own range from JSON as floats, and accepts them only as such.
        is_large = isinstance(value, int) and not -(2**63) <= value < 2**63
        values |= {f"key{place}": key, f"value{place}": float(value) if is_large else value}
    return " AND ".join(conditions), values


def _name_batches(names: Sequence[str]) -> Iterable[Sequence[str]]:
    return (names[start : start + _BATCH] for start in range(0, len(names), _BATCH))


def _value_marks(values: Sequence[object]) -> str:
    return f"({', '.join('?' * len(values))})"
