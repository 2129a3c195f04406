"""Checks of the arguments of memories: messages, ids and marks."""

from collections.abc import Iterable
from typing import Any

from agentrt._runtime.text import type_with_article
from agentrt.message import Msg


def messages_to_add(memories: Msg | list[Msg] | None) -> list[Msg]:
    """Return the messages to add; raises `TypeError` for anything else."""
    messages = [] if memories is None else [memories] if isinstance(memories, Msg) else _list_of_items(memories)
    for msg in messages:
        if not isinstance(msg, Msg):
            raise TypeError(f"a memory takes a Msg, a list of them or None, not {type_with_article(msg)}")
    return messages


def strings_of(name: str, value: str | Iterable[str] | None) -> list[str]:
    """Return the ids or marks; raises `TypeError` for anything else."""
    items = [] if value is None else [value] if isinstance(value, str) else _list_of_items(value)
    for item in items:
        if not isinstance(item, str):
            raise TypeError(f"{name} must be a str or a list of them, not {type_with_article(item)}")
    return items


def check_marks(**marks: str | None) -> None:
    """Raise `TypeError` for a mark that is neither a str nor `None`."""
    for name, mark in marks.items():
        if mark is not None and not isinstance(mark, str):
            raise TypeError(f"{name} must be a str or None, not {type_with_article(mark)}")


def check_new_mark(new_mark: str | None, old_mark: str | None) -> None:
    """Raise `TypeError` for an invalid mark, and `ValueError` where neither is given."""
    check_marks(new_mark=new_mark, old_mark=old_mark)
    if new_mark is None and old_mark is None:
        raise ValueError("update_messages_mark() needs a new_mark to add, an old_mark to remove, or both")


def _list_of_items(value: Any) -> list[Any]:
    # A single value counts as one item; the caller checks it.
    return list(value) if isinstance(value, Iterable) else [value]
