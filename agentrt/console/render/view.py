"""The view: the place where a reply is shown."""

from types import TracebackType
from typing import Literal, Protocol

__all__ = ["Kind", "View"]

Kind = Literal["text", "thinking"]


class View(Protocol):
    """A place to show a reply: text that grows, and lines between.

    What it is given comes from models and tools; the view is what makes it safe to show.
    """

    def __enter__(self) -> "View": ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...

    def stream(self, kind: Kind, piece: str) -> None:
        """Show more of the text that is open; the first piece after `end` opens one."""
        ...

    def end(self) -> None:
        """Close the text that is open, if one is."""
        ...

    def line(self, label: str, text: str) -> None:
        """Close the text that is open, and show one thing that happened."""
        ...

    def wait(self, reason: str) -> None:
        """Show, where that can be taken back, what is being waited for."""
        ...
