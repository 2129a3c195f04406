"""Searchable documents and other texts: knowledge bases, readers and stores."""

from typing import TYPE_CHECKING

from agentrt._runtime.keywords.moved_names import keep_old_names
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

if not TYPE_CHECKING:  # a type checker would accept any name
    __getattr__ = keep_old_names(__name__, SQLiteStore=SQLiteTextStore)
