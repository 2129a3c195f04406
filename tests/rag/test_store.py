"""One suite for every store of texts."""

import copy
import os
import pickle
import signal
import sqlite3
from pathlib import Path
from threading import Event
from typing import Any

import anyio.from_thread
import anyio.to_thread
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrt._runtime.database.sqlite import SQLiteDatabase
from agentrt.errors import ConfigError, StoreError
from agentrt.rag import SQLiteTextStore, StoreBase, StoredText
from tests.program_runner import ProgramRunner


async def found(store: StoreBase, query: str, owner: str = "ann", **options: Any) -> list[str]:
    return [match.text.id for match in await store.search_text(owner, query, **options)]


async def texts_of(store: StoreBase, owner: str = "ann") -> dict[str, str]:
    return {text.id: text.text for text in await store.list_texts(owner)}


TEA = StoredText("tea", "Ann likes green tea.", "talk-1", {"language": "en", "year": 2025})
COAST = StoredText("coast", "She walked along the coast in winter.", "talk-2", {"language": "en", "year": 2024})
MOON = StoredText("moon", "北京的天气很好，月亮很圆。", "talk-2", {"language": "zh"})


async def test_a_text_is_found_by_a_word_in_another_form(store: StoreBase) -> None:
    await store.write("ann", [TEA, COAST, MOON])
    assert await found(store, "Who was walking?") == ["coast"]
    assert await found(store, "a LIKING for teas") == ["tea"]


@pytest.mark.parametrize("query", ["天气", "月亮", "月", "圆", "很好", "北京天气怎么样", "好"])
async def test_a_word_in_a_text_without_spaces_is_found(query: str, store: StoreBase) -> None:
    await store.write("ann", [TEA, COAST, MOON])
    assert await found(store, query) == ["moon"]


async def test_full_width_letters_are_letters(store: StoreBase) -> None:
    await store.write("ann", [StoredText("1", "ＡＰＩ キー")])
    assert await found(store, "api") == ["1"]


@pytest.mark.parametrize("query", ["rate limit", "ratelimitmiddleware", "middlewares"])
async def test_the_parts_of_a_name_are_words_of_it(query: str, store: StoreBase) -> None:
    await store.write("ann", [StoredText("1", "RateLimitMiddleware makes calls wait."), TEA])
    assert await found(store, query) == ["1"]


async def test_the_text_with_more_of_the_words_comes_first(store: StoreBase) -> None:
    others = [StoredText(f"other-{n}", f"A note on something else, number {n}.") for n in range(10)]
    both, one = StoredText("z", "green tea"), StoredText("a", "green paint")
    await store.write("ann", [*others, one, both])
    assert await found(store, "green tea") == ["z", "a"]
    assert await found(store, "green tea", limit=1) == ["z"]


async def test_of_equal_texts_the_first_ids_are_found(store: StoreBase) -> None:
    await store.write("ann", [StoredText(f"{n}", "green tea") for n in reversed(range(9))])
    assert await found(store, "green tea", limit=3) == ["0", "1", "2"]


QUERIES = [
    '"', '""', "a\"b'c", "tea AND", "tea OR", "NOT tea", "NEAR(tea green)", "tea*", "^tea", "terms : tea", "owner:o",
    "-tea", "(", "tea)", "\0", "tea\0; DROP TABLE rag_texts", "%", "_", "\ud800", "🍵", "{tea}", "+", "x" * 100_000,
    "tea " * 25_000, "茶" * 100_000, "'; --", " ".join(map(str, range(20_000))),
]  # fmt: skip


async def test_no_query_is_an_error(store: StoreBase) -> None:
    await store.write("ann", [TEA, COAST])
    for query in QUERIES:
        assert await found(store, query) == (["tea"] if "tea" in query else []), query[:20]


@pytest.mark.parametrize("query", ["", "   ", "?!", None, 5])
async def test_a_query_without_words_finds_nothing(query: Any, store: StoreBase) -> None:
    await store.write("ann", [TEA])
    assert await found(store, query) == []


async def test_a_query_of_words_that_say_nothing_finds_them(store: StoreBase) -> None:
    await store.write("ann", [StoredText("1", "To be or not to be"), TEA])
    assert await found(store, "to be or not to be") == ["1"]


async def test_an_owner_never_gets_a_text_of_another(store: StoreBase) -> None:
    await store.write("ann", [TEA])
    await store.write("bob", [StoredText("tea", "Bob likes black tea."), COAST])
    assert await found(store, "tea", "ann") == ["tea"]
    assert [text.text for text in await store.get("bob", ["tea"])] == ["Bob likes black tea."]
    assert await store.list_sources("ann") == {"talk-1": TEA.metadata}
    await store.write("bob", delete=["tea"], delete_sources=["talk-1"], retract=["tea"])
    await store.forget("bob")
    assert await texts_of(store, "ann") == {"tea": TEA.text}
    assert await texts_of(store, "bob") == {}


@pytest.mark.parametrize("owner", ["\ud800", "ann\udfff"])
async def test_owners_that_would_become_one_are_refused(owner: str, store: StoreBase) -> None:
    with pytest.raises(StoreError, match="owner has half of a character in it"):
        await store.write(owner, [TEA])
    with pytest.raises(StoreError, match="half of a character"):
        await store.search_text(owner, "tea")
    with pytest.raises(StoreError, match="the id of each text has half of a character"):
        await store.write("ann", [StoredText(owner, "tea")])


async def test_a_text_that_is_replaced_keeps_its_end(store: StoreBase) -> None:
    await store.write("ann", [TEA])
    await store.write("ann", [StoredText("tea", "Ann likes coffee.")])
    assert (await found(store, "green"), await found(store, "coffee")) == ([], ["tea"])
    old, new = await store.history("ann", "tea")
    assert (old.text, new.text, new.ended_at) == (TEA.text, "Ann likes coffee.", None)
    assert old.ended_at == new.created_at >= old.created_at > 0


async def test_a_text_that_is_retracted_is_history(store: StoreBase) -> None:
    await store.write("ann", [TEA, COAST])
    await store.write("ann", retract=["tea", "unknown"])
    assert await texts_of(store) == {"coast": COAST.text}
    assert await found(store, "tea") == await store.get("ann", ["tea"]) == []
    assert [text.ended_at is None for text in await store.history("ann", "tea")] == [False]
    await store.write("ann", [TEA])
    assert await found(store, "tea") == ["tea"]
    assert [text.ended_at is None for text in await store.history("ann", "tea")] == [False, True]


async def test_what_is_deleted_is_gone_with_its_history(store: StoreBase) -> None:
    await store.write("ann", [TEA, COAST, MOON])
    await store.write("ann", [StoredText("coast", "She flew.", "talk-2")])
    await store.write("ann", delete=["tea"], delete_sources=["talk-2"])
    assert await texts_of(store) == await store.list_sources("ann") == {}
    assert await store.history("ann", "coast") == []


async def test_the_same_text_again_changes_nothing(store: StoreBase) -> None:
    await store.write("ann", [TEA])
    before = await store.history("ann", "tea")
    await store.write("ann", [TEA])
    assert await store.history("ann", "tea") == before


async def test_a_document_is_replaced_in_one_write(store: StoreBase) -> None:
    await store.write("ann", [COAST, MOON, TEA])
    await store.write("ann", [StoredText("coast", "She swam.", "talk-2")], delete_sources=["talk-2"])
    assert await texts_of(store) == {"tea": TEA.text, "coast": "She swam."}
    assert len(await store.history("ann", "coast")) == 1


async def test_forgetting_leaves_nothing_of_the_owner(tmp_path: Path) -> None:
    store = SQLiteTextStore(tmp_path / "texts.db")
    await store.write("ann", [TEA, COAST])
    await store.write("ann", [StoredText("tea", "Ann likes coffee.")], retract=["coast"])
    await store.forget("ann")
    with sqlite3.connect(tmp_path / "texts.db") as database:
        for table in ("rag_texts", "rag_terms", "rag_owners"):
            assert database.execute(f"SELECT COUNT(*) FROM {table}").fetchone() == (0,)
    database.close()


async def test_texts_come_in_the_order_that_was_asked_for(store: StoreBase) -> None:
    await store.write("ann", [TEA])
    await store.write("ann", [COAST, MOON])
    assert [text.id for text in await store.get("ann", ["moon", "unknown", "tea", "moon"])] == ["moon", "tea"]
    assert [text.id for text in await store.list_texts("ann")] == ["coast", "moon", "tea"]
    assert [text.id for text in await store.list_texts("ann", limit=1)] == ["coast"]
    assert [text.id for text in await store.list_texts("ann", source="talk-2")] == ["coast", "moon"]
    assert await store.list_sources("ann") == {"talk-1": TEA.metadata, "talk-2": COAST.metadata}


@pytest.mark.parametrize(
    ("where", "ids"),
    [
        ({"language": "en"}, {"tea", "coast", "odd"}),
        ({"language": "en", "year": 2024}, {"coast"}),
        ({"year": 2024.0}, {"coast"}),
        ({"size": 2**70}, {"odd"}),
        ({"size": 2**71}, set()),
        ({"is_new": True}, {"odd"}),
        ({"is_new": 1}, set()),
        ({"nothing": None}, {"odd"}),
        ({'a "quote" \\ and $.path': "yes"}, {"odd"}),
        ({"language": "en' OR 1=1 --"}, set()),
        ({}, {"tea", "coast", "moon", "odd"}),
    ],
)
async def test_a_filter_compares_metadata(where: dict[str, Any], ids: set[str], store: StoreBase) -> None:
    metadata = {"language": "en", "is_new": True, "nothing": None, 'a "quote" \\ and $.path': "yes", "size": 2**70}
    await store.write("ann", [TEA, COAST, MOON, StoredText("odd", "tea", metadata=metadata)])
    assert {text.id for text in await store.list_texts("ann", where=where)} == ids
    assert set(await found(store, "tea 月亮 coast", where=where)) == ids


async def test_what_is_read_is_what_was_written(store: StoreBase) -> None:
    odd = StoredText("i\nd", "\0 \u2028 𝒳 'quotes\" \\", "sou/rce", {"list": [1, {"a": None}], "é": "ü"})
    await store.write("o\"w'ner", [odd, StoredText("2", "half \ud800 pair", metadata={"pair": (1, 2)})])
    first, second = await store.get("o\"w'ner", ["i\nd", "2"])
    assert (first.id, first.text, first.source, first.metadata) == (odd.id, odd.text, odd.source, odd.metadata)
    assert (second.text, second.metadata) == ("half \ufffd pair", {"pair": [1, 2]})


WRONG_WRITES: list[tuple[dict[str, Any], str]] = [
    ({"owner": ""}, "owner must be a str of 1 to 1,000 characters"),
    ({"owner": None}, "not None"),
    ({"owner": "a\0b"}, "without a null character"),
    ({"put": ["tea"]}, "put takes StoredText objects"),
    ({"put": [StoredText("", "x")]}, "the id of each text must be a str of 1"),
    ({"put": [StoredText("x" * 1_001, "x")]}, "the id of each text must be"),
    ({"put": [StoredText("1", "a"), StoredText("1", "b")]}, "the id '1' is in one write twice"),
    ({"put": [StoredText("1", 5)]}, "the text '1' must be a str of at most 1,000,000 characters, not 5"),  # type: ignore[arg-type]
    ({"put": [StoredText("1", "x" * 1_000_001)]}, "split it"),
    ({"put": [StoredText("1", "x", metadata={"a": float("nan")})]}, "the metadata of the text '1' cannot be kept"),
    ({"put": [StoredText("1", "x", metadata={"a": object()})]}, "the metadata of the text '1' cannot be kept"),
    ({"put": [StoredText("1", "x", metadata={"a": "x" * 100_001})]}, "more than 100,000 bytes"),
    ({"put": [StoredText("1", "x", metadata=[])]}, "it is not a dict"),  # type: ignore[arg-type]
    ({"delete": [5]}, "each of delete must be a str"),
    ({"retract": 5}, "retract must be a list of str, not 5"),
]


@pytest.mark.parametrize(("arguments", "message"), WRONG_WRITES, ids=lambda value: str(value)[:50])
async def test_a_write_that_cannot_be_kept_is_refused(
    arguments: dict[str, Any], message: str, store: StoreBase
) -> None:
    await store.write("ann", [TEA])
    with pytest.raises(StoreError) as caught:
        await store.write(**{"owner": "ann", "delete": ["tea"], **arguments})
    assert message in str(caught.value)
    assert await texts_of(store) == {"tea": TEA.text}


@pytest.mark.parametrize("limit", [0, -1, True, 1.5, "5", None, float("nan"), 10**30])
async def test_a_limit_that_is_not_a_number_of_texts_is_refused(limit: Any, store: StoreBase) -> None:
    with pytest.raises(StoreError, match="limit must be a whole number from 1 to 10,000"):
        await store.search_text("ann", "tea", limit)
    with pytest.raises(StoreError, match="limit"):
        await store.list_texts("ann", limit=limit)


@pytest.mark.parametrize("where", ["language", {"a": [1]}, {"a": float("nan")}, {"a": 10**400}, {5: "x"}])
async def test_a_filter_that_compares_nothing_is_refused(where: Any, store: StoreBase) -> None:
    with pytest.raises(StoreError, match="where must"):
        await store.search_text("ann", "tea", where=where)


names, texts = st.sampled_from(["a", "b", "c"]), st.sampled_from(["green tea", "black tea", "月亮很圆"])
writes = st.fixed_dictionaries(
    {
        "owner": st.sampled_from(["ann", "bob"]),
        "put": st.lists(st.builds(StoredText, names, texts, names), unique_by=lambda text: text.id, max_size=3),
        "retract": st.lists(names, max_size=1),
        "delete": st.lists(names, max_size=1),
        "delete_sources": st.lists(names, max_size=1),
    }
)


@given(st.lists(writes, max_size=8))
@settings(max_examples=25)
async def test_a_store_holds_what_a_dict_would_hold(changes: list[dict[str, Any]]) -> None:
    expected: dict[str, dict[str, StoredText]] = {"ann": {}, "bob": {}}
    store = SQLiteTextStore(":memory:")

    for change in changes:
        await store.write(**change)
        kept = expected[change["owner"]]
        gone = {*change["delete"], *change["retract"]}
        gone |= {text.id for text in kept.values() if text.source in change["delete_sources"]}
        for id in gone & set(kept):
            del kept[id]
        kept |= {text.id: text for text in change["put"]}
    for owner, kept in expected.items():
        fresh = SQLiteTextStore(":memory:")
        for other, texts in expected.items():
            await fresh.write(other, list(texts.values()))
        assert await texts_of(store, owner) == {id: text.text for id, text in kept.items()}
        for query in ("green tea", "tea", "月亮"):
            assert await store_scores(store, owner, query) == await store_scores(fresh, owner, query)


async def store_scores(store: StoreBase, owner: str, query: str) -> list[tuple[str, float]]:
    return [(match.text.id, match.score) for match in await store.search_text(owner, query)]


async def test_words_of_most_texts_do_not_decide_what_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentrt.rag.sqlite_store._MAX_SCORED_WORDS", 1)
    store = SQLiteTextStore(":memory:")
    common = [StoredText(f"c{n}", "green tea", metadata={"year": n}) for n in range(8)]
    await store.write("ann", [*common, StoredText("rare", "green tea with oolong"), StoredText("no", "paint")])
    query = "green tea oolong unknown"
    assert await found(store, query, limit=1) == ["rare"]
    # Where the rare ones are too few, the others are found after them.
    assert await found(store, query, limit=3) == ["rare", "c0", "c1"]
    assert await found(store, query, where={"year": 5}) == ["c5"]
    assert len(await found(store, query, limit=20)) == 9
    assert await found(store, "unknown words") == []


# The database.


async def test_the_file_is_for_its_owner_alone(tmp_path: Path) -> None:
    await SQLiteTextStore(tmp_path / "texts.db").write("ann", [TEA])
    assert (tmp_path / "texts.db").stat().st_mode & 0o777 == 0o600


async def test_a_file_may_hold_tables_of_others(tmp_path: Path) -> None:
    database = sqlite3.connect(tmp_path / "app.db")
    database.execute("CREATE TABLE mine (x)")
    database.close()
    store = SQLiteTextStore(tmp_path / "app.db")
    await store.write("ann", [TEA])
    assert await texts_of(SQLiteTextStore(tmp_path / "app.db")) == {"tea": TEA.text}


@pytest.mark.parametrize("path", ["", None, 5, "a\0b", b"x"])
def test_what_is_not_a_path_is_refused(path: Any) -> None:
    with pytest.raises(ConfigError, match="path of a file"):
        SQLiteTextStore(path)


def test_a_folder_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="does not exist: make it first"):
        SQLiteTextStore(tmp_path / "none" / "texts.db")


async def test_a_file_that_is_not_a_database_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("no database " * 100)
    with pytest.raises(StoreError, match="file of another kind: give another path"):
        await SQLiteTextStore(path).write("ann", [TEA])
    assert path.read_text() == "no database " * 100


async def test_a_folder_is_not_a_database(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="it is a folder"):
        await SQLiteTextStore(tmp_path).get("ann", ["tea"])


async def test_a_folder_that_is_gone_is_named(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    store = SQLiteTextStore(tmp_path / "data" / "texts.db")
    (tmp_path / "data").rmdir()
    with pytest.raises(StoreError, match=r"data/texts.db.*No such file or directory"):
        await store.write("ann", [TEA])


async def test_tables_of_a_newer_version_are_left_alone(tmp_path: Path) -> None:
    store = SQLiteTextStore(tmp_path / "texts.db")
    await store.write("ann", [TEA])
    database = sqlite3.connect(tmp_path / "texts.db", isolation_level=None)
    database.execute("UPDATE rag_schema SET version = 99")
    with pytest.raises(StoreError, match="of version 99, and this agentrt knows version 2: update agentrt"):
        await store.write("ann", [COAST])
    assert database.execute("SELECT COUNT(*) FROM rag_texts").fetchone() == (1,)
    database.close()


async def test_a_locked_database_is_one_clear_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentrt._runtime.database.sqlite._MAX_LOCK_SECONDS", 0.05)
    store = SQLiteTextStore(tmp_path / "texts.db")
    await store.write("ann", [TEA])
    other = sqlite3.connect(tmp_path / "texts.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreError, match=r"database is locked .another program is writing to it: try again"):
        await store.write("ann", [COAST])
    assert await texts_of(store) == {"tea": TEA.text}  # readers need not wait
    other.close()
    await store.write("ann", [COAST])


async def test_a_full_disk_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = SQLiteTextStore(tmp_path / "texts.db")
    await store.write("ann", [TEA])
    connect = sqlite3.connect

    def connect_to_small_disk(*arguments: Any, **options: Any) -> sqlite3.Connection:
        connection = connect(*arguments, **options)
        connection.execute("PRAGMA max_page_count = 40")
        return connection

    monkeypatch.setattr(sqlite3, "connect", connect_to_small_disk)
    many = [StoredText(f"{n}", "word " * 4_000) for n in range(30)]
    with pytest.raises(StoreError, match=r"database or disk is full .make room on the disk"):
        await store.write("ann", many, delete=["tea"])
    assert await texts_of(store) == {"tea": TEA.text}
    assert await found(store, "tea") == ["tea"]


@pytest.fixture
def short_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentrt._runtime.database.sqlite._MAX_DATABASE_SECONDS", 0.05)
    monkeypatch.setattr("agentrt._runtime.database.operations._EXTRA_WAIT", 0.05)


async def test_time_of_a_write_grows_with_what_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentrt._runtime.database.sqlite._MAX_DATABASE_SECONDS", 0.01)
    texts = [StoredText(str(number), "Green tea.") for number in range(1_000)]
    await SQLiteTextStore(tmp_path / "texts.db").write("ann", texts)
    monkeypatch.undo()
    assert len(await SQLiteTextStore(tmp_path / "texts.db").list_texts("ann")) == 1_000


COUNT_FOR_EVER = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT COUNT(*) FROM n"


def database_at(path: Path | str) -> SQLiteDatabase:
    return SQLiteDatabase("Test", path, schema="CREATE TABLE t (x)", name="t_schema", version=1)


async def test_a_question_that_takes_too_long_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentrt._runtime.database.sqlite._MAX_DATABASE_SECONDS", 0.05)
    monkeypatch.setattr("agentrt._runtime.database.operations._EXTRA_WAIT", 60)  # it stops by itself
    database = database_at(tmp_path / "texts.db")
    with pytest.raises(StoreError, match=r"Test could not read .*texts\.db': it took more than 0\.05 seconds"):
        await database.read(lambda connection: connection.execute(COUNT_FOR_EVER).fetchall())


@pytest.mark.usefixtures("short_time")
async def test_a_disk_that_hangs_takes_a_bounded_time() -> None:
    released = Event()
    database = database_at(":memory:")
    try:
        async with anyio.create_task_group() as tasks:
            for _ in range(6):  # more than there are threads
                tasks.start_soon(expect_no_answer, database, released)
    finally:
        released.set()


async def expect_no_answer(database: SQLiteDatabase, released: Event) -> None:
    with pytest.raises(StoreError, match=r"gave no answer for 0\.05 seconds"):
        await database.write(lambda _: released.wait(30))


async def test_a_cancelled_write_is_whole_or_not_there(tmp_path: Path) -> None:
    database = database_at(tmp_path / "texts.db")
    started, stopped = anyio.Event(), Event()

    def work(connection: sqlite3.Connection) -> None:
        try:
            connection.execute("INSERT INTO t VALUES (1)")
            anyio.from_thread.run_sync(started.set)
            connection.execute(COUNT_FOR_EVER).fetchall()
        finally:
            stopped.set()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(database.write, work)
        await started.wait()
        tasks.cancel_scope.cancel()
    assert await anyio.to_thread.run_sync(stopped.wait, 30)  # nobody waits for it, so it ends by itself
    rows = await database.write(lambda connection: connection.execute("SELECT * FROM t").fetchall())
    assert rows == []


async def test_a_caller_that_has_given_up_is_not_served(tmp_path: Path) -> None:
    with anyio.CancelScope() as scope:
        scope.cancel()
        await SQLiteTextStore(tmp_path / "texts.db").write("ann", [TEA])
    assert not (tmp_path / "texts.db").exists()


def test_a_store_serves_several_event_loops(tmp_path: Path) -> None:
    for path in (":memory:", tmp_path / "texts.db"):
        store = SQLiteTextStore(path)
        anyio.run(store.write, "ann", [TEA])
        assert anyio.run(texts_of, store, backend="trio") == {"tea": TEA.text}
        assert anyio.run(texts_of, store) == {"tea": TEA.text}


async def test_many_writers_lose_nothing(store: StoreBase) -> None:
    async with anyio.create_task_group() as tasks:
        for n in range(8):
            tasks.start_soon(store.write, "ann", [StoredText(f"{n}", f"Note {n} on tea.")])
    assert len(await texts_of(store)) == 8
    assert len(await found(store, "tea", limit=100)) == 8


KILLED_IN_A_WRITE = """
import anyio, os, signal, sys
from agentrt.rag import SQLiteTextStore, StoredText
from agentrt.rag import sqlite_store

store = SQLiteTextStore(sys.argv[1])
anyio.run(store.write, "ann", [StoredText(f"old-{n}", "An old page on tea.", "page") for n in range(3)])
put = sqlite_store._Edit.put

def put_or_die(change, text, *rest):
    if text.id == "new-40":
        os.kill(os.getpid(), signal.SIGKILL)
    put(change, text, *rest)

sqlite_store._Edit.put = put_or_die
texts = [StoredText(f"new-{n}", "A new page on coffee. " * 400, "page") for n in range(50)]
anyio.run(lambda: store.write("ann", texts, delete_sources=["page"]))
"""


@pytest.mark.slow  # another process
def test_a_killed_write_leaves_what_was_there(tmp_path: Path, program_runner: ProgramRunner) -> None:
    path = tmp_path / "texts.db"
    result = program_runner.run(KILLED_IN_A_WRITE, str(path))
    assert result.returncode == -signal.SIGKILL
    store = SQLiteTextStore(path)
    assert sorted(anyio.run(texts_of, store)) == ["old-0", "old-1", "old-2"]
    assert anyio.run(found, store, "tea page") != []
    assert anyio.run(found, store, "coffee") == []


def test_a_copy_uses_the_same_database(tmp_path: Path) -> None:
    store = SQLiteTextStore(tmp_path / "texts.db")
    assert repr(store) == f"SQLiteTextStore(path={os.fspath(tmp_path / 'texts.db')!r})"
    assert copy.deepcopy(store) is store
    assert pickle.loads(pickle.dumps(store)).path == store.path
    with pytest.raises(TypeError, match="give it the path of a file"):
        pickle.dumps(SQLiteTextStore(":memory:"))
