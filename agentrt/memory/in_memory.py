"""A memory in this process."""

from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import cache
from typing import Any

from pydantic import TypeAdapter, ValidationError
from pydantic_core import CoreConfig, SchemaSerializer

from agentrt.errors import SessionCorrupt, SessionUnserializable
from agentrt.memory.base import MemoryBase
from agentrt.message import Msg

__all__ = ["InMemoryMemory"]

_Entry = tuple[Msg, list[str]]
_Index = tuple[list[_Entry], int, set[str]]


class InMemoryMemory(MemoryBase):
    """Keeps messages in this process; its state holds them all. It takes and hands out copies only."""

    def __init__(self) -> None:
        super().__init__()
        self.content: list[_Entry] = []
        self.revision: int = 0
        self._index: _Index = (self.content, 0, set())
        self.register_state("content", _saved, _loaded)

    def load_state_dict(self, state_dict: dict[str, Any], strict: bool = True) -> None:
        """Take over a state that `state_dict` returned; one from before there were marks or summaries is fine, too."""
        if strict and isinstance(state_dict, dict):
            state_dict = {"_compressed_summary": "", **state_dict}
        super().load_state_dict(state_dict, strict)
        self.revision += 1

    async def add(
        self, memories: Msg | list[Msg] | None, marks: str | list[str] | None = None, allow_duplicates: bool = False
    ) -> None:
        """Add messages, each with these marks; unless `allow_duplicates`, those whose id is known are left out."""
        wanted = _texts("marks", marks)
        content, known = self.content, self._ids()
        for msg in _messages(memories):
            if allow_duplicates or msg.id not in known:
                content.append((msg.copy(), list(wanted)))
                known.add(msg.id)
                self.revision += 1
        self._index = (content, len(content), known)

    async def delete(self, msg_ids: list[str]) -> int:
        """Remove the messages with these ids, and return how many there were."""
        ids = set(_texts("msg_ids", msg_ids))
        return self._remove(lambda msg, _: msg.id in ids)

    async def delete_by_mark(self, mark: str | list[str]) -> int:
        """Remove the messages that have the mark, or any of them, and return how many there were."""
        wanted = set(_texts("mark", mark))
        return self._remove(lambda _, marks: not wanted.isdisjoint(marks))

    async def size(self) -> int:
        """Return the number of messages."""
        return len(self.content)

    async def clear(self) -> None:
        """Forget everything, the summary too."""
        self.content, self._compressed_summary = [], ""
        self.revision += 1

    async def get_memory(
        self, mark: str | None = None, exclude_mark: str | None = None, prepend_summary: bool = True
    ) -> list[Msg]:
        """Return the messages, oldest first: those with `mark` and without `exclude_mark`, where these are given."""
        _check_marks(mark=mark, exclude_mark=exclude_mark)
        found = [
            msg.copy()
            for msg, marks in self.content
            if (mark is None or mark in marks) and (exclude_mark is None or exclude_mark not in marks)
        ]
        if prepend_summary and self._compressed_summary:
            found.insert(0, Msg("user", self._compressed_summary, "user"))
        return found

    async def update_messages_mark(
        self, new_mark: str | None, old_mark: str | None = None, msg_ids: list[str] | None = None
    ) -> int:
        """Put `new_mark` on messages, in place of `old_mark` where that is given, and return on how many."""
        _check_marks(new_mark=new_mark, old_mark=old_mark)
        if new_mark is None and old_mark is None:
            raise ValueError("update_messages_mark needs a new_mark to put on, an old_mark to take off, or both")
        ids = None if msg_ids is None else set(_texts("msg_ids", msg_ids))
        meant = [
            marks
            for msg, marks in self.content
            if (ids is None or msg.id in ids) and (old_mark is None or old_mark in marks)
        ]
        for marks in meant:
            marks[:] = [each for each in marks if each not in (old_mark, new_mark)]
            if new_mark is not None:
                marks.append(new_mark)
        return len(meant)

    def _ids(self) -> set[str]:
        """Return the ids of the messages, without a look at each of them if nothing but `add` has changed them."""
        content, length, ids = self._index
        if content is self.content and length == len(content):
            return ids
        return {msg.id for msg, _ in self.content}

    def _remove(self, is_meant: Callable[[Msg, list[str]], bool]) -> int:
        before = len(self.content)
        self.revision += 1
        self.content = [(msg, marks) for msg, marks in self.content if not is_meant(msg, marks)]
        return before - len(self.content)


def _saved(content: Iterable[_Entry]) -> list[list[Any]]:
    return [[_as_json(number, msg), marks] for number, (msg, marks) in enumerate(content)]


def _as_json(number: int, msg: Msg) -> Any:
    # Not by way of a JSON text: that has no place for surrogates, which a model may well have written. Pydantic's
    # errors, which are ValueErrors, may quote the message: none goes on from here.
    with suppress(ValueError):  # what it could not be loaded from is not saved
        found = _serializer().to_python(msg, mode="json", warnings="none")
        _adapter().validate_python(found)
        return found
    raise SessionUnserializable(
        f"message {number} of a memory holds something that JSON cannot hold, or not the type that it should have, "
        f"most likely in its metadata: keep texts, finite numbers, lists and dicts there"
    )


def _loaded(content: Any) -> list[_Entry]:
    if not isinstance(content, list):
        raise SessionCorrupt(f"a memory's content must be a list of messages, not a {type(content).__name__}")
    return [_entry(number, each) for number, each in enumerate(content)]


def _entry(number: int, saved: Any) -> _Entry:
    fields, marks = (saved, []) if isinstance(saved, dict) else _pair(number, saved)
    try:
        return _adapter().validate_python(fields), marks
    except ValidationError as exc:
        place = ".".join(map(str, exc.errors(include_input=False)[0]["loc"]))
    # Raised here, since pydantic's error, which quotes what it refused, would go along as the context.
    raise SessionCorrupt(
        f"message {number} of a memory cannot be read: there is something wrong with its {place!r:.100}"
    )


def _pair(number: int, saved: Any) -> tuple[Any, list[str]]:
    if isinstance(saved, list) and len(saved) == 2 and isinstance(saved[1], list):
        return saved[0], _texts("marks", saved[1])
    raise SessionCorrupt(f"message {number} of a memory must be a pair of a message and a list of its marks")


def _messages(memories: Msg | list[Msg] | None) -> list[Msg]:
    found = [] if memories is None else [memories] if isinstance(memories, Msg) else _listed(memories)
    for each in found:
        if not isinstance(each, Msg):
            raise TypeError(f"a memory takes a Msg, a list of them or None, not a {type(each).__name__}")
    return found


def _texts(what: str, given: str | Iterable[str] | None) -> list[str]:
    found = [] if given is None else [given] if isinstance(given, str) else _listed(given)
    for each in found:
        if not isinstance(each, str):
            raise TypeError(f"{what} must be texts, not a {type(each).__name__}")
    return found


def _listed(given: Any) -> list[Any]:
    # What is no collection is refused as the item that it may have been meant as.
    return list(given) if isinstance(given, Iterable) else [given]


def _check_marks(**marks: str | None) -> None:
    for name, mark in marks.items():
        if mark is not None and not isinstance(mark, str):
            raise TypeError(f"{name} must be a str or None, not a {type(mark).__name__}")


@cache
def _serializer() -> SchemaSerializer:
    # A number that is not finite stays what it is, for the save to refuse, and does not become `None`.
    return SchemaSerializer(_adapter().core_schema, CoreConfig(ser_json_inf_nan="constants"))


@cache
def _adapter() -> TypeAdapter[Msg]:
    return TypeAdapter(Msg)
