"""A progress bar for indexing documents."""

import sys
from contextlib import suppress
from typing import Any, Protocol, Self, TextIO

from agentrt._runtime.text import escape_controls

_MAX_DOCUMENT_NAME = 40  # characters of a document's name


class _Progress(Protocol):
    """An `IndexProgress`; a chat need not load its package."""

    @property
    def document(self) -> str: ...
    @property
    def documents(self) -> int: ...
    @property
    def total_documents(self) -> int: ...
    @property
    def chunks(self) -> int: ...
    @property
    def total_chunks(self) -> int: ...


class ProgressBar:
    """Draws the progress of `KnowledgeBase.sync` and `add`: `with ProgressBar() as bar`, and `on_progress=bar`.

    It is drawn with rich, on standard error, only if that is a terminal.
    """

    def __init__(self, file: TextIO | None = None) -> None:
        self._file = sys.stderr if file is None else file
        self._bar: Any = None
        self._task: Any = None

    def __enter__(self) -> Self:
        if self._file.isatty():
            with suppress(ImportError):
                from rich.console import Console
                from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

                self._bar = Progress(
                    BarColumn(),
                    TextColumn("{task.description}", markup=False),
                    TimeElapsedColumn(),
                    TextColumn("{task.fields[document]}", markup=False),
                    console=Console(file=self._file),
                )
                self._task = self._bar.add_task("", total=None, document="")
                self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def __call__(self, progress: _Progress) -> None:
        """Draw the progress."""
        if self._bar is None:
            return
        self._bar.update(
            self._task,
            description=f"{progress.documents}/{progress.total_documents} documents, {progress.chunks}/"
            f"{progress.total_chunks} chunks",
            # Both count, since either may take most of the time.
            completed=progress.documents + progress.chunks,
            total=progress.total_documents + progress.total_chunks,
            document=escape_controls(progress.document[-_MAX_DOCUMENT_NAME:]),
        )
