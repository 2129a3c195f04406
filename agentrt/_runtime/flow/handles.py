"""Handles, and the values that they stand for, in the state of a conversation.

A handle is `<untrusted_3_a1b2c3d4>`: a name, a number, and the tag of its conversation. The tag is random, so nobody
can write a handle without having read one.
"""

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import blake2b
from typing import Any, Literal, Protocol

from pydantic_core import from_json, to_json

from agentrt._runtime.block import InProcess, Strict
from agentrt._runtime.boundary import json_problem
from agentrt._runtime.representation import never_raises
from agentrt._runtime.text import lazy_pattern, repr_of
from agentrt.errors import UsageError
from agentrt.types import FlowLabel

_HANDLE_NAME = lazy_pattern(r"[A-Za-z][A-Za-z0-9_]{0,63}")
LONGEST_HANDLE = len("<") + 64 + len("_") + 9 + len("_") + 8 + len(">")
_NOTHING_READ = FlowLabel()


HandlePlace = Literal["tools", "output"]
"""Where a handle becomes its value: in the arguments of calls, or in the output that the caller of a reply reads."""
ANYWHERE: tuple[HandlePlace, ...] = ("tools", "output")


@dataclass(slots=True, repr=False, eq=False)
class HeldValue(Strict):
    """A value in its JSON form, its label, and the places where it is released; none of these ever changes."""

    value: Any
    label: FlowLabel
    release: tuple[HandlePlace, ...] = ANYWHERE

    @never_raises
    def __repr__(self) -> str:
        return f"<{type(self).__name__}>"  # logs must not show the value


@dataclass(slots=True, repr=False, eq=False)
class HeldValues(InProcess, Strict):
    """The held values of a conversation, by the names and numbers in their handles, such as "untrusted_3".

    `counts` has the last number of each name; `label_read` is the joined label of the values that the model was shown.
    """

    tag: str = field(default_factory=lambda: os.urandom(4).hex())
    values: dict[str, HeldValue] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    label_read: FlowLabel = _NOTHING_READ

    @never_raises
    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {len(self.values)} values>"

    def handle(self, key: str) -> str:
        return f"<{key}_{self.tag}>"

    def pattern(self) -> re.Pattern[str]:
        """Return the pattern of this conversation's handles; its one group is the key."""
        return _pattern_of(self.tag)

    def add(self, name: str, held: HeldValue) -> str:
        """Add the value, and return its key; equal values with equal name, label and places share a key."""
        index = self._index()
        digest = _value_digest(name, held)
        key = index.get(digest)
        if key is None or key not in self.values:  # new, or forgotten since then
            number = self.counts.get(name, 0) + 1
            key = index[digest] = f"{name}_{number}"
            self.counts[name] = number
            self.values[key] = held
        return key

    def named_in(self, text: str) -> Iterator[str]:
        """Yield the keys of the handles in text that stand for a value."""
        if self.tag in text:
            for match in self.pattern().finditer(text):
                if match[1] in self.values:
                    yield match[1]

    def value_alone(self, text: str) -> HeldValue | None:
        """Return the value if the whole text is a handle, else `None`."""
        match = self.pattern().fullmatch(text) if self.tag in text else None
        return None if match is None else self.values.get(match[1])

    def _index(self) -> dict[bytes, str]:
        """Return the keys by digest, since comparing each new value with all others would be quadratic."""
        index: dict[bytes, str] | None = getattr(self, "in_process", None)
        if index is None:  # created or loaded just now
            index = self.in_process = {
                _value_digest(key.rpartition("_")[0], held): key for key, held in self.values.items()
            }
        return index


class HoldingState(Protocol):
    """The part of a conversation's state that has the held values."""

    held: HeldValues | None


@lru_cache(maxsize=256)
def _pattern_of(tag: str) -> re.Pattern[str]:
    return re.compile(rf"<([A-Za-z][A-Za-z0-9_]{{0,63}}_[1-9][0-9]{{0,8}})_{re.escape(tag)}>")


def name_of_handle(handle: str) -> str:
    """Return the first part of a handle."""
    return handle[1:].rsplit("_", 2)[0]


def _value_digest(name: str, held: HeldValue) -> bytes:
    label = held.label
    readers = None if label.readers is None else sorted(label.readers)
    parts = [name, label.trusted, readers, sorted(label.sources), held.release, held.value]
    return blake2b(to_json(parts), digest_size=16).digest()


def take_tag(state: HoldingState, others: Iterable[HoldingState]) -> None:
    """Give the handles of a conversation that holds nothing the tag that another state of it has, if any does."""
    if state.held is None:
        state.held = next((HeldValues(other.held.tag) for other in others if other.held is not None), None)


def holds(state: HoldingState, text: str | None = None) -> bool:
    """Say whether the conversation holds values and, if text is given, whether that may contain a handle."""
    held = state.held
    return held is not None and (text is None or held.tag in text)


def hold(
    state: HoldingState,
    value: Any,
    label: FlowLabel,
    name: str | None = None,
    release: Sequence[HandlePlace] = ANYWHERE,
) -> str:
    """Hold the value back, and return its handle."""
    label_object: object = label
    prefix: object = name
    if not isinstance(label_object, FlowLabel):
        raise UsageError(f"hold(label=...) must be a FlowLabel, not {repr_of(label)}")
    if name is None:
        # The name tells the model whether it must not obey the text, or must not pass it on.
        name = "untrusted" if not label.trusted else "private"
    elif not isinstance(prefix, str) or not _HANDLE_NAME.fullmatch(name):
        raise UsageError(f"hold(name=...) must be 1 to 64 letters, digits and `_` after a letter, not {name!r:.100}")
    problem = json_problem(value)
    if problem is not None:
        raise UsageError(f"hold(value=...) must have a JSON form: {problem}")
    places: object = release
    if not isinstance(places, (list, tuple)) or not set(places) <= set(ANYWHERE):
        raise UsageError(f'hold(release=...) must be a list of "tools" and "output", not {release!r:.200}')
    if state.held is None:
        state.held = HeldValues()
    allowed = tuple(place for place in ANYWHERE if place in release)
    known = state.held.value_alone(value) if isinstance(value, str) else None
    if known is None:
        held = HeldValue(from_json(to_json(value)), label, allowed)  # a copy in its JSON form
    else:
        # A handle is held as its value: a handle inside a held value would not be replaced.
        held = HeldValue(known.value, label | known.label, tuple(place for place in allowed if place in known.release))
    return state.held.handle(state.held.add(name, held))


def label_of(state: HoldingState, value: Any) -> FlowLabel:
    """Return the joined label of the handles in a value, and of all that the model was shown."""
    held = state.held
    if held is None:
        return _NOTHING_READ
    # The model may repeat text that it has read anywhere, also paraphrased.
    label = held.label_read
    for text in _texts_in(value):
        for key in held.named_in(text):
            label |= held.values[key].label
    return label


def label_shown(state: HoldingState) -> FlowLabel | None:
    """Return the joined label of the held values that the model was shown, `None` for none."""
    held = state.held
    return None if held is None or held.label_read == _NOTHING_READ else held.label_read


def mark_as_shown(state: HoldingState, label: FlowLabel) -> None:
    """Note that the model was shown text with that label, which `label_of` includes from now on."""
    if state.held is None:
        state.held = HeldValues()
    state.held.label_read |= label


def share_held(state: HoldingState, other: HoldingState) -> None:
    """Give a new conversation all that another one holds, under the same handles."""
    state.held = other.held


def held_in(state: HoldingState, texts: Iterable[str]) -> HeldValues | None:
    """Return the values whose handles the texts name, to be moved to another conversation."""
    held = state.held
    if held is None:
        return None
    return HeldValues(held.tag, {name: held.values[name] for text in texts for name in held.named_in(text)})


def forget_unnamed(state: HoldingState, text: str) -> None:
    """Forget the values that the text, which is all that remains of the conversation, does not name.

    Their numbers are not reused.
    """
    held = state.held
    if held is not None:
        # The index keeps the forgotten keys: `add` finds no value for them, and uses the next number.
        named = set(held.named_in(text))
        for key in [key for key in held.values if key not in named]:
            del held.values[key]


def _texts_in(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield str(key)
            yield from _texts_in(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _texts_in(item)
