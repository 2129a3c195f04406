"""A memory in this process."""

from collections.abc import Callable, Iterable

from agentrt._runtime.representation import never_raises
from agentrt._runtime.text import type_with_article
from agentrt.errors import SessionCorrupt
from agentrt.memory.arguments import check_marks, check_new_mark, messages_to_add, strings_of
from agentrt.memory.base import MemoryBase
from agentrt.memory.stored_message import MarkedMessage, marked_message_from_json, message_to_json
from agentrt.message import Msg
from agentrt.types import JSONObject

_Index = tuple[list[MarkedMessage], int, set[str]]


class InMemoryMemory(MemoryBase):
    """Keeps messages in this process; its state holds them all. It stores and returns copies only."""

    def __init__(self) -> None:
        super().__init__()
        self.content: list[MarkedMessage] = []
        self.revision: int = 0
        # The list, its length and its ids after `add`: valid as long as the first two are the same.
        self._index: _Index = (self.content, 0, set())
        self.register_state("content", self._content_to_json, self._content_from_json)

    @never_raises
    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {len(self.content)} messages>"

    def load_state_dict(self, state_dict: JSONObject, strict: bool = True) -> None:
        """Load a state that `state_dict` returned; older ones, without marks or summaries, are accepted too."""
        if strict and isinstance(state_dict, dict):
            state_dict = {"_compressed_summary": "", **state_dict}
        super().load_state_dict(state_dict, strict)
        self.revision += 1

    async def add(
        self, memories: Msg | list[Msg] | None, marks: str | list[str] | None = None, allow_duplicates: bool = False
    ) -> None:
        """Add messages, each with these marks; without `allow_duplicates`, those with a known id are left out."""
        new_marks = strings_of("marks", marks)
        messages = messages_to_add(memories)
        content, known = self.content, self._ids()
        for msg in messages:
            if allow_duplicates or msg.id not in known:
                content.append((msg.copy(), list(new_marks)))
                known.add(msg.id)
                self.revision += 1
        self._index = (content, len(content), known)

    async def delete(self, msg_ids: list[str]) -> int:
        """Remove the messages with these ids, and return how many there were."""
        ids = set(strings_of("msg_ids", msg_ids))
        return self._remove(lambda msg, _: msg.id in ids)

    async def delete_by_mark(self, mark: str | list[str]) -> int:
        """Remove the messages that have the mark, or any of them, and return how many there were."""
        unwanted = set(strings_of("mark", mark))
        return self._remove(lambda _, marks: not unwanted.isdisjoint(marks))

    async def size(self) -> int:
        """Return the number of messages."""
        return len(self.content)

    async def clear(self) -> None:
        """Delete everything, the summary too."""
        self.content, self._compressed_summary = [], ""
        self.revision += 1

    async def get_memory(
        self, mark: str | None = None, exclude_mark: str | None = None, prepend_summary: bool = True
    ) -> list[Msg]:
        """Return the messages, oldest first: those with `mark` and without `exclude_mark`, where these are given."""
        check_marks(mark=mark, exclude_mark=exclude_mark)
        messages = [
            msg.copy()
            for msg, marks in self.content
            if (mark is None or mark in marks) and (exclude_mark is None or exclude_mark not in marks)
        ]
        if prepend_summary and self._compressed_summary:
            messages.insert(0, Msg("user", self._compressed_summary, "user"))
        return messages

    async def update_messages_mark(
        self, new_mark: str | None, old_mark: str | None = None, msg_ids: list[str] | None = None
    ) -> int:
        """Put `new_mark` on messages, in place of `old_mark` if given, and return how many messages changed."""
        check_new_mark(new_mark, old_mark)
        ids = None if msg_ids is None else set(strings_of("msg_ids", msg_ids))
        selected = [
            marks
            for msg, marks in self.content
            if (ids is None or msg.id in ids) and (old_mark is None or old_mark in marks)
        ]
        for marks in selected:
            # In place, since the pair of message and marks is a tuple; an existing mark is not doubled.
            marks[:] = [mark for mark in marks if mark not in (old_mark, new_mark)]
            if new_mark is not None:
                marks.append(new_mark)
        return len(selected)

    @staticmethod
    def _content_to_json(content: Iterable[MarkedMessage]) -> list[list[object]]:
        return [[message_to_json(number, msg), marks] for number, (msg, marks) in enumerate(content)]

    @staticmethod
    def _content_from_json(content: object) -> list[MarkedMessage]:
        if not isinstance(content, list):
            raise SessionCorrupt(f"a memory's content must be a list of messages, not {type_with_article(content)}")
        return [marked_message_from_json(number, saved) for number, saved in enumerate(content)]

    def _ids(self) -> set[str]:
        """Return the ids of the messages, cached if nothing but `add` has changed them."""
        content, length, ids = self._index
        if content is self.content and length == len(content):
            return ids
        return {msg.id for msg, _ in self.content}

    def _remove(self, is_selected: Callable[[Msg, list[str]], bool]) -> int:
        before = len(self.content)
        self.revision += 1
        # A new list, which invalidates the cached ids.
        self.content = [(msg, marks) for msg, marks in self.content if not is_selected(msg, marks)]
        return before - len(self.content)
