"""Texts in PostgreSQL, with its full-text search and with vectors."""

import json
from collections.abc import Callable, Mapping, Sequence
from time import time_ns
from typing import Any, TypeVar

from anyio import to_thread
from anyio.lowlevel import checkpoint_if_cancelled

from agentrt._runtime.database.operations import DatabaseError, OperationQueue
from agentrt._runtime.database.postgres import PostgresConnections, check_postgres_options
from agentrt._runtime.representation import never_raises
from agentrt.errors import StoreError
from agentrt.rag.checked_store import CheckedStore, TextChange, TextSelection
from agentrt.rag.search_terms import index_terms
from agentrt.rag.store import StoredText, TextMatch, VectorSpace, check_text_name
from agentrt.types import JSONObject

_StoreResult = TypeVar("_StoreResult")
_MAX_INDEXED = 400_000  # characters of the words of one text; an index entry has at most a megabyte

# Texts and metadata are bytes, since TEXT cannot hold every character. The dictionary has no stop
# words: some texts are found only by them.
_RAG_MIGRATIONS = [
    """
    CREATE TABLE {schema}.rag_texts (
        number BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        owner TEXT COLLATE "C" NOT NULL,
        id TEXT COLLATE "C" NOT NULL,
        source TEXT COLLATE "C" NOT NULL,
        created_at BIGINT NOT NULL,
        ended_at BIGINT,
        text BYTEA NOT NULL,
        metadata BYTEA NOT NULL,
        filters JSONB NOT NULL,
        words INTEGER NOT NULL,
        terms TSVECTOR NOT NULL
    );
    CREATE UNIQUE INDEX ON {schema}.rag_texts (owner, id) INCLUDE (words) WHERE ended_at IS NULL;
    CREATE INDEX ON {schema}.rag_texts (owner, id, number);
    CREATE INDEX ON {schema}.rag_texts (owner, source, number);
    CREATE INDEX ON {schema}.rag_texts USING gin (terms) WHERE ended_at IS NULL;
    CREATE TABLE {schema}.rag_vector_space (model TEXT NOT NULL, dimensions INTEGER NOT NULL);
    CREATE TEXT SEARCH DICTIONARY {schema}.rag_stem (TEMPLATE = pg_catalog.snowball, Language = english);
    CREATE TEXT SEARCH CONFIGURATION {schema}.rag (COPY = pg_catalog.simple);
    ALTER TEXT SEARCH CONFIGURATION {schema}.rag
        ALTER MAPPING FOR asciiword, word, numword WITH {schema}.rag_stem;
    """
]
"""Each brings the schema from the version that is its index to the next one; none is ever changed."""

_VECTOR_TABLE = """
    CREATE EXTENSION IF NOT EXISTS vector;
    CREATE TABLE IF NOT EXISTS {schema}.rag_vectors (
        number BIGINT PRIMARY KEY REFERENCES {schema}.rag_texts ON DELETE CASCADE, vector VECTOR NOT NULL
    )
"""
_TEXT_COLUMNS = "id, text, source, metadata, created_at, ended_at"
_CURRENT = "owner = %(owner)s AND ended_at IS NULL"
_TEXT_STATEMENTS = {
    # One writer per owner at a time: otherwise two that put one id would collide in the index.
    "lock": "SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))",
    "delete_sources": "DELETE FROM {schema}.rag_texts WHERE owner = %s AND source = ANY(%s)",
    "delete": "DELETE FROM {schema}.rag_texts WHERE owner = %s AND id = ANY(%s)",
    "forget": "DELETE FROM {schema}.rag_texts WHERE owner = %s",
    "end": "UPDATE {schema}.rag_texts SET ended_at = %s WHERE owner = %s AND id = ANY(%s) AND ended_at IS NULL",
    "current": f"SELECT {_TEXT_COLUMNS}, number FROM {{schema}}.rag_texts WHERE {_CURRENT} AND id = ANY(%(ids)s)",
    "history": f"SELECT {_TEXT_COLUMNS} FROM {{schema}}.rag_texts WHERE owner = %s AND id = %s ORDER BY number",
    "list": f"""
        SELECT {_TEXT_COLUMNS} FROM {{schema}}.rag_texts
        WHERE {_CURRENT} AND filters @> %(filters)s AND source = coalesce(%(source)s, source)
        ORDER BY created_at DESC, number LIMIT %(limit)s
    """,
    "list_sources": f"""
        SELECT DISTINCT ON (source) source, metadata FROM {{schema}}.rag_texts WHERE {_CURRENT} ORDER BY source, number
    """,
    "put": """
        INSERT INTO {schema}.rag_texts (owner, id, source, created_at, text, metadata, filters, words, terms)
        VALUES (%(owner)s, %(id)s, %(source)s, %(now)s, %(text)s, %(metadata)s, %(filters)s, %(words)s,
            to_tsvector('{schema}.rag', %(terms)s))
    """,
    "put_vector": """
        INSERT INTO {schema}.rag_vectors
        SELECT number, %(vector)s::vector FROM {schema}.rag_texts
        WHERE owner = %(owner)s AND id = %(id)s AND ended_at IS NULL
        ON CONFLICT (number) DO UPDATE SET vector = excluded.vector
    """,
    "space": """
        SELECT model, dimensions FROM {schema}.rag_vector_space WHERE EXISTS (SELECT 1 FROM {schema}.rag_vectors)
    """,
    "drop_space": "DELETE FROM {schema}.rag_vector_space",
    "put_space": "INSERT INTO {schema}.rag_vector_space VALUES (%s, %s)",
    # BM25, but with the sum of 1/n² from `ts_rank` in place of a word's count; it grows as slowly.
    # Rounded, since a sum depends on its order in the last digits.
    "search": f"""
        WITH found AS MATERIALIZED (
            SELECT number, id, words, place, 1.644934 * ts_rank('{{{{1,1,1,1}}}}', terms, term) AS times
            FROM {{schema}}.rag_texts, unnest(%(terms)s::tsquery[]) WITH ORDINALITY AS wanted (term, place)
            WHERE {_CURRENT} AND terms @@ %(any_term)s::tsquery AND terms @@ term AND filters @> %(filters)s
        ), total AS (
            SELECT count(*) AS texts, avg(words) AS words FROM {{schema}}.rag_texts WHERE {_CURRENT}
        ), rarity AS (
            SELECT place, ln(1 + (max(total.texts) - count(*) + 0.5) / (count(*) + 0.5)) AS weight
            FROM found, total GROUP BY place
        ), best AS (
            SELECT number, id, round(sum(
                weight * times * 2.2 / (times + 1.2 * (0.25 + 0.75 * found.words / total.words))
            )::numeric, 9)::float8 AS score
            FROM found JOIN rarity USING (place), total GROUP BY number, id ORDER BY score DESC, id LIMIT %(limit)s
        )
        SELECT {", ".join("rag_texts." + name for name in _TEXT_COLUMNS.split(", "))}, score
        FROM best JOIN {{schema}}.rag_texts USING (number) ORDER BY score DESC, rag_texts.id
    """,
    "search_vectors": f"""
        SELECT {_TEXT_COLUMNS}, 1 - (vector <=> %(vector)s::vector) AS score
        FROM {{schema}}.rag_texts JOIN {{schema}}.rag_vectors USING (number)
        WHERE {_CURRENT} AND filters @> %(filters)s ORDER BY score DESC, id LIMIT %(limit)s
    """,
}


class PgVectorStore(CheckedStore):
    """Keeps texts in the PostgreSQL database at `url`, in tables of `schema`, with the extra `pgvector`.

    For an embedding, the server needs the extension vector. Any number of machines may use the database, at most
    `pool_size` connections at a time each, from threads. The tables are created and migrated at the first use. Vectors
    are compared one by one, so the search is exact. `async with store` closes the connections at the end; `aclose` does
    the same.
    """

    def __init__(self, url: str, *, schema: str = "agentrt", pool_size: int = 8) -> None:
        owner = type(self).__name__
        check_postgres_options(owner, schema, pool_size)
        self._database = PostgresConnections(
            owner,
            url,
            schema,
            extra="pgvector",
            version_table="rag_version",
            migrations=[text.format(schema=schema) for text in _RAG_MIGRATIONS],
            newer_version=StoreError,
        )
        self._sql = {name: text.format(schema=schema) for name, text in _TEXT_STATEMENTS.items()}
        self._config = f"{schema}.rag"
        self._schema = schema
        self._operations = OperationQueue(pool_size)
        self._has_vector_table = False

    @never_raises
    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._database.place!r})"

    async def __aenter__(self) -> "PgVectorStore":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close idle connections; the next operation opens new ones."""
        await to_thread.run_sync(self._database.close)

    def use_vectors(self, model: str, dimensions: int) -> None:
        space = VectorSpace(check_text_name("model", model), dimensions)
        if self._space is not None:
            space.check_same(self._space, repr(self))
        self._space = space

    async def _write(self, owner: str, change: TextChange) -> None:
        await checkpoint_if_cancelled()

        def work(connection: Any) -> None:
            now = time_ns()
            with connection.transaction():
                connection.execute(self._sql["lock"], [owner])
                self._check_space(connection)
                for statement, names in (("delete_sources", change.delete_sources), ("delete", change.delete)):
                    if names:
                        connection.execute(self._sql[statement], [owner, names])
                if change.retract:
                    connection.execute(self._sql["end"], [now, owner, change.retract])
                if change.put:
                    self._put(connection, owner, change.put, now)

        await self._run("write", work, shield=True, extra_seconds=change.extra_seconds)

    async def _get(self, owner: str, ids: Sequence[str]) -> list[StoredText]:
        return await self._select("current", {"owner": owner, "ids": [*ids]})

    async def _history(self, owner: str, id: str) -> list[StoredText]:
        return await self._select("history", [owner, id])

    async def _list(self, owner: str, source: str | None, selection: TextSelection) -> list[StoredText]:
        return await self._select("list", {**_as_values(owner, selection), "source": source})

    async def _list_sources(self, owner: str) -> dict[str, JSONObject]:
        def work(connection: Any) -> dict[str, JSONObject]:
            return {
                source: json.loads(bytes(metadata))
                for source, metadata in connection.execute(self._sql["list_sources"], {"owner": owner})
            }

        return await self._run("read", work)

    async def _search_terms(self, owner: str, terms: Sequence[str], selection: TextSelection) -> list[TextMatch]:
        values = _as_values(owner, selection)

        def work(connection: Any) -> list[TextMatch]:
            # They are letters and digits, without operators.
            stems = connection.execute(
                f"SELECT DISTINCT to_tsquery('{self._config}', term)::text FROM unnest(%s::text[]) AS term",
                [[f"{term[:-1]}:*" if term.endswith("*") else term for term in terms]],
            )
            values["terms"] = sorted(stem for (stem,) in stems if stem)
            values["any_term"] = " | ".join(values["terms"])
            return _as_matches(connection.execute(self._sql["search"], values)) if values["terms"] else []

        return await self._run("read", work)

    async def _search_vectors(self, owner: str, vector: Sequence[float], selection: TextSelection) -> list[TextMatch]:
        values = {**_as_values(owner, selection), "vector": json.dumps(vector)}

        def work(connection: Any) -> list[TextMatch]:
            self._check_space(connection)
            return _as_matches(connection.execute(self._sql["search_vectors"], values))

        return await self._run("read", work)

    async def _forget(self, owner: str) -> None:
        await checkpoint_if_cancelled()
        await self._run("write", lambda connection: connection.execute(self._sql["forget"], [owner]), shield=True)

    def _put(self, connection: Any, owner: str, texts: Sequence[StoredText], now: int) -> None:
        rows = connection.execute(self._sql["current"], {"owner": owner, "ids": [text.id for text in texts]})
        current = {row[0]: (bytes(row[1]), row[2], bytes(row[3])) for row in rows}
        new = [row for row in (_as_row(owner, text, now) for text in texts) if current.get(row["id"]) != row["kept"]]
        replaced = [row["id"] for row in new if row["id"] in current]
        if replaced:
            connection.execute(self._sql["end"], [now, owner, replaced])
        vectors = [
            {"owner": owner, "id": text.id, "vector": json.dumps(text.vector)}
            for text in texts
            if text.vector is not None and any(text.vector)
        ]
        with connection.cursor() as cursor:
            if new:
                cursor.executemany(self._sql["put"], new)
            if vectors and self._space is not None:
                connection.execute(self._sql["drop_space"])
                connection.execute(self._sql["put_space"], list(self._space))
                cursor.executemany(self._sql["put_vector"], vectors)

    def _check_space(self, connection: Any) -> None:
        if self._space is None:
            return
        if not self._has_vector_table:
            name = "SELECT 1 FROM pg_available_extensions WHERE name = 'vector'"
            if connection.execute(name).fetchone() is None:
                raise StoreError(
                    f"{self!r} cannot keep vectors: install the extension vector (pgvector) on that server"
                )
            with connection.transaction():
                # Two processes that create an extension at the same time would fail.
                connection.execute("SELECT pg_advisory_xact_lock(hashtext('agentrt vector'))")
                connection.execute(_VECTOR_TABLE.format(schema=self._schema))
            self._has_vector_table = True
        kept = connection.execute(self._sql["space"]).fetchone()
        if kept is not None:
            self._space.check_same(VectorSpace(*kept), repr(self))

    async def _select(self, statement: str, values: Any) -> list[StoredText]:
        def work(connection: Any) -> list[StoredText]:
            return [_as_text(row) for row in connection.execute(self._sql[statement], values)]

        return await self._run("read", work)

    async def _run(
        self, action: str, work: Callable[[Any], _StoreResult], *, shield: bool = False, extra_seconds: float = 0.0
    ) -> _StoreResult:
        def run(deadline: float) -> _StoreResult:
            with self._database.connect(deadline) as connection:
                return work(connection)

        try:
            return await self._operations.run(object(), run, shield=shield, extra_seconds=extra_seconds)
        except DatabaseError as error:
            reason = str(error)
        except TimeoutError as error:
            reason = error.strerror or "no answer in time"
        # Raised here, so that the error above is not kept as the context.
        raise StoreError(f"PgVectorStore could not {action} in {self._database.place}: {reason}")


def _as_row(owner: str, text: StoredText, now: int) -> dict[str, Any]:
    words, metadata = text.text.encode(), json.dumps(text.metadata).encode()
    terms = index_terms(f"{text.keywords}\n{text.text}")[:_MAX_INDEXED]
    return {
        "owner": owner,
        "id": text.id,
        "source": text.source,
        "now": now,
        "text": words,
        "metadata": metadata,
        "filters": _as_filters(text.metadata),
        "words": terms.count(" ") + 1,
        "terms": terms,
        "kept": (words, text.source, metadata),
    }


def _as_values(owner: str, selection: TextSelection) -> dict[str, Any]:
    return {"owner": owner, "limit": selection.limit, "filters": _as_filters(selection.where)}


def _as_filters(metadata: Mapping[str, Any]) -> str:
    # TEXT cannot hold a null character, so both sides replace it by another one.
    return json.dumps(dict(metadata)).replace("\\u0000", "\\ufffd")


def _as_text(row: Sequence[Any]) -> StoredText:
    id, text, source, metadata, created_at, ended_at = row[:6]
    return StoredText(
        id, bytes(text).decode(), source, json.loads(bytes(metadata)), created_at=created_at, ended_at=ended_at
    )


def _as_matches(rows: Any) -> list[TextMatch]:
    return [TextMatch(_as_text(row), float(row[-1])) for row in rows]
