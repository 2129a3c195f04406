"""The progress of indexing documents."""

from collections.abc import Callable
from dataclasses import dataclass
from inspect import iscoroutinefunction

from agentrt.errors import UsageError


@dataclass(frozen=True, slots=True)
class IndexProgress:
    """The number of documents read, and of their chunks embedded so far.

    `document` is the last one read. `total_chunks` grows while documents are being read; an unchanged
    document has none.
    """

    document: str
    documents: int
    total_documents: int
    chunks: int
    total_chunks: int


OnProgress = Callable[[IndexProgress], object]


class ProgressCount:
    """Counts, and calls a function after each step, whose errors stop the indexing."""

    def __init__(self, owner: str, on_progress: OnProgress | None, total: int) -> None:
        function: object = on_progress
        if function is not None and (not callable(function) or iscoroutinefunction(function)):
            raise UsageError(
                f"{owner}(on_progress=...) must be a plain function of an IndexProgress, not {on_progress!r:.200}"
            )
        self._on_progress, self._total = on_progress, total
        self._document, self._documents, self._chunks, self._total_chunks = "", 0, 0, 0

    @property
    def is_watched(self) -> bool:
        """Whether there is a function to call."""
        return self._on_progress is not None

    def add_document(self, document: str, chunks: int = 0) -> None:
        """Count a read document, with its chunks to embed."""
        self._document = document
        self._documents += 1
        self._total_chunks += chunks
        self._report()

    def add_chunks(self, count: int) -> None:
        """Count chunks that were embedded."""
        self._chunks += count
        self._report()

    def _report(self) -> None:
        if self._on_progress is not None:
            self._on_progress(
                IndexProgress(self._document, self._documents, self._total, self._chunks, self._total_chunks)
            )
