"""Knowledge bases: what they read, what they keep, and what they find."""

import signal
import sys
import tempfile
from pathlib import Path
from threading import get_ident
from typing import Any

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrt.errors import AgentRTError, ConfigError, ReaderError, UsageError
from agentrt.rag import (
    Chunk,
    Chunker,
    Document,
    IndexProgress,
    KnowledgeBase,
    MarkdownReader,
    PDFReader,
    Section,
    SimpleKnowledge,
    SQLiteTextStore,
    TextReader,
)
from agentrt.testing import HashingEmbedding
from tests.program_runner import ProgramRunner
from tests.rag.pdf_files import pdf_with_text, pdf_without_text


def knowledge_base(store: SQLiteTextStore | None = None, **options: Any) -> KnowledgeBase:
    return KnowledgeBase("handbook", "How we work.", store or SQLiteTextStore(":memory:"), **options)


def write(folder: Path, **files: str) -> None:
    folder.mkdir(exist_ok=True)
    for name, text in files.items():
        (folder / f"{name}.md").write_text(text, encoding="utf-8")


async def documents_found(knowledge: KnowledgeBase, query: str) -> list[str]:
    return [hit.document for hit in await knowledge.search(query)]


# Chunks.

PAGE = (
    "# Guide\n\nAn introduction.\n\n## Install\n\nRun the installer.\n\n```sh\n# not a heading\n```\n\n# End\n\nBye.\n"
)


def parse(text: str) -> Document:
    return MarkdownReader().parse(text.encode(), Path("guide.md"), lambda: False)


@pytest.fixture
def knowledge() -> KnowledgeBase:
    return knowledge_base()


def test_a_section_begins_at_each_heading_outside_of_code() -> None:
    document = parse(PAGE)
    assert document.title == "Guide"
    assert [section.heading for section in document.sections] == ["Guide", "Guide > Install", "End"]
    assert all(PAGE[section.start] == "#" for section in document.sections)


def test_a_file_without_headings_has_its_name_as_title() -> None:
    assert parse("Only text.").title == "guide"


@pytest.mark.parametrize(("line", "title"), [("# Tea ##", "Tea"), ("# C#", "C#"), ("# #", ""), ("#  a # b", "a # b")])
def test_heading_is_read_without_its_closing_marks(line: str, title: str) -> None:
    assert parse(f"{line}\n").title == title


def test_heading_is_read_in_the_time_of_its_length() -> None:
    long = "#" * 200_000 + "x"
    assert parse(f"# {long}\n").title == long


def test_front_matter_has_no_headings() -> None:
    assert [section.heading for section in parse("---\n# a comment\nx: 1\n---\n# Real\n").sections] == ["Real"]


def test_a_longer_fence_is_not_closed_by_a_shorter_one() -> None:
    assert parse("````\n```\n# code\n```\n````\n# Text\n").title == "Text"


def test_a_chunk_ends_before_a_section() -> None:
    chunks = Chunker(40, min_chars=5)(parse(PAGE))
    assert [chunk.heading for chunk in chunks] == ["Guide", "Guide > Install", "Guide > Install", "End"]
    assert chunks[0].text == "# Guide\n\nAn introduction."


@given(
    st.text(alphabet=st.sampled_from("ab. \n#`月。"), max_size=400),
    st.integers(1, 60).flatmap(lambda longest: st.tuples(st.just(longest), st.integers(0, longest - 1))),
)
def test_chunks_are_all_of_a_text_in_its_order(text: str, sizes: tuple[int, int]) -> None:
    chunks = Chunker(sizes[0], min_chars=sizes[1])(parse(text))
    assert all(text[chunk.start : chunk.end] == chunk.text and 0 < len(chunk.text) <= sizes[0] for chunk in chunks)
    assert "".join("".join(chunk.text for chunk in chunks).split()) == "".join(text.split())


@pytest.mark.parametrize(
    "text", ["x" * 1_000_000, " " * 1_000_000, "\n" * 1_000_000, "#" * 1_000_000, "月" * 1_000_000]
)
def test_a_text_without_boundaries_is_split(text: str) -> None:
    assert len(Chunker()(parse(text))) in (0, 834)


@pytest.mark.parametrize("sizes", [(0, 0), (100, 100), (True, 0), ("5", 0), (10**9, 0), (100, -1)])
def test_a_size_that_cannot_be_is_refused(sizes: tuple[Any, Any]) -> None:
    with pytest.raises(ConfigError, match="Chunker"):
        Chunker(sizes[0], min_chars=sizes[1])


# Readers.


async def add_file(path: Path, data: bytes, **options: Any) -> KnowledgeBase:
    await anyio.Path(path).write_bytes(data)
    knowledge = knowledge_base(readers=[PDFReader()], **options)
    assert await knowledge.add(path)
    return knowledge


async def test_a_chunk_of_a_pdf_knows_its_page(tmp_path: Path) -> None:
    path = tmp_path / "guide.pdf"
    knowledge = await add_file(path, pdf_with_text("Our tea is green.", "The coast."), chunker=Chunker(20, min_chars=5))
    (hit,) = await knowledge.search("coast")
    assert (hit.document, hit.page, hit.text) == (path.as_posix(), 2, "The coast.")


async def test_the_end_of_a_name_may_be_in_capitals(tmp_path: Path) -> None:
    knowledge = await add_file(tmp_path / "NOTES.TXT", b"\xef\xbb\xbfGreen tea\r\nand more")
    assert (await knowledge.search("tea"))[0].text == "Green tea\nand more"


async def test_a_text_in_another_encoding_is_read_if_it_is_named(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_bytes("月亮很圆。".encode("gb18030"))
    with pytest.raises(ReaderError, match=r"notes.txt' is not in utf-8, see byte \d: name its encoding"):
        await knowledge_base().add(path)
    knowledge = knowledge_base(readers=[TextReader(encoding="gb18030")])
    assert await knowledge.add(path)
    assert await documents_found(knowledge, "月亮") == [path.as_posix()]
    assert not await knowledge.add(path)


BAD_FILES = {
    "html.pdf": (b"<html>not a PDF</html>", "cannot be read as a PDF"),
    "empty.pdf": (b"", "cannot be read as a PDF"),
    "cut.pdf": (pdf_with_text("Tea.")[:150], "cannot be read as a PDF"),
    "locked.pdf": (pdf_without_text(1, password="secret"), "is encrypted: save a copy of it without a password"),
    "images.pdf": (pdf_without_text(3), "has no text on its 3 pages, only images perhaps: run OCR on it first"),
    "binary.txt": (b"\0\1\2", "is not text, or is UTF-16"),
    "utf16.md": ("# Tea".encode("utf-16"), "read it with MarkdownReader.encoding='utf-16'."),
    "bytes.md": (b"\xff\xfe# Tea", "name its encoding"),
    "image.png": (b"x", "of a kind that no reader is for: there are readers for .log, .markdown, .md, .pdf"),
}


@pytest.mark.parametrize("name", BAD_FILES)
async def test_a_file_that_cannot_be_read_is_named(name: str, tmp_path: Path) -> None:
    data, message = BAD_FILES[name]
    knowledge = knowledge_base(readers=[PDFReader()])
    (tmp_path / name).write_bytes(data)
    with pytest.raises(ReaderError, match=f"{name}.*{message}"):
        await knowledge.add(tmp_path / name)
    assert await knowledge.documents() == []


@pytest.mark.parametrize("encoding", ["utf-13", None, "\0"])
def test_an_encoding_that_does_not_exist_is_refused(encoding: Any) -> None:
    with pytest.raises(ConfigError, match=r"encoding=\.\.\.\) must be the name of an encoding"):
        TextReader(encoding=encoding)


def test_a_missing_package_is_named_when_a_reader_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pypdf", None)
    with pytest.raises(ConfigError, match=r"PDFReader needs the package pypdf: pip install \"agentrt\[rag\]\""):
        PDFReader()


async def test_a_pdf_of_too_many_pages_is_refused(tmp_path: Path) -> None:
    (tmp_path / "long.pdf").write_bytes(pdf_without_text(5))
    knowledge = knowledge_base(readers=[PDFReader(max_pages=4)])
    with pytest.raises(
        ReaderError, match=r"long.pdf' has 5 pages, and at most 4 are read: split it, or write PDFReader"
    ):
        await knowledge.add(tmp_path / "long.pdf")


async def test_a_file_of_too_many_bytes_is_refused(tmp_path: Path) -> None:
    with open(tmp_path / "long.txt", "wb") as file:
        file.truncate(51_000_000)
    with pytest.raises(ReaderError, match=r"long.txt' has 51 MB, and at most 50 are read: split it"):
        await knowledge_base().add(tmp_path / "long.txt")


async def test_a_file_that_takes_too_long_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentrt.rag.file_reading._MAX_READING_SECONDS", -1.0)
    (tmp_path / "guide.pdf").write_bytes(pdf_with_text("Tea."))
    with pytest.raises(ReaderError, match=r"guide.pdf' cannot be read: reading it takes more than"):
        await knowledge_base(readers=[PDFReader()]).add(tmp_path / "guide.pdf")
    with pytest.raises(ReaderError, match="cannot be read: listing its files takes more than"):
        await knowledge_base(readers=[PDFReader()]).sync(tmp_path)


@pytest.mark.parametrize("path", ["", None, 5, b"x", "a\0b", []])
async def test_what_is_not_a_document_is_refused(path: Any) -> None:
    with pytest.raises(ReaderError, match=r"add\(\) takes a Document, or the path of a file"):
        await knowledge_base().add(path)
    with pytest.raises(ReaderError, match=r"sync\(\) takes the path of a folder"):
        await knowledge_base().sync(path)


async def test_a_missing_file_and_folder_are_named(tmp_path: Path) -> None:
    with pytest.raises(ReaderError, match=r"none.md' cannot be read: No such file"):
        await knowledge_base().add(tmp_path / "none.md")
    with pytest.raises(ReaderError, match=r"none' cannot be read: No such file.*give the path of a folder"):
        await knowledge_base().sync(tmp_path / "none")
    with pytest.raises(ReaderError, match=r"it is a folder: write sync"):
        (tmp_path / "folder.md").mkdir()
        await knowledge_base().add(tmp_path / "folder.md")


@pytest.mark.parametrize(
    "document",
    [
        Document("", "x"),
        Document(5, "x"),  # type: ignore[arg-type]
        Document("1", None),  # type: ignore[arg-type]
        Document("1", "x", metadata={"chunk": 1}),
        Document("1", "x", metadata=[]),  # type: ignore[arg-type]
        Document("1", "x", metadata={"a": float("nan")}),
        Document("x" * 2_000, "x"),
    ],
)
async def test_a_document_that_cannot_be_kept_is_refused(document: Document, knowledge: KnowledgeBase) -> None:
    with pytest.raises(AgentRTError):
        await knowledge.add(document)
    assert await knowledge.documents() == []


# A knowledge base.


async def test_a_hit_says_where_it_stands() -> None:
    knowledge = knowledge_base(chunker=Chunker(30, min_chars=5))
    text = "Tea is green.\n\nThe coast is long in winter."
    await knowledge.add(Document("guide", text, "Guide", {"year": 2025}, [Section(0, "Drinks"), Section(15, "Places")]))
    (hit,) = await knowledge.search("winter")
    assert (hit.knowledge_base, hit.document, hit.title, hit.heading) == ("handbook", "guide", "Guide", "Places")
    assert (text[hit.start : hit.end], hit.metadata) == (hit.text, {"year": 2025})


async def test_a_chunk_is_found_by_its_heading(knowledge: KnowledgeBase) -> None:
    await knowledge.add(Document("guide", "Boil it for three minutes.", "Tea"))
    assert await documents_found(knowledge, "tea") == ["guide"]


async def test_a_filter_compares_what_documents_say_of_themselves(knowledge: KnowledgeBase) -> None:
    for year in (2024, 2025):
        await knowledge.add(Document(f"report-{year}", "Tea sales.", metadata={"year": year}))
    assert [hit.document for hit in await knowledge.search("tea", where={"year": 2024})] == ["report-2024"]


async def test_a_document_replaces_the_one_with_its_id(knowledge: KnowledgeBase) -> None:
    assert await knowledge.add(Document("1", "Green tea.")) is True
    assert await knowledge.add(Document("1", "Green tea.")) is False
    assert await knowledge.add(Document("1", "Black coffee.")) is True
    assert (await documents_found(knowledge, "tea"), await documents_found(knowledge, "coffee")) == ([], ["1"])
    assert await knowledge.add(Document("1", "  ")) is True
    assert await knowledge.documents() == []
    assert await knowledge.add(Document("1", "")) is False


async def test_a_deleted_document_is_not_found(knowledge: KnowledgeBase) -> None:
    await knowledge.add(Document("1", "Green tea."))
    await knowledge.delete("unknown")
    await knowledge.delete("1")
    assert await documents_found(knowledge, "tea") == []


async def test_knowledge_bases_of_one_store_are_apart() -> None:
    store = SQLiteTextStore(":memory:")
    handbook, recipes = knowledge_base(store), KnowledgeBase("recipes", "What we cook.", store)
    await handbook.add(Document("1", "Tea in the office."))
    await recipes.add(Document("1", "Tea with milk."))
    await handbook.delete("1")
    assert [hit.text for hit in await recipes.search("tea")] == ["Tea with milk."]
    assert await handbook.search("tea") == []


async def test_the_names_of_agentscope_lead_to_ours() -> None:
    knowledge = SimpleKnowledge("handbook", "How we work.", SQLiteTextStore(":memory:"))
    await knowledge.add_documents([Document("1", "Green tea."), Document("2", "A coast.")])
    assert [hit.document for hit in await knowledge.retrieve("tea", limit=3)] == ["1"]
    response = await knowledge.retrieve_knowledge("tea")
    assert response.content[0].text == "1:\nGreen tea."  # type: ignore[union-attr]
    with pytest.raises(UsageError, match="leave it out, and choose by limit"):
        await knowledge.retrieve("tea", score_threshold=0.5)


WRONG_BASES: list[tuple[dict[str, Any], str]] = [
    ({"name": ""}, "name=...) must be a str of 1 to 500"),
    ({"description": None}, "description=...) must be a str"),
    ({"store": "kb.db"}, "such as agentrt.rag.SQLiteTextStore('knowledge.db')"),
    ({"chunker": 500}, "must be a Chunker or a function of a document"),
    ({"chunker": Chunker}, "must be a Chunker or a function of a document"),
    ({"readers": ["pdf"]}, r"as in [PDFReader()]"),
    ({"readers": None}, r"as in [PDFReader()]"),
]


@pytest.mark.parametrize(("arguments", "message"), WRONG_BASES)
def test_a_wrong_argument_is_answered_with_a_right_one(arguments: dict[str, Any], message: str) -> None:
    values = {"name": "a", "description": "b", "store": SQLiteTextStore(":memory:"), **arguments}
    with pytest.raises(ConfigError) as caught:
        KnowledgeBase(**values)
    assert message in str(caught.value)


# Folders.


async def test_a_sync_takes_what_changed_and_forgets_what_is_gone(tmp_path: Path) -> None:
    folder = tmp_path / "docs"
    write(folder, tea="Green tea.", coast="The coast.", moon="月亮很圆。")
    (folder / "image.png").write_bytes(b"x")
    (folder / ".hidden").mkdir()
    write(folder / ".hidden", secret="A secret tea.")
    knowledge = knowledge_base()
    await knowledge.add(Document("other", "Another tea."))
    assert (await knowledge.sync(folder)).added == ["docs/coast.md", "docs/moon.md", "docs/tea.md"]
    write(folder, tea="Black tea.")
    (folder / "coast.md").unlink()
    (folder / "inner").mkdir()
    (folder / "moon.md").rename(folder / "inner" / "moon.md")
    report = await knowledge.sync(str(folder))
    assert (report.added, report.changed) == (["docs/inner/moon.md"], ["docs/tea.md"])
    assert (report.deleted, report.unchanged, report.failed) == (["docs/coast.md", "docs/moon.md"], [], {})
    assert sorted(await documents_found(knowledge, "tea 月亮 coast")) == ["docs/inner/moon.md", "docs/tea.md", "other"]
    (folder / "empty.md").write_text(" ")
    assert (await knowledge.sync(folder)).unchanged == ["docs/empty.md", "docs/inner/moon.md", "docs/tea.md"]


async def test_a_file_that_cannot_be_read_keeps_what_was_known(tmp_path: Path, knowledge: KnowledgeBase) -> None:
    folder = tmp_path / "docs"
    write(folder, tea="Green tea.")
    await knowledge.sync(folder)
    (folder / "tea.md").write_bytes(b"\xff\xff")
    (folder / "loop.md").symlink_to("loop.md")
    (folder / "circle").symlink_to(folder, target_is_directory=True)
    write(folder, coast="The coast.")
    report = await knowledge.sync(folder)
    assert (report.added, sorted(report.failed)) == (["docs/coast.md"], ["docs/loop.md", "docs/tea.md"])
    assert "name its encoding" in str(report.failed["docs/tea.md"])
    assert sorted(await documents_found(knowledge, "tea coast")) == ["docs/coast.md", "docs/tea.md"]


async def test_a_file_that_cannot_be_stored_stops_no_other(tmp_path: Path) -> None:
    folder = tmp_path / "docs"
    write(folder, tea="# Tea\n\nGreen tea.", heading=f"# {'tea ' * 50_000}\n\nThe coast.")
    deep = folder
    for _ in range(5):
        deep /= "d" * 240
    deep.mkdir(parents=True)
    write(deep, moon="The moon.")
    knowledge = knowledge_base()
    report = await knowledge.sync(folder)
    assert report.added == ["docs/heading.md", "docs/tea.md"]
    [error] = report.failed.values()
    assert "1 to 1,000 characters" in str(error)
    assert await documents_found(knowledge, "coast") == ["docs/heading.md"]


async def test_documents_are_split_beside_the_event_loop(tmp_path: Path) -> None:
    threads = []

    def split(document: Document) -> list[Chunk]:
        threads.append(get_ident())
        return Chunker()(document)

    knowledge = KnowledgeBase("a", "b", SQLiteTextStore(":memory:"), chunker=split)
    write(tmp_path / "docs", tea="Green tea.")
    await knowledge.sync(tmp_path / "docs")
    await knowledge.add(Document("moon", "The moon."))
    assert len(threads) == 2
    assert get_ident() not in threads


async def test_two_folders_are_synced_apart(tmp_path: Path, knowledge: KnowledgeBase) -> None:
    write(tmp_path / "docs", tea="Green tea.")
    write(tmp_path / "notes", tea="Black tea.")
    await knowledge.sync(tmp_path / "docs")
    await knowledge.sync(tmp_path / "notes")
    assert await knowledge.documents() == ["docs/tea.md", "notes/tea.md"]


files = st.sampled_from(["a", "b", "inner/c"])
contents = st.sampled_from(["# Tea\n\nGreen tea.", "Black tea.\n" * 40, "月亮很圆。", ""])
steps = st.one_of(
    st.tuples(st.just("write"), files, contents),
    st.tuples(st.just("remove"), files, st.just("")),
    st.tuples(st.just("sync"), st.just(""), st.just("")),
    st.tuples(st.just("add"), files, contents),
    st.tuples(st.just("delete"), files, st.just("")),
)


@pytest.mark.slow
@given(st.lists(steps, max_size=10))
@settings(max_examples=40)
def test_any_order_of_steps_equals_a_fresh_index(sequence: list[tuple[str, str, str]]) -> None:
    anyio.run(compare_with_fresh_index, sequence)


async def compare_with_fresh_index(sequence: list[tuple[str, str, str]]) -> None:
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place, "docs")
        (folder / "inner").mkdir(parents=True)
        knowledge = knowledge_base()
        for action, name, text in sequence:
            path = folder / f"{name}.md"
            if action == "write":
                path.write_text(text, encoding="utf-8")
            elif action == "remove":
                path.unlink(missing_ok=True)
            elif action == "sync":
                await knowledge.sync(folder)
            elif action == "add":
                await knowledge.add(Document(f"docs/{name}.md", text))
            else:
                await knowledge.delete(f"docs/{name}.md")
        # What was added by hand, and is not of the folder, is not the folder's to forget.
        for name in ("a", "b", "inner/c"):
            await knowledge.delete(f"docs/{name}.md")
        await knowledge.sync(folder)
        fresh = knowledge_base()
        await fresh.sync(folder)
        for query in ("tea", "green tea", "月亮"):
            assert await knowledge.search(query) == await fresh.search(query)
        assert await knowledge.documents() == await fresh.documents()


KILLED_IN_A_SYNC = """
import os, signal, sys
import anyio
from agentrt.rag import KnowledgeBase, SQLiteTextStore, sqlite_store

knowledge = KnowledgeBase("handbook", "How we work.", SQLiteTextStore(sys.argv[1]))
anyio.run(knowledge.sync, sys.argv[2])
for name in ("a", "b"):
    with open(f"{sys.argv[2]}/{name}.md", "w") as file:
        file.write("Coffee is black.\\n\\n" * 500)
put, puts = sqlite_store._Edit.put, []

def put_or_die(change, *rest):
    puts.append(rest)
    if len(puts) == 9:
        os.kill(os.getpid(), signal.SIGKILL)
    put(change, *rest)

sqlite_store._Edit.put = put_or_die
anyio.run(knowledge.sync, sys.argv[2])
"""


def test_a_killed_sync_leaves_no_half_document(tmp_path: Path, program_runner: ProgramRunner) -> None:
    write(tmp_path / "docs", a="Green tea. " * 300, b="Black tea. " * 300)
    database, folder = str(tmp_path / "kb.db"), str(tmp_path / "docs")
    result = program_runner.run(KILLED_IN_A_SYNC, database, folder)
    assert result.returncode == -signal.SIGKILL
    knowledge = knowledge_base(SQLiteTextStore(database))
    assert set(anyio.run(documents_found, knowledge, "tea")) == {"docs/a.md", "docs/b.md"}
    assert anyio.run(documents_found, knowledge, "coffee") == []
    assert anyio.run(knowledge.sync, folder).changed == ["docs/a.md", "docs/b.md"]
    assert anyio.run(documents_found, knowledge, "tea") == []


async def test_half_characters_are_repaired_but_refused_in_names(knowledge: KnowledgeBase) -> None:
    assert await knowledge.add(Document("tea", "Green \ud800 tea", title="\udfff"))
    assert (await knowledge.search("tea"))[0].text == "Green \ufffd tea"
    with pytest.raises(ReaderError, match="rename the document"):
        await knowledge.add(Document("\ud800", "Tea."))
    with pytest.raises(ConfigError, match="1 to 500 whole characters"):
        KnowledgeBase("a\ud800", "d", knowledge.store)


# Progress.


async def test_a_sync_says_how_far_it_has_come(tmp_path: Path) -> None:
    write(tmp_path / "docs", a="Tea.", b="Coffee.\n\nMilk.", c="")
    knowledge = knowledge_base(embedding=HashingEmbedding(batch_size=1), chunker=Chunker(8, min_chars=1))
    steps: list[IndexProgress] = []

    await knowledge.sync(tmp_path / "docs", on_progress=steps.append)

    read = [(step.document, step.documents, step.total_chunks) for step in steps[:3]]
    assert read == [("docs/a.md", 1, 1), ("docs/b.md", 2, 3), ("docs/c.md", 3, 3)]
    assert [step.chunks for step in steps[3:]] == [1, 2, 3]
    assert {step.total_documents for step in steps} == {3}
    steps.clear()
    await knowledge.sync(tmp_path / "docs", on_progress=steps.append)
    assert steps[-1] == IndexProgress("docs/c.md", 3, 3, 0, 0)


async def test_adding_a_document_counts_its_chunks() -> None:
    knowledge, steps = knowledge_base(chunker=Chunker(8, min_chars=1)), list[IndexProgress]()
    for _ in range(2):
        await knowledge.add(Document("a", "Coffee.\n\nMilk."), on_progress=steps.append)

    assert steps == [IndexProgress("a", 1, 1, 0, 2), IndexProgress("a", 1, 1, 2, 2), IndexProgress("a", 1, 1, 0, 0)]


async def test_progress_is_told_to_a_plain_function() -> None:
    async def wrong(progress: IndexProgress) -> None: ...

    with pytest.raises(UsageError, match=r"add\(on_progress=\.\.\.\) must be a plain function of an IndexProgress"):
        await knowledge_base().add(Document("a", "Tea."), on_progress=wrong)
