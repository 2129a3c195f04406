"""Documents and other texts that can be searched: knowledge bases, their readers, and the stores that keep them."""

from typing import TYPE_CHECKING

from agentrt.keywords import keep_old_names
from agentrt.rag.document import Chunk, Chunker, Document, Section, SplitDocument
from agentrt.rag.knowledge import KnowledgeBase, KnowledgeHit, KnowledgeHits, SimpleKnowledge, SyncReport
from agentrt.rag.pdf_reader import PDFReader
from agentrt.rag.pgvector_store import PgVectorStore
from agentrt.rag.progress import IndexProgress
from agentrt.rag.readers import MarkdownReader, ReaderBase, TextReader
from agentrt.rag.sqlite_store import SQLiteTextStore
from agentrt.rag.store import MetadataFilter, StoreBase, StoredText, TextMatch

__all__ = [
    "Chunk",
    "Chunker",
    "Document",
    "IndexProgress",
    "KnowledgeBase",
    "KnowledgeHit",
    "KnowledgeHits",
    "MarkdownReader",
    "MetadataFilter",
    "PDFReader",
    "PgVectorStore",
    "ReaderBase",
    "SQLiteTextStore",
    "Section",
    "SimpleKnowledge",
    "SplitDocument",
    "StoreBase",
    "StoredText",
    "SyncReport",
    "TextMatch",
    "TextReader",
]

if not TYPE_CHECKING:  # which would take any name for one of these
    __getattr__ = keep_old_names(__name__, SQLiteStore=SQLiteTextStore)
