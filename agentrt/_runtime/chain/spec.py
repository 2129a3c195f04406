"""The compiler's view of a hook, and of the middlewares that it compiles."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Protocol

REQUEST_PARTS = ("tools", "system", "history")
"""The parts of a request, in the order in which providers cache them."""

EVERY_STEP = "*"
"""What an observer is `inside_of` that sees each call of each layer, and of the cores of their chains."""

Shape = Literal["stream", "call", "transformer", "observer"]
"""How a hook is written: async generator, coroutine, coroutine that changes a value, plain function that looks on."""

Function = Callable[..., Any]
"""A core, a hook or the entry into a chain: the line of the hook table says what it takes and what it gives."""

Values = dict[str, object]
"""The input of a chain: `input_kwargs`."""

Notify = Callable[[Any, Any], None]
"""Tells every observer of a hook of one thing that happened: `notify(agent, item)`. It never raises an `Exception`."""


@dataclass(frozen=True, slots=True)
class ObservableCore:
    """The core of an observer hook: `plain` without observers, otherwise the result of `observed`."""

    plain: Function | None
    observed: Callable[[Notify], Function]


@dataclass(frozen=True, slots=True)
class StreamCore:
    """The core of a stream hook that is a coroutine: `plain` without layers; `stream` opens what layers read of it."""

    plain: Function
    stream: Function


Core = Function | ObservableCore | StreamCore
"""The function that a hook wraps."""


class Middleware(Protocol):
    """The attributes of a middleware that the compiler reads besides its hooks."""

    key: str | None
    position: str | None
    emits: bool
    limits: ClassVar[Mapping[str, tuple[float, str]]]
    # Of any type, since a class may narrow what MiddlewareBase declares, and what can be assigned is invariant.
    wraps: ClassVar[Any]
    wrapped_by: ClassVar[Any]
    requires: ClassVar[Any]
    rewrites: ClassVar[Any]


@dataclass(frozen=True, slots=True)
class HookSpec:
    """One line of the hook table.

    `item_types` may flow through a stream, or through the stream that a call returns; `terminal` is what a stream must
    end with (`None`: nothing fixed) or what a call returns when it returns no stream. A transformer returns one value
    of the `terminal` type. `wraps` says in words what the hook wraps, and `never` what it does not see.

    `types` says for each key what a layer may pass on; a key that is not in it may have any value. A converter turns
    what is accepted in place of a value into that value. It is called with what the layer passed on, with what the
    chain was entered with, and with the name of the layer. It returns what it does not know as it is, or raises
    `ValueError`.

    An observer hook is in no chain; with `inside_of` it is folded around the core of the hook of that name, or around
    `EVERY_STEP` of all chains.

    `denied` gives the refusal of the hook, or stops the reply, where a layer that guards fails: it is called with the
    agent, the values that reached the layer, and words that say why. Hooks without one cannot deny.
    """

    name: str
    shape: Shape
    keys: tuple[str, ...]
    item_types: tuple[type, ...]
    terminal: type | None
    wraps: str
    never: str = ""
    types: Mapping[str, tuple[type, ...]] = field(default_factory=dict, hash=False)
    converters: Mapping[str, Callable[[object, object, str], object]] = field(default_factory=dict, hash=False)
    inside_of: str = ""
    denied: Callable[[Any, Values, str], object] | None = None

    @property
    def parameters(self) -> tuple[str, ...]:
        """The parameters of the hook's method, without `self`."""
        return self.keys if self.shape in ("transformer", "observer") else ("agent", "input_kwargs", "next_handler")
