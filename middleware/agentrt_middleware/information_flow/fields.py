"""The parts of a result: the fields that are shown, and those that are held back."""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic_core import to_json

from agentrt.permission.glob import matches
from agentrt.types import FlowLabel

Hold = Callable[[Any, FlowLabel], str]
"""Holds a value back; returns its handle."""

_LONGEST_BY_CHANCE = 3  # characters: texts that share no more than this are not echoes
_HELD_FIELDS = "untrusted"


def words_of(value: Any) -> str:
    """Return the text of a value: a `str` as it is, and JSON for anything else."""
    return value if isinstance(value, str) else to_json(value).decode()


class Echoes:
    """The labelled input of a call, as text, which its result may repeat."""

    def __init__(self, values: Iterable[tuple[str, FlowLabel]]) -> None:
        self._short: dict[str, FlowLabel] = {}
        self._long: list[tuple[str, FlowLabel]] = []
        for text, label in values:
            if len(text) > _LONGEST_BY_CHANCE:
                self._long.append((text, label))
            else:
                self._short[text] = self._short.get(text, FlowLabel()) | label
        # A result may have thousands of fields, and its call hundreds of values: text is compared with the values
        # that fit into it, and with the others only if it is in one of them.
        self._long.sort(key=lambda value: len(value[0]))
        self._lengths = [len(text) for text, _ in self._long]
        self._joined = "\0".join(text for text, _ in self._long)

    def __bool__(self) -> bool:
        return bool(self._short or self._long)

    def label_of(self, text: str) -> FlowLabel | None:
        """Return the joined label of the input that the text repeats, `None` if it repeats nothing."""
        found = [self._short[text]] if text in self._short else []
        if len(text) > _LONGEST_BY_CHANCE:
            count = bisect_right(self._lengths, len(text))
            found += [label for value, label in self._long[:count] if value in text]
            if text in self._joined:
                found += [label for value, label in self._long[count:] if text in value]
        joined = FlowLabel()
        for label in found:
            joined |= label
        return joined if found else None


class _Paths:
    """The paths of the trusted fields; each name on a path is a pattern."""

    def __init__(self, paths: Sequence[str]) -> None:
        self._paths = [tuple(path.split(".")) for path in paths]

    def names(self, path: tuple[str, ...]) -> bool:
        """Say whether the field itself is named."""
        return any(len(known) == len(path) and self._fits(known, path) for known in self._paths)

    def leads_to(self, path: tuple[str, ...]) -> bool:
        """Say whether a field inside this one is named."""
        return any(len(known) > len(path) and self._fits(known, path) for known in self._paths)

    @staticmethod
    def _fits(known: tuple[str, ...], path: tuple[str, ...]) -> bool:
        return all(matches(pattern, name) for pattern, name in zip(known, path, strict=False))


@dataclass
class _FieldHolder:
    """Holds back the fields of a JSON value that are not trusted."""

    paths: _Paths | None
    echoes: Echoes
    hold: Hold
    untrusted: FlowLabel
    trusted: FlowLabel

    def show(self, value: Any, path: tuple[str, ...]) -> Any:
        """Return a value with named fields as the model reads it."""
        if isinstance(value, list):
            return [self.show(item, path) for item in value]
        # A list may mix objects with other values.
        if not isinstance(value, dict):
            return self.hold(value, self.untrusted)
        visible: dict[str, Any] = {}
        held: dict[str, Any] = {}
        label = self.untrusted
        for key, item in value.items():
            inside = (*path, key)
            repeated = self.echoes.label_of(key)
            if repeated is not None:
                held[key], label = item, label | repeated
            elif self.paths is None or self.paths.names(inside):
                visible[key] = self.show_trusted(item)
            elif isinstance(item, (dict, list)) and self.paths.leads_to(inside):
                visible[key] = self.show(item, inside)
            else:
                held[key] = item
        if held:
            # One handle for all of them: a key can contain an instruction just like a value.
            name = _HELD_FIELDS
            while name in visible:
                name += "_"
            for text in leaf_texts(held) if self.echoes else ():
                label |= self.echoes.label_of(text) or FlowLabel()
            visible[name] = self.hold(held, label)
        return visible

    def show_trusted(self, value: Any) -> Any:
        """Return a trusted value, with repeated input held back."""
        if isinstance(value, list):
            return [self.show_trusted(item) for item in value]
        if isinstance(value, dict):
            inner = _FieldHolder(None, self.echoes, self.hold, self.untrusted, self.trusted)
            return inner.show(value, ())
        repeated = self.echoes.label_of(words_of(value)) if self.echoes else None
        if repeated is not None:
            return self.hold(value, self.untrusted | repeated)
        return value if self.trusted.readers is None else self.hold(value, self.trusted)


def leaf_texts(value: Any) -> Iterator[str]:
    """Yield the texts in a JSON value, keys too, since a result may repeat each by itself."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield key
            yield from leaf_texts(item)
    elif isinstance(value, list):
        for item in value:
            yield from leaf_texts(item)
    else:
        yield words_of(value)


def hold_fields(
    value: Any, paths: Sequence[str] | None, echoes: Echoes, hold: Hold, untrusted: FlowLabel, trusted: FlowLabel
) -> Any:
    """Return the JSON value with the fields held back that no path names; `None` names all of them.

    A trusted field that repeats untrusted input is held back as well, and so is every trusted field if `trusted` has
    readers.
    """
    if paths is None:
        return _FieldHolder(None, echoes, hold, untrusted, trusted).show_trusted(value)
    return _FieldHolder(_Paths(paths), echoes, hold, untrusted, trusted).show(value, ())
