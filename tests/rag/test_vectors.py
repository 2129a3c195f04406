"""One suite for what every store does with vectors, and what is found by words and vectors at once."""

import logging
import pickle
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import anyio
import pytest

from agentrt._runtime.block import new_name
from agentrt.embedding import EmbeddingResponse
from agentrt.errors import ConfigError, ModelError, StoreError, Transient, UsageError
from agentrt.memory import LongTermMemory
from agentrt.message import Msg, UserMsg
from agentrt.rag import Document, KnowledgeBase, PgVectorStore, SQLiteTextStore, StoreBase, StoredText
from agentrt.testing import HashingEmbedding
from tests.postgres_server import PostgresServer


class Fails(HashingEmbedding):
    """Works until `failure` is set."""

    failure: Exception | str | None = None

    async def _embed(self, texts: list[str]) -> EmbeddingResponse:
        if isinstance(self.failure, Exception):
            raise self.failure
        if self.failure == "hangs":
            await anyio.sleep_forever()
        if self.failure == "wrong length":
            return EmbeddingResponse([[1.0]] * len(texts))
        return await super()._embed(texts)


FAILURES = [Transient("down: sk-secret"), "hangs", "wrong length"]
EAST, NORTH, BETWEEN = [1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [1.0, 1.0, 0.0]


async def nearest(store: StoreBase, vector: Any, owner: str = "ann", **options: Any) -> list[str]:
    return [match.text.id for match in await store.search_vectors(owner, vector, **options)]


async def test_the_texts_with_the_nearest_vectors_are_found(store: StoreBase) -> None:
    store.use_vectors("compass", 3)
    texts = [StoredText("e", "east", vector=EAST), StoredText("n", "north", vector=[0, 5, 0]), StoredText("w", "words")]
    await store.write("ann", [*texts, StoredText("b", "between", vector=BETWEEN), StoredText("0", "z", vector=[0] * 3)])
    await store.write("bob", [StoredText("e", "bob's", vector=EAST)])
    matches = await store.search_vectors("ann", [2.0, 0.1, 0.0])
    assert [match.text.id for match in matches] == ["e", "b", "n"]
    assert [match.score for match in matches] == pytest.approx([0.9988, 0.742, 0.05], abs=0.01)
    assert await nearest(store, EAST, limit=1) == ["e"]
    assert await nearest(store, EAST, "bob") == ["e"]
    assert await nearest(store, [0, 0, 0]) == []


async def test_vectors_follow_their_texts(store: StoreBase) -> None:
    store.use_vectors("compass", 3)
    await store.write("ann", [StoredText(id, id, f"source-{id}", vector=EAST) for id in "abcd"])
    await store.write("ann", [StoredText("a", "new", vector=NORTH)], retract=["b"], delete=["c"])
    assert await nearest(store, EAST) == ["d", "a"]
    await store.write("ann", delete_sources=["source-d"])
    assert await nearest(store, EAST) == ["a"]
    await store.write("ann", [StoredText("d", "again"), StoredText("a", "new")])
    assert await nearest(store, EAST) == ["a"]
    await store.write("ann", [StoredText("d", "again", vector=EAST)])
    assert await nearest(store, EAST) == ["d", "a"]
    await store.forget("ann")
    assert await nearest(store, EAST) == []


async def test_a_filter_holds_for_vectors_too(store: StoreBase) -> None:
    store.use_vectors("compass", 3)
    await store.write("ann", [StoredText(str(n), "x", "", {"year": n}, vector=EAST) for n in range(5)])
    assert await nearest(store, EAST, where={"year": 3}) == ["3"]


@pytest.mark.parametrize("vector", [[1.0], [1.0, 2.0, float("nan")], "abc", None, [1, 2, "x"], 5], ids=str)
async def test_what_is_not_a_vector_of_the_store_is_refused(vector: Any, store: StoreBase) -> None:
    store.use_vectors("compass", 3)
    with pytest.raises(StoreError, match="must be 3 finite numbers"):
        await store.search_vectors("ann", vector)
    if vector is not None:
        with pytest.raises(StoreError, match=r"the vector of 'x' must be 3 finite numbers"):
            await store.write("ann", [StoredText("x", "x", vector=vector), StoredText("y", "y")])
    assert await store.list_texts("ann") == []


async def test_vectors_without_a_model_are_refused(store: StoreBase) -> None:
    with pytest.raises(StoreError, match="before use_vectors"):
        await store.write("ann", [StoredText("x", "x", vector=EAST)])
    store.use_vectors("compass", 3)
    with pytest.raises(StoreError, match=r"'compass' with 3 numbers, and was opened for 'sextant' with 3 numbers"):
        store.use_vectors("sextant", 3)


# The file.


async def test_a_file_with_vectors_of_another_model_is_refused(tmp_path: Path) -> None:
    store = SQLiteTextStore(tmp_path / "texts.db")
    store.use_vectors("compass", 3)
    await store.write("ann", [StoredText("x", "x", vector=EAST)])
    for model, dimensions in (("compass", 4), ("sextant", 3)):
        other = SQLiteTextStore(tmp_path / "texts.db")
        other.use_vectors(model, dimensions)
        vector = [1.0] * dimensions
        for action in (other.search_vectors("ann", vector), other.write("ann", [StoredText("y", "y", vector=vector)])):
            with pytest.raises(StoreError, match=rf"'compass' with 3 numbers.*'{model}' with {dimensions} numbers"):
                await action
    await store.forget("ann")
    await other.write("ann", [StoredText("y", "y", vector=[1, 1, 1])])
    assert await nearest(other, EAST) == ["y"]


@pytest.mark.slow  # another process
async def test_a_file_with_vectors_can_be_used_without_them(tmp_path: Path) -> None:
    path = tmp_path / "texts.db"
    store = SQLiteTextStore(path)
    store.use_vectors("compass", 3)
    await store.write("ann", [StoredText("x", "tea", vector=EAST), StoredText("y", "tea", vector=EAST)])
    # Another process, without the extra.
    code = (
        "import sys, anyio; sys.modules['apsw'] = None\nfrom agentrt.rag import SQLiteTextStore\n"
        "store = SQLiteTextStore(sys.argv[1])\nanyio.run(lambda: store.write('ann', delete=['x']))\n"
        "print([match.text.id for match in anyio.run(store.search_text, 'ann', 'tea')])"
    )
    result = await anyio.run_process([sys.executable, "-c", code, str(path)])
    assert result.stdout == b"['y']\n"
    assert await nearest(store, EAST) == ["y"]
    copy = pickle.loads(pickle.dumps(store))
    assert await nearest(copy, EAST) == ["y"]


async def test_one_process_uses_one_library_for_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain, with_vectors = SQLiteTextStore(tmp_path / "texts.db"), SQLiteTextStore(tmp_path / "texts.db")
    with_vectors.use_vectors("compass", 3)
    # Two libraries would drop each other's locks.
    monkeypatch.setattr(sqlite3, "connect", None)
    await plain.write("ann", [StoredText("x", "tea")])
    assert [text.id for text in await with_vectors.list_texts("ann")] == ["x"]


async def test_a_store_in_memory_is_given_its_embedding_first() -> None:
    store = SQLiteTextStore(":memory:")
    await store.write("ann", [StoredText("x", "tea")])
    with pytest.raises(ConfigError, match="give it one before its first use"):
        store.use_vectors("compass", 3)


@pytest.mark.parametrize("name", ["apsw", "sqlite_vec"])
def test_a_missing_package_is_named_when_the_object_is_made(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ConfigError, match=r'pip install "agentrt.rag."'):
        KnowledgeBase("k", "d", SQLiteTextStore(":memory:"), embedding=HashingEmbedding())


KILLED = """
import os, signal, sys
import anyio
from agentrt.rag import Document, KnowledgeBase, SQLiteTextStore
from agentrt.rag.sqlite_store import _Edit
from agentrt.testing import HashingEmbedding

put = _Edit._put_vector
left = [30]
def dies(self, number, vector):
    put(self, number, vector)
    left[0] -= 1
    if not left[0]:
        os.kill(os.getpid(), signal.SIGKILL)
_Edit._put_vector = dies
knowledge = KnowledgeBase("k", "d", SQLiteTextStore(sys.argv[1]), embedding=HashingEmbedding())
anyio.run(knowledge.add, Document("a", "A new page on coffee. " * 2000))
"""


@pytest.mark.slow  # another process
def test_a_killed_write_leaves_no_half_document(tmp_path: Path) -> None:
    path = tmp_path / "texts.db"
    knowledge = KnowledgeBase("k", "d", SQLiteTextStore(path), embedding=HashingEmbedding())
    anyio.run(knowledge.add, Document("a", "An old page on tea."))
    result = subprocess.run([sys.executable, "-c", KILLED, str(path)], check=False)
    assert result.returncode == -signal.SIGKILL
    assert [hit.text for hit in anyio.run(knowledge.search, "coffee")] == ["An old page on tea."]


# Words and vectors at once.


class Means(HashingEmbedding):
    def _vector(self, text: str) -> list[float]:
        return super()._vector(text.lower().replace("automobile", "car").replace("fast", "quick"))


def knowledge_base(store: StoreBase, embedding: Any) -> KnowledgeBase:
    return KnowledgeBase("k", "d", store, embedding=embedding)


@pytest.mark.parametrize("store", ["file", "pgvector"], indirect=True)
async def test_a_document_is_found_by_what_it_means(store: StoreBase) -> None:
    knowledge = knowledge_base(store, Means())
    await knowledge.add(Document("cars", "A quick car."))
    await knowledge.add(Document("soup", "Cut the onions finely."))
    assert [hit.document for hit in await knowledge.search("fast automobile", limit=1)] == ["cars"]
    assert [hit.document for hit in await knowledge.search("onions", limit=1)] == ["soup"]
    hits = await knowledge.search("fast automobile", score_threshold=0.5)
    assert [hit.document for hit in hits] == ["cars"]
    assert 0.5 < hits[0].score <= 1


@pytest.mark.parametrize("store", ["pgvector"], indirect=True)
async def test_a_server_keeps_each_version_of_a_text_once(store: StoreBase) -> None:
    for text in ("Green tea.", "Green tea.", "Black tea."):
        await store.write("ann", [StoredText("tea", text), StoredText("coast", "She swam.")])
    assert [text.id for text in await store.list_texts("ann")] == ["tea", "coast"]
    old, new = await store.history("ann", "tea")
    assert (old.text, new.text, new.ended_at) == ("Green tea.", "Black tea.", None)
    assert old.ended_at == new.created_at


async def test_what_both_rankings_have_comes_first(store: StoreBase) -> None:
    knowledge = knowledge_base(store, Means())
    await knowledge.add(Document("words", "automobile automobile automobile in many other words of no use here"))
    await knowledge.add(Document("meaning", "car quick"))
    await knowledge.add(Document("both", "quick automobile"))
    assert (await knowledge.search("fast automobile"))[0].document == "both"


async def test_another_embedding_indexes_anew(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "a.md").write_text("# Tea")
    words = KnowledgeBase("k", "d", SQLiteTextStore(tmp_path / "k.db"))
    assert (await words.sync(tmp_path / "docs")).added == ["docs/a.md"]
    embedding = HashingEmbedding()
    both = knowledge_base(SQLiteTextStore(tmp_path / "k.db"), embedding)
    assert (await both.sync(tmp_path / "docs")).changed == ["docs/a.md"]
    assert (await both.sync(tmp_path / "docs")).unchanged == ["docs/a.md"]
    assert len(embedding.calls) == 1


async def test_a_score_threshold_needs_an_embedding(store: StoreBase) -> None:
    with pytest.raises(UsageError, match="give it an embedding"):
        await KnowledgeBase("k", "d", store).search("tea", score_threshold=0.5)


@pytest.mark.parametrize("failure", FAILURES, ids=str)
async def test_a_failing_embedding_writes_nothing(failure: Any, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(HashingEmbedding, "max_seconds", 0.05)
    embedding = Fails()
    knowledge = knowledge_base(SQLiteTextStore(tmp_path / "k.db"), embedding)
    await knowledge.add(Document("a", "Green tea. " * 300))
    before = await knowledge.store.list_texts("knowledge/k")
    embedding.failure = failure
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "b.md").write_text("# Black tea")
    for change in (lambda: knowledge.add(Document("a", "Coffee.")), lambda: knowledge.sync(tmp_path / "docs")):
        with pytest.raises(ModelError):
            await change()
    assert await knowledge.store.list_texts("knowledge/k") == before
    embedding.failure = None
    assert (await knowledge.sync(tmp_path / "docs")).added == ["docs/b.md"]


@pytest.mark.parametrize("failure", FAILURES, ids=str)
async def test_a_failing_embedding_leaves_the_words(
    failure: Any, store: StoreBase, monkeypatch: Any, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("agentrt.rag.hybrid._MAX_QUERY_SECONDS", 0.05)
    embedding = Fails()
    knowledge = knowledge_base(store, embedding)
    await knowledge.add(Document("a", "Green tea."))
    embedding.failure = failure
    with caplog.at_level(logging.WARNING, "agentrt"):
        hits = await knowledge.search("tea")
    assert [hit.document for hit in hits] == ["a"]
    assert hits.failure in ("Transient", "no answer in time", "Malformed")
    assert [record.getMessage() for record in caplog.records] == [
        f"texts are searched for by their words alone, since hashing failed: {hits.failure}"
    ]


async def test_memories_are_found_by_what_they_mean(store: StoreBase, caplog: pytest.LogCaptureFixture) -> None:
    class FailsToMean(Fails, Means):
        pass

    embedding = FailsToMean()
    memory = LongTermMemory(store, embedding=embedding)
    await memory.record([UserMsg("ann", "I have a quick car.")], owner="ann")
    assert await memory.retrieve(UserMsg("ann", "fast automobile"), owner="ann") == "user: I have a quick car."
    assert await memory.retrieve(UserMsg("bob", "fast automobile"), owner="bob") == ""
    embedding.failure = Transient("down")
    with pytest.raises(Transient):
        await memory.record([Msg("ann", "I sold it.", "user")], owner="ann", key="2")
    assert [text.text for text in await store.list_texts("memory/ann")] == ["user: I have a quick car."]
    retrieved = await memory.retrieve(UserMsg("ann", "car"), owner="ann")
    assert (retrieved, retrieved.failure) == ("user: I have a quick car.", "Transient")  # type: ignore[attr-defined]


class WordsOnly:
    """A store of a memory that keeps no vectors."""

    write = get = search_text = forget = None


@pytest.mark.parametrize("make", [lambda: LongTermMemory(WordsOnly(), embedding=HashingEmbedding())])  # type: ignore[arg-type]
def test_a_store_without_vectors_is_refused(make: Any) -> None:
    with pytest.raises(ConfigError, match="needs a store that keeps vectors"):
        make()


def test_a_store_for_words_alone_takes_no_embedding() -> None:
    class WordStore(SQLiteTextStore):
        use_vectors = StoreBase.use_vectors

    with pytest.raises(ConfigError, match="WordStore keeps no vectors: leave the embedding out"):
        knowledge_base(WordStore(":memory:"), HashingEmbedding())


def test_what_is_not_an_embedding_is_refused(store: StoreBase) -> None:
    with pytest.raises(ConfigError, match="must be an embedding model, as in OpenAIEmbedding"):
        KnowledgeBase("k", "d", store, embedding="text-embedding-3-small")  # type: ignore[arg-type]


# PostgreSQL.

SECRET = "canary-7"


async def test_a_server_that_is_away_is_named_without_the_password() -> None:
    store = PgVectorStore(f"postgresql://ann:{SECRET}@127.0.0.1:1/x")
    for action in (store.write("ann", [StoredText("x", "x")]), store.search_text("ann", "x"), store.forget("ann")):
        with pytest.raises(StoreError, match=r"PgVectorStore could not .* in PostgreSQL at 127.0.0.1:1/x") as caught:
            await action
        assert SECRET not in str(caught.value) + repr(caught.value.__context__) + repr(store)


@pytest.mark.slow
async def test_a_database_with_vectors_of_another_model_is_refused(vector_server: PostgresServer) -> None:
    schema = f"t{new_name().lower()}"
    async with (
        PgVectorStore(vector_server.url, schema=schema) as store,
        PgVectorStore(vector_server.url, schema=schema) as other,
    ):
        store.use_vectors("compass", 3)
        await store.write("ann", [StoredText("x", "x", vector=EAST)])
        other.use_vectors("compass", 4)
        with pytest.raises(StoreError, match=r"'compass' with 3 numbers.*'compass' with 4 numbers"):
            await other.search_vectors("ann", [1, 1, 1, 1])


@pytest.mark.slow
async def test_writers_of_one_owner_do_not_disturb_each_other(vector_server: PostgresServer) -> None:
    schema = f"t{new_name().lower()}"
    async with (
        PgVectorStore(vector_server.url, schema=schema) as one,
        PgVectorStore(vector_server.url, schema=schema) as two,
        anyio.create_task_group() as tasks,
    ):
        for store in (one, two):
            store.use_vectors("compass", 3)
            for n in range(3):
                tasks.start_soon(store.write, "ann", [StoredText("x", f"{n}", vector=EAST), StoredText(f"{n}", "y")])
    assert sorted(text.id for text in await one.list_texts("ann")) == ["0", "1", "2", "x"]
    await one.aclose()


@pytest.mark.slow  # starts another server
async def test_a_server_without_the_extension_is_named() -> None:
    server = PostgresServer()
    try:
        async with PgVectorStore(server.url) as store:
            await store.write("ann", [StoredText("x", "tea")])
            assert len(await store.search_text("ann", "teas")) == 1
            store.use_vectors("compass", 3)
            with pytest.raises(StoreError, match=r"install the extension vector .pgvector. on that server"):
                await store.search_vectors("ann", EAST)
    finally:
        server.close()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"url": "mysql://x"}, "url=.... must begin with 'postgresql://'"),
        ({"url": "postgresql://x", "schema": "A"}, "schema=...."),
        ({"url": "postgresql://x", "pool_size": 0}, "pool_size=...."),
    ],
)
def test_options_that_reach_no_server_are_refused(options: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=f"PgVectorStore.{message}"):
        PgVectorStore(**options)
