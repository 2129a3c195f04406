"""Documents and other texts that can be searched: knowledge bases, their readers, and the stores that keep them."""

from agentrt.rag.document import Chunk, Chunker, Document, Section, SplitDocument
from agentrt.rag.knowledge import KnowledgeBase, KnowledgeHit, KnowledgeHits, SimpleKnowledge, SyncReport
from agentrt.rag.pdf_reader import PDFReader
from agentrt.rag.pgvector_store import PgVectorStore
from agentrt.rag.readers import MarkdownReader, ReaderBase, TextReader
from agentrt.rag.sqlite_store import SQLiteStore
from agentrt.rag.store import MetadataFilter, StoreBase, StoredText, TextMatch

__all__ = [
    "Chunk",
    "Chunker",
    "Document",
    "KnowledgeBase",
    "KnowledgeHit",
    "KnowledgeHits",
    "MarkdownReader",
    "MetadataFilter",
    "PDFReader",
    "PgVectorStore",
    "ReaderBase",
    "SQLiteStore",
    "Section",
    "SimpleKnowledge",
    "SplitDocument",
    "StoreBase",
    "StoredText",
    "SyncReport",
    "TextMatch",
    "TextReader",
]
