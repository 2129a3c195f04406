"""The changes of layers: values and results that a layer replaced by a different object."""

from collections.abc import Iterator, Sequence
from operator import is_
from typing import Any, NamedTuple

from agentrt.message import Msg


class FoundChange(NamedTuple):
    """The place of a difference, and both values; `None` for a message that was added or removed."""

    where: str
    before: Any
    after: Any


def changes_between(where: str, before: Any, after: Any) -> Iterator[FoundChange]:
    """Yield the differences of two values; lists of messages are compared message by message."""
    if before is after:
        return
    if _holds_messages(before) and _holds_messages(after):
        yield from _changed_messages(where, before, after)
    elif not _is_equal(before, after):
        yield FoundChange(where, before, after)


def _changed_messages(where: str, before: Sequence[Msg], after: Sequence[Msg]) -> Iterator[FoundChange]:
    # Skip the same objects at both ends: usually only one message, in the middle or at the end, differs.
    start = same_start(before, after)
    end = same_start(before[start:][::-1], after[start:][::-1])
    # A layer may have copied all of them, so equal ones are left out as well.
    shorter = min(len(before), len(after))
    while start + end < shorter and _is_equal(before[start], after[start]):
        start += 1
    while start + end < shorter and _is_equal(before[-1 - end], after[-1 - end]):
        end += 1
    old, new = before[start : len(before) - end], after[start : len(after) - end]
    pairs: list[tuple[int, Msg | None, Msg | None]]
    if len(old) == len(new):
        pairs = [(index, one, other) for index, (one, other) in enumerate(zip(old, new, strict=True), start)]
    else:
        pairs = [(start + index, message, None) for index, message in enumerate(old)]
        pairs += [(start + index, None, message) for index, message in enumerate(new)]
    for index, one, other in pairs:
        if one is not other and not _is_equal(one, other):
            yield FoundChange(f"{where}[{index}]", one, other)


def same_start(one: Sequence[object], other: Sequence[object]) -> int:
    """Return how many objects at the start are the same."""
    for index, is_same in enumerate(map(is_, one, other)):
        if not is_same:
            return index
    return min(len(one), len(other))


def _holds_messages(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(item, Msg) for item in value)


def _is_equal(one: object, other: object) -> bool:
    """Say whether two values are equal; a layer that rebuilds an equal message makes no change."""
    if one is other:
        return True
    if one.__class__ is not other.__class__:
        return False
    return bool(_comparable_value(one) == _comparable_value(other))


def _comparable_value(value: Any) -> Any:
    """Return the part of a value that counts as content: without ids, times and metadata."""
    if isinstance(value, (str, int, float, bool)) or value is None:
        return value
    if isinstance(value, dict):
        return {key: _comparable_value(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_comparable_value(part) for part in value]
    if isinstance(value, Msg):
        content = value.content
        return value.role, value.name, [["text", content]] if isinstance(content, str) else _comparable_value(content)
    fields = getattr(value, "__dataclass_fields__", None)
    if fields is None:
        return id(value)
    kind = getattr(value, "type", type(value).__name__)
    if kind == "text":
        return ["text", value.text]
    return [kind, *(_comparable_value(getattr(value, name)) for name in fields if name not in _IGNORED_FIELDS)]


_IGNORED_FIELDS = frozenset(("id", "type", "created_at", "metadata", "seq", "state"))
