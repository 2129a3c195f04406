"""The base class of memories, wherever they keep their messages."""

from agentrt._runtime.text import type_with_article
from agentrt.message import Msg
from agentrt.module import StateModule


class MemoryBase(StateModule):
    """Keeps messages in their order, each with marks to find it by, and a summary of older ones."""

    revision: int | None = None
    """A number that changes whenever the messages do; `None` if unknown, so that a reader must look."""

    def __init__(self) -> None:
        super().__init__()
        self._compressed_summary = ""
        self.register_state("_compressed_summary", custom_from_json=require_summary)

    async def read_revision(self) -> int | None:
        """Return `revision`, read from the storage."""
        return self.revision

    async def add(
        self, memories: Msg | list[Msg] | None, marks: str | list[str] | None = None, allow_duplicates: bool = False
    ) -> None:
        """Add messages, each with these marks; without `allow_duplicates`, those with a known id are left out."""
        raise NotImplementedError

    async def delete(self, msg_ids: list[str]) -> int:
        """Remove the messages with these ids, and return how many there were."""
        raise NotImplementedError

    async def delete_by_mark(self, mark: str | list[str]) -> int:
        """Remove the messages that have the mark, or any of them, and return how many there were."""
        raise NotImplementedError

    async def size(self) -> int:
        """Return the number of messages."""
        raise NotImplementedError

    async def clear(self) -> None:
        """Delete everything, the summary too."""
        raise NotImplementedError

    async def get_memory(
        self, mark: str | None = None, exclude_mark: str | None = None, prepend_summary: bool = True
    ) -> list[Msg]:
        """Return the messages, oldest first: those with `mark` and without `exclude_mark`, where these are given.

        The summary, if there is one, comes before them as a user's message.
        """
        raise NotImplementedError

    async def update_messages_mark(
        self, new_mark: str | None, old_mark: str | None = None, msg_ids: list[str] | None = None
    ) -> int:
        """Put `new_mark` on messages, in place of `old_mark` if given, and return how many messages changed.

        With `old_mark` only the messages that have it are meant, with `msg_ids` only those; no `new_mark` takes the old
        one off.
        """
        raise NotImplementedError

    async def update_compressed_summary(self, summary: str) -> None:
        """Replace the summary."""
        self._compressed_summary = require_summary(summary)


def require_summary(summary: object) -> str:
    """Return the summary; raises `TypeError` unless it is a str."""
    if isinstance(summary, str):
        return summary
    raise TypeError(f"a memory's summary must be a str, not {type_with_article(summary)}")
