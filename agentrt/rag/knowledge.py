"""Knowledge bases: documents that are found by questions."""

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

from anyio import to_thread

from agentrt._runtime.block import TextBlock
from agentrt._runtime.representation import repr_by_settings
from agentrt._runtime.text import repr_of, repr_with_module, whole_characters
from agentrt.embedding import EmbeddingModelBase
from agentrt.errors import ConfigError, ReaderError, StoreError, UsageError
from agentrt.rag.document import Chunker, Document, SplitDocument
from agentrt.rag.file_reading import FileReading
from agentrt.rag.hybrid import FoundTexts, add_vectors, search_texts, use_embedding
from agentrt.rag.progress import OnProgress, ProgressCount
from agentrt.rag.readers import MarkdownReader, ReaderBase, TextReader
from agentrt.rag.store import MetadataFilter, StoreBase, StoredText, TextMatch, check_texts
from agentrt.types import JSONObject, ToolResponse

_CHUNK = "chunk"  # the key of a chunk's place in its metadata
_MAX_HEADING = 1_000  # characters of a heading or a title, which every chunk stores
_MAX_CHUNKS_AT_ONCE = 500  # per write, unless one document has more


@dataclass(frozen=True, slots=True)
class KnowledgeHit:
    """A chunk found by a search: its text, and its place, document and knowledge base.

    Scores are higher for better hits, and comparable only within one search.
    """

    knowledge_base: str
    document: str
    text: str
    score: float
    title: str = ""
    heading: str = ""
    page: int | None = None
    start: int = 0
    end: int = 0
    metadata: JSONObject = field(default_factory=dict)

    @property
    def place(self) -> str:
        """The document with the heading and the page, as a citation."""
        parts = [self.document, self.heading, "" if self.page is None else f"page {self.page}"]
        return ", ".join(part for part in parts if part)


class KnowledgeHits(list[KnowledgeHit]):
    """The hits of a search, best first.

    `failure` is empty, or says why the embedding failed, so that words alone were used.
    """

    def __init__(self, hits: Iterable[KnowledgeHit] = (), failure: str = "") -> None:
        super().__init__(hits)
        self.failure = failure


@dataclass(slots=True)
class SyncReport:
    """The changes of a sync, by the ids of documents; `failed` has the errors of unreadable files."""

    added: list[str] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)
    unchanged: list[str] = field(default_factory=list)
    deleted: list[str] = field(default_factory=list)
    failed: dict[str, ReaderError] = field(default_factory=dict)


class KnowledgeBase:
    """Documents in a store, under a unique name; `description` tells a model what they are about.

    They are split into chunks, which are found by their words, and with an `embedding` by meaning as well. A document
    is stored completely or not at all, even if the process is killed. `readers` are for further kinds of files, such as
    `PDFReader()`, or replace those for text and Markdown.
    """

    __repr__ = repr_by_settings

    def __init__(
        self,
        name: str,
        description: str,
        store: StoreBase,
        *,
        embedding: EmbeddingModelBase | None = None,
        chunker: SplitDocument | None = None,
        readers: Sequence[ReaderBase] = (),
    ) -> None:
        for what, text in (("name", name), ("description", description)):
            value: object = text
            is_name = isinstance(value, str) and value.strip() and len(value) <= 500 and "\0" not in value
            if not is_name or whole_characters(str(value)) != value:
                raise ConfigError(
                    f"KnowledgeBase({what}=...) must be a str of 1 to 500 whole characters, not {repr_of(value, 100)}: "
                    f"a model chooses by it where to search"
                )
        if not isinstance(store, StoreBase):
            raise ConfigError(
                f"KnowledgeBase(store=...) must be a store, such as agentrt.rag.SQLiteTextStore('knowledge.db'), "
                f"not {repr_with_module(store)}"
            )
        if chunker is not None and (isinstance(chunker, type) or not callable(chunker)):
            raise ConfigError(
                f"KnowledgeBase(chunker=...) must be a Chunker or a function of a document, not {chunker!r:.200}"
            )
        use_embedding("KnowledgeBase(embedding=...)", embedding, store)
        self.name, self.description, self.store, self.embedding = name, description, store, embedding
        self.chunker = Chunker() if chunker is None else chunker
        # A prefix, so that the memory of a user with the same name stays separate in the same store.
        self._owner = f"knowledge/{name}"
        # The index settings: with another chunker or embedding, a document is indexed again.
        self._indexing = repr_of(self.chunker)
        if embedding is not None:
            self._indexing += f" {embedding.model} {embedding.dimensions}"
        by_suffix: dict[str, ReaderBase] = {}
        if not isinstance(readers, (list, tuple)):
            raise ConfigError(f"KnowledgeBase(readers=...) must be a list, as in [PDFReader()], not {readers!r:.200}")
        for reader in (TextReader(), MarkdownReader(), *readers):
            if not isinstance(reader, ReaderBase):
                raise ConfigError(
                    f"KnowledgeBase(readers=...) must be readers, as in [PDFReader()], not {reader!r:.200}"
                )
            by_suffix |= dict.fromkeys(reader.suffixes, reader)
        self._files = FileReading(by_suffix, self._indexing)
        self.readers = list(readers)

    async def add(self, document: Document | str | os.PathLike[str], *, on_progress: OnProgress | None = None) -> bool:
        """Index a document, or the file at that path, replacing one with its id; returns whether anything changed.

        `on_progress` is called as in `sync`.
        """
        progress = ProgressCount("add", on_progress, 1)
        if isinstance(document, Document):
            fingerprint = sha256(
                f"{document!r} {document.text} {document.sections!r} {self._indexing}".encode(errors="surrogatepass")
            )
            return await self._put_if_new(document, fingerprint.hexdigest(), progress)
        path = _as_path(document, "add() takes a Document, or the path of a file")
        document_id = path.as_posix()
        file = await self._files.read(path, await self._fingerprint_of(document_id))
        if file.document is None:
            progress.add_document(document_id)
            return False
        return await self._put_if_new(replace(file.document, id=document_id), file.fingerprint, progress)

    async def sync(self, folder: str | os.PathLike[str], *, on_progress: OnProgress | None = None) -> SyncReport:
        """Index new and changed files below the folder, and delete those that are gone.

        The id of a document is the name of the folder with the path inside it, as in "docs/start.md". Hidden files
        are skipped. A file that cannot be read is in the report, and its old chunks stay.

        `on_progress` is called with an `IndexProgress` after each file and each batch of chunks;
        `agentrt.console.ProgressBar` draws it.
        """
        root = _as_path(folder, "sync() takes the path of a folder").absolute()
        files = await self._files.list_files(root)
        # Documents added separately do not belong to the folder.
        known = {
            document: str(metadata.get(_CHUNK, {}).get("fingerprint"))
            for document, metadata in (await self.store.list_sources(self._owner)).items()
            if metadata.get(_CHUNK, {}).get("folder") == root.name
        }
        progress = ProgressCount("sync", on_progress, len(files))
        report, batch = SyncReport(), _Batch(self.store, self._owner, self.embedding, progress)
        for file in files:
            document_id = f"{root.name}/{file}"
            before = known.pop(document_id, None)
            try:
                read = await self._files.read(root / file, before)
                # Its bytes are unchanged, so it was not even parsed.
                if read.document is None:
                    report.unchanged.append(document_id)
                    progress.add_document(document_id)
                    continue
                document = replace(read.document, id=document_id)
                texts = await to_thread.run_sync(self._storable_texts, document, read.fingerprint, root.name)
            except ReaderError as error:
                report.failed[document_id] = error
                progress.add_document(document_id)
                continue
            progress.add_document(document_id, len(texts))
            # Nothing is stored of an empty document, so it always counts as new.
            if before is None and not texts:
                report.unchanged.append(document_id)
                continue
            await batch.put(document_id, texts)
            (report.added if before is None else report.changed).append(document_id)
        for document_id in known:
            await batch.put(document_id, [])
            report.deleted.append(document_id)
        await batch.write()
        return report

    async def search(
        self, query: str, limit: int = 5, score_threshold: float | None = None, *, where: MetadataFilter | None = None
    ) -> KnowledgeHits:
        """Return the chunks that fit the query best; `where` filters by the metadata of their documents.

        With a `score_threshold`, which needs an embedding, chunks are found by meaning alone, and those
        with scores, from -1 to 1, below it are left out. Without one, words alone are used if the embedding fails.
        """
        if score_threshold is None:
            found = await search_texts(self.store, self.embedding, self._owner, query, limit, where=where)
        else:
            if self.embedding is None:
                raise UsageError(
                    "score_threshold needs vectors, and this knowledge base searches by words, whose scores do not "
                    "compare from query to query: give it an embedding, or leave it out, and choose by limit"
                )
            vectors = (await self.embedding([query], are_queries=True)).embeddings
            matches = await self.store.search_vectors(self._owner, vectors[0], limit, where=where)
            found = FoundTexts([match for match in matches if match.score >= score_threshold])
        return KnowledgeHits(map(self._hit, found.matches), found.failure)

    async def delete(self, document_id: str) -> None:
        """Delete the document; unknown ids are ignored."""
        await self.store.write(self._owner, delete_sources=[document_id])

    async def documents(self) -> list[str]:
        """Return the ids of the documents, in their order."""
        return sorted(await self.store.list_sources(self._owner))

    # The following names serve programs written for AgentScope.

    async def retrieve(self, query: str, limit: int = 5, score_threshold: float | None = None) -> KnowledgeHits:
        """Do what `search` does."""
        return await self.search(query, limit, score_threshold)

    async def add_documents(self, documents: Iterable[Document]) -> None:
        """Add each of the documents."""
        for document in documents:
            await self.add(document)

    async def retrieve_knowledge(
        self, query: str, limit: int = 5, score_threshold: float | None = None
    ) -> ToolResponse:
        """Retrieve passages from the knowledge base.

        Args:
            query: What to look for, in a few words.
            limit: How many passages to return.
            score_threshold: How much they must mean the same, from -1 to 1; leave it out for the best.
        """
        hits = await self.retrieve(query, limit, score_threshold)
        passages = "\n\n".join(f"{hit.place}:\n{hit.text}" for hit in hits)
        return ToolResponse([TextBlock(passages or "Nothing was found.")])

    async def _put_if_new(self, document: Document, fingerprint: str, progress: ProgressCount) -> bool:
        texts = await to_thread.run_sync(self._texts, document, fingerprint, None)
        current = await self._fingerprint_of(document.id)
        # Nothing is stored of an empty document, so it always counts as new.
        if current == fingerprint or (current is None and not texts):
            progress.add_document(document.id)
            return False
        progress.add_document(document.id, len(texts))
        # Before the write, so that the old document stays if it fails.
        texts = await add_vectors(self.embedding, texts, progress)
        await self.store.write(self._owner, texts, delete_sources=[document.id])
        return True

    async def _fingerprint_of(self, document_id: str) -> str | None:
        # Every chunk has it, and every stored document has a first chunk.
        first = await self.store.get(self._owner, [_chunk_id(document_id, 0)])
        return first[0].metadata.get(_CHUNK, {}).get("fingerprint") if first else None

    def _texts(self, document: Document, fingerprint: str, folder: str | None) -> list[StoredText]:
        """Return the chunks as stored texts; raises `ReaderError` for a document that cannot be stored."""
        values = (document.id, document.text, document.title)
        if not all(isinstance(value, str) for value in values) or not document.id:
            raise ReaderError(f"id, text and title of a document must be str, and its id not empty: {document!r:.200}")
        if whole_characters(document.id) != document.id:
            raise ReaderError(f"the name {document.id!r:.300} has half of a character in it: rename the document")
        metadata: object = document.metadata
        if not isinstance(metadata, dict) or _CHUNK in metadata:
            raise ReaderError(
                f"the metadata of {document.id!r:.300} must be a dict, whose key {_CHUNK!r} is taken, not "
                f"{repr_of(metadata, 100)}"
            )
        title = whole_characters(document.title)[:_MAX_HEADING]
        texts = []
        for number, chunk in enumerate(chunk for chunk in self.chunker(document) if chunk.text.strip()):
            heading = whole_characters(chunk.heading)[:_MAX_HEADING]
            place = {"heading": heading, "page": chunk.page, "start": chunk.start, "end": chunk.end}
            place |= {"title": title, "fingerprint": fingerprint, "folder": folder}
            texts.append(
                StoredText(
                    _chunk_id(document.id, number),
                    chunk.text,
                    document.id,
                    {**document.metadata, _CHUNK: place},
                    # Found by its headings too, since a paragraph need not repeat its subject.
                    keywords=f"{title} {heading}",
                )
            )
        return texts

    def _storable_texts(self, document: Document, fingerprint: str, folder: str) -> list[StoredText]:
        """Do the same; raises `ReaderError` for texts that stores refuse, since they would refuse the whole batch."""
        texts = self._texts(document, fingerprint, folder)
        try:
            check_texts(texts)
        except StoreError as error:
            raise ReaderError(f"{document.id!r:.300} cannot be indexed: {error}") from error
        return texts

    def _hit(self, match: TextMatch) -> KnowledgeHit:
        text = match.text
        place: dict[str, Any] = text.metadata.get(_CHUNK, {})
        return KnowledgeHit(
            self.name,
            text.source,
            text.text,
            match.score,
            title=place.get("title", ""),
            heading=place.get("heading", ""),
            page=place.get("page"),
            start=place.get("start", 0),
            end=place.get("end", 0),
            metadata={key: value for key, value in text.metadata.items() if key != _CHUNK},
        )


class SimpleKnowledge(KnowledgeBase):
    """A `KnowledgeBase`, under its name in AgentScope."""


# Every write costs some milliseconds, and a folder may have thousands of small files.
class _Batch:
    """Collects documents for a store, several per write."""

    def __init__(
        self, store: StoreBase, owner: str, embedding: EmbeddingModelBase | None, progress: ProgressCount
    ) -> None:
        self._store, self._owner, self._embedding, self._progress = store, owner, embedding, progress
        self._texts: list[StoredText] = []
        self._sources: list[str] = []

    async def put(self, source: str, texts: Sequence[StoredText]) -> None:
        """Replace the texts of the source."""
        self._sources.append(source)
        self._texts += texts
        if len(self._texts) >= _MAX_CHUNKS_AT_ONCE:
            await self.write()

    async def write(self) -> None:
        # Cleared before the write: after a failure, the next sync reads the documents again.
        texts, sources = self._texts, self._sources
        self._texts, self._sources = [], []
        if sources:
            texts = await add_vectors(self._embedding, texts, self._progress)
            await self._store.write(self._owner, texts, delete_sources=sources)


def _as_path(path: object, rule: str) -> Path:
    if not isinstance(path, (str, os.PathLike)) or str(path).strip() == "" or "\0" in str(path):
        raise ReaderError(f"{rule}, not {repr_of(path, 100)}")
    return Path(path)


def _chunk_id(document_id: str, number: int) -> str:
    return f"{document_id}#{number}"
