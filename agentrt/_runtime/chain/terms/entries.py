"""The entries of a list of middlewares: layers, and layers under terms.

Terms nest. `split_entries` takes them apart, so that each entry holds one layer under all terms that apply to it.
"""

import inspect
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeVar, cast, get_args, overload

from agentrt._runtime.chain.spec import Middleware
from agentrt.errors import MiddlewareConfigError

OnFailure = Literal["raise", "skip", "deny"]
"""The meaning of a layer's timeout or error: an error, no layer, or no."""

Predicate = Callable[[Any], object]


@dataclass(frozen=True, slots=True, eq=False)
class Condition:
    """A predicate of the agent, asked once per reply for all layers that one `When` covers."""

    predicate: Predicate

    @property
    def name(self) -> str:
        """The name of the function."""
        return getattr(self.predicate, "__qualname__", None) or type(self.predicate).__name__


class Limit(NamedTuple):
    """A limit on a layer's own time, in seconds, and the meaning of a failure.

    Without `hooks` it holds for all hooks of the layer that can have a limit.
    """

    seconds: float
    on_failure: OnFailure
    hooks: tuple[str, ...] = ()


class Terms(NamedTuple):
    """The terms of one layer: conditions and bundles outermost first, limits from the nearest on."""

    conditions: tuple[Condition, ...] = ()
    limits: tuple[Limit, ...] = ()
    bundles: tuple[str, ...] = ()


class _Term:
    """Something that a user states for a layer, or for several."""

    __slots__ = ()

    def split(self) -> "list[ListEntry]":
        """Return an entry for each layer that this holds for."""
        raise NotImplementedError

    def add_to(self, terms: Terms) -> Terms:
        """Return the terms of the entry inside, with this one outside of them."""
        raise NotImplementedError


class _Wrapper(_Term):
    """A term of one entry."""

    __slots__ = ("_entry",)

    def __init__(self, entry: "ListEntry") -> None:
        if isinstance(entry, (list, tuple)):
            raise MiddlewareConfigError(
                f"{type(self).__name__}(...) takes one layer or a Bundle, not a {type(entry).__name__}: "
                f'write Bundle("name", [...])'
            )
        self._entry = entry

    @property
    def entry(self) -> "ListEntry":
        """The layer, the bundle, or the layer under other terms."""
        return self._entry

    def split(self) -> "list[ListEntry]":
        parts = split_entries([self._entry])
        if len(parts) == 1 and parts[0] is self._entry:
            return [cast(ListEntry, self)]
        return [self._wrap(part) for part in parts]

    def _wrap(self, entry: "ListEntry") -> "ListEntry":
        raise NotImplementedError


class When(_Wrapper):
    """A layer, or a bundle, that holds in those replies for which the predicate is true.

    The predicate is a plain function of the agent. It is asked once per reply, at the first hook that it decides on;
    the answer is saved with the reply. Where it is false, nothing of the layer runs, its tools are not offered, and its
    observers hear nothing. An error that it raises ends the reply. Outside of replies it is asked each time.
    """

    __slots__ = ("condition",)
    condition: Condition

    def __init__(self, predicate: Predicate, layer: "ListEntry") -> None:
        super().__init__(layer)
        if not callable(predicate):
            raise MiddlewareConfigError(
                f"When(...) takes a function of the agent first, not {predicate!r:.200}: "
                f"write When(lambda agent: ..., layer)"
            )
        call = predicate if inspect.isroutine(predicate) else getattr(predicate, "__call__", predicate)  # noqa: B004
        if inspect.iscoroutinefunction(call) or inspect.isasyncgenfunction(call):
            raise MiddlewareConfigError(
                f"When(...) takes a plain function, and {predicate!r:.200} is async: read in it what a layer of "
                f"on_reply has put into agent.run.deps"
            )
        self.condition = Condition(predicate)

    def add_to(self, terms: Terms) -> Terms:
        return Terms((self.condition, *terms.conditions), terms.limits, terms.bundles)

    def _wrap(self, entry: "ListEntry") -> "ListEntry":
        part = When(self.condition.predicate, entry)
        part.condition = self.condition  # the same one, which is asked once for all parts
        return part

    def __repr__(self) -> str:
        return f"When({self.condition.name}, {self._entry!r})"


class Limited(_Wrapper):
    """A layer, or a bundle, with a limit on its own time, in seconds.

    The clock stands while inner layers and the core work. A stream hook has these seconds for each item, other hooks
    for each call. `on_failure` says what happens when the time is over, and when the layer itself raises an error:
    "raise" ends with `LayerTimeout`, or with the layer's own error; with "skip" it is as though the layer were not
    there; "deny" gives the hook's refusal, where it has one. Errors from further in always pass as they are. Without
    `hooks` the limit holds for all hooks of the layer that can have one: observers cannot.

    Only waiting can be stopped: code that blocks, such as `time.sleep`, runs to its end.
    """

    __slots__ = ("limit",)

    def __init__(
        self, layer: "ListEntry", seconds: float, on_failure: OnFailure = "raise", hooks: Iterable[str] = ()
    ) -> None:
        super().__init__(layer)
        names: object = hooks
        if isinstance(names, str) or not isinstance(names, Iterable):
            remedy = f"write [{names!r}]" if names else "leave it out for all hooks"
            raise MiddlewareConfigError(f"Limited(hooks=...) must be a list of hooks, not {names!r}: {remedy}")
        self.limit = read_limit("Limited(...)", (seconds, on_failure), tuple(hooks))

    def add_to(self, terms: Terms) -> Terms:
        return Terms(terms.conditions, (*terms.limits, self.limit), terms.bundles)

    def _wrap(self, entry: "ListEntry") -> "ListEntry":
        part = Limited(entry, *self.limit)
        part.limit = self.limit  # shared: each of its hooks must exist in at least one of the parts
        return part

    def __repr__(self) -> str:
        seconds, on_failure, hooks = self.limit
        return f"Limited({self._entry!r}, {seconds:g}, {on_failure!r}{f', hooks={list(hooks)}' if hooks else ''})"


class Bundle(_Term, Sequence["ListEntry"]):
    """Layers under one name, which `explain()` shows. The name is a label: two bundles may have the same."""

    __slots__ = ("_entries", "name")

    def __init__(self, name: str, layers: "Iterable[ListEntry]") -> None:
        label: object = name
        if not isinstance(label, str) or not label:
            raise MiddlewareConfigError(f"Bundle(...) takes a name first, a str that is not empty, not {name!r:.200}")
        if not isinstance(layers, (list, tuple, Bundle)):
            raise MiddlewareConfigError(f"Bundle({name!r}, ...) takes a list of layers, not {layers!r:.200}")
        self.name = name
        self._entries: tuple[ListEntry, ...] = tuple(layers)

    @overload
    def __getitem__(self, place: int) -> "ListEntry": ...
    @overload
    def __getitem__(self, place: slice) -> "Sequence[ListEntry]": ...
    def __getitem__(self, place: int | slice) -> "ListEntry | Sequence[ListEntry]":
        return self._entries[place]

    def __len__(self) -> int:
        return len(self._entries)

    def split(self) -> "list[ListEntry]":
        parts = split_entries(self._entries)
        if len(parts) == 1 and len(self) == 1 and parts[0] is self[0]:
            return [self]
        return [Bundle(self.name, [part]) for part in parts]

    def add_to(self, terms: Terms) -> Terms:
        return Terms(terms.conditions, terms.limits, (self.name, *terms.bundles))

    def __repr__(self) -> str:
        return f"Bundle({self.name!r}, {list(self._entries)!r})"


ListEntry = Middleware | When | Limited | Bundle
"""An entry in a list of middlewares."""

_EntryT = TypeVar("_EntryT")


# Looked at by their class, without a call for each layer: a program may make agents by the thousand.
_TERM_CLASSES: frozenset[type] = frozenset((When, Limited, Bundle))


def split_entries(entries: Iterable[_EntryT]) -> list[_EntryT]:
    """Return an entry for each layer, in their order; a layer without terms is an entry by itself."""
    entries = list(entries)
    for entry in entries:
        if entry.__class__ in _TERM_CLASSES:
            break
    else:
        return entries
    parts: list[Any] = []
    for entry in entries:
        parts += entry.split() if isinstance(entry, _Term) else [entry]
    return parts


def layers_in(entries: Iterable[Any]) -> list[Any]:
    """Return the layers of entries that `split_entries` returned."""
    return [layer_of(entry) if entry.__class__ in _TERM_CLASSES else entry for entry in entries]


def layer_of(entry: Any) -> Any:
    """Return the layer of one such entry."""
    while isinstance(entry, _Term):
        entry = entry[0] if isinstance(entry, Bundle) else cast(_Wrapper, entry).entry
    return entry


def terms_of(entry: Any) -> Terms | None:
    """Return the terms of the layer of an entry that `split_entries` returned, `None` if there are none."""
    if not isinstance(entry, _Term):
        return None
    inner = entry[0] if isinstance(entry, Bundle) else cast(_Wrapper, entry).entry
    return entry.add_to(terms_of(inner) or Terms())


def read_limit(place: str, limit: object, hooks: tuple[str, ...] = ()) -> Limit:
    """Return the limit of a pair of seconds and on_failure; raises `MiddlewareConfigError` for what cannot be one."""
    if not isinstance(limit, (tuple, list)) or len(limit) != 2:
        raise MiddlewareConfigError(
            f'{place} must be a pair of seconds and on_failure, as (2.0, "deny"), not {limit!r}'
        )
    seconds, on_failure = limit
    is_number = isinstance(seconds, (int, float)) and not isinstance(seconds, bool)
    if not is_number or not 0 < seconds < math.inf:
        raise MiddlewareConfigError(f"{place} must have seconds above 0, and not without end, not {seconds!r}")
    if on_failure not in get_args(OnFailure):
        choices = ", ".join(map(repr, get_args(OnFailure)))
        raise MiddlewareConfigError(f"{place} must have an on_failure of {choices}, not {on_failure!r}")
    return Limit(float(seconds), on_failure, hooks)
