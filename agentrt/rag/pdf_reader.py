"""PDF files as documents, with the extra `rag`."""

import io
from collections.abc import Callable
from pathlib import Path

from agentrt._runtime.options import check_whole, import_extra
from agentrt.errors import ReaderError
from agentrt.rag.document import Document, Section
from agentrt.rag.readers import ReaderBase

# So that a chunk across two pages has a paragraph break there.
_PAGE_BREAK = "\n\n"


class PDFReader(ReaderBase):
    """Reads the text of a PDF of at most `max_pages` pages; each page is a section. Needs the extra `rag`."""

    suffixes = (".pdf",)

    def __init__(self, *, max_pages: int = 2_000) -> None:
        self.max_pages = check_whole("PDFReader(max_pages=...)", max_pages)
        import_extra("PDFReader", "rag", "pypdf")

    def parse(self, data: bytes, path: Path, is_over: Callable[[], bool]) -> Document:
        file = f"{str(path)!r:.300}"
        pypdf = import_extra("PDFReader", "rag", "pypdf")
        try:
            pdf = pypdf.PdfReader(io.BytesIO(data))
            # A PDF may be encrypted with an empty password.
            if pdf.is_encrypted and not pdf.decrypt(""):
                raise ReaderError(f"{file} is encrypted: save a copy of it without a password")
            pages = len(pdf.pages)
            title = str((pdf.metadata or {}).get("/Title") or "")
        except ReaderError:
            raise
        except Exception as error:
            # pypdf raises many kinds of errors for damaged files, and needs another package for some encryptions.
            raise ReaderError(
                f"{file} cannot be read as a PDF ({type(error).__name__}): check that it opens, or save a copy of it"
            ) from error
        if pages > self.max_pages:
            raise ReaderError(
                f"{file} has {pages:,} pages, and at most {self.max_pages:,} are read: split it, or write "
                f"PDFReader(max_pages={pages})"
            )
        texts: list[str] = []
        for number, page in enumerate(pdf.pages, 1):
            if is_over():
                raise TimeoutError
            try:
                texts.append(page.extract_text().replace("\0", ""))
            except Exception as error:
                raise ReaderError(
                    f"page {number} of {file} cannot be read ({type(error).__name__}): save a copy of the file, or "
                    f"leave that page out"
                ) from error
        if pages and not any(text.strip() for text in texts):
            raise ReaderError(f"{file} has no text on its {pages:,} pages, only images perhaps: run OCR on it first")
        sections, start = [], 0
        for number, text in enumerate(texts, 1):
            sections.append(Section(start, page=number))
            start += len(text) + len(_PAGE_BREAK)
        return Document(str(path), _PAGE_BREAK.join(texts), title.strip() or path.stem, sections=sections)
