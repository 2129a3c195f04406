"""PDF files as documents, with the extra `rag`."""

import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from agentrt.errors import ConfigError, ReaderError
from agentrt.keywords import suggest_keywords
from agentrt.rag.document import Document, Section
from agentrt.rag.readers import ReaderBase

__all__ = ["PDFReader"]

# So that a chunk that spans two pages has the end of a paragraph there.
_PAGE_BREAK = "\n\n"


@suggest_keywords()
class PDFReader(ReaderBase):
    """Reads the text of a PDF of at most `max_pages` pages, each of which is a section. Needs the extra `rag`."""

    suffixes = (".pdf",)

    def __init__(self, *, max_pages: int = 2_000) -> None:
        limit: object = max_pages
        if not isinstance(limit, int) or isinstance(limit, bool) or limit < 1:
            raise ConfigError(f"PDFReader(max_pages=...) must be a whole number of at least 1, not {limit!r:.100}")
        _import_pypdf()
        self.max_pages = max_pages

    def parse(self, data: bytes, path: Path, is_over: Callable[[], bool]) -> Document:
        file = f"{str(path)!r:.300}"
        pypdf = _import_pypdf()
        try:
            pdf = pypdf.PdfReader(io.BytesIO(data))
            # A PDF may be encrypted with an empty password, which everyone has.
            if pdf.is_encrypted and not pdf.decrypt(""):
                raise ReaderError(f"{file} is encrypted: save a copy of it without a password")
            pages = len(pdf.pages)
            title = str((pdf.metadata or {}).get("/Title") or "")
        except ReaderError:
            raise
        except Exception as error:
            # pypdf raises errors of many kinds for damaged files, and needs a further package for some encryptions.
            raise ReaderError(
                f"{file} cannot be read as a PDF ({type(error).__name__}): check that it opens, or save a copy of it"
            ) from error
        if pages > self.max_pages:
            raise ReaderError(
                f"{file} has {pages:,} pages, and at most {self.max_pages:,} are read: split it, or write "
                f"PDFReader(max_pages={pages})"
            )
        texts = list(_page_texts(pdf, file, is_over))
        if pages and not any(text.strip() for text in texts):
            raise ReaderError(f"{file} has no text on its {pages:,} pages, only images perhaps: run OCR on it first")
        sections, start = [], 0
        for number, text in enumerate(texts, 1):
            sections.append(Section(start, page=number))
            start += len(text) + len(_PAGE_BREAK)
        return Document(str(path), _PAGE_BREAK.join(texts), title.strip() or path.stem, sections=sections)


def _page_texts(pdf: Any, file: str, is_over: Callable[[], bool]) -> Iterator[str]:
    for number, page in enumerate(pdf.pages, 1):
        if is_over():
            raise TimeoutError
        try:
            yield page.extract_text().replace("\0", "")
        except Exception as error:
            raise ReaderError(
                f"page {number} of {file} cannot be read ({type(error).__name__}): save a copy of the file, or leave "
                f"that page out"
            ) from error


def _import_pypdf() -> Any:
    try:
        import pypdf
    except ImportError as error:
        raise ConfigError('PDFReader needs the package pypdf: pip install "agentrt[rag]"') from error
    return pypdf
