"""What the compiler knows of a hook, and of the middlewares that it compiles."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

__all__ = ["Core", "Function", "HookSpec", "Middleware", "Notify", "ObservableCore", "Shape", "Values"]

Shape = Literal["stream", "call", "transformer", "observer"]
"""How a hook is written: async generator, coroutine, coroutine that changes a value, plain function that looks on."""

Function = Callable[..., Any]
"""A core, a hook or the entry into a chain: the line of the hook table says what it takes and what it gives."""

Values = dict[str, object]
"""What flows inwards through a chain: `input_kwargs`."""

Notify = Callable[[Any, Any], None]
"""Tells every observer of a hook of one thing that happened: `notify(agent, item)`. It never raises an `Exception`."""


@dataclass(frozen=True, slots=True)
class ObservableCore:
    """What an observer hook is folded around: `plain` where nobody looks on, and else what `observed` makes."""

    plain: Function
    observed: Callable[[Notify], Function]


Core = Function | ObservableCore
"""What a hook stands around."""


class Middleware(Protocol):
    """What the compiler reads of a middleware besides its hooks."""

    key: str | None
    position: str | None
    emits: bool

    @property
    def wraps(self) -> Collection[type | str]: ...
    @property
    def wrapped_by(self) -> Collection[type | str]: ...
    @property
    def requires(self) -> Sequence[type | str]: ...


@dataclass(frozen=True, slots=True)
class HookSpec:
    """One line of the hook table.

    `item_types` may flow through a stream, or through the stream that a call returns; `terminal` is what a stream must
    end with (`None`: nothing fixed) or what a call returns when it returns no stream. A transformer returns one value
    of the `terminal` type. `wraps` says in words what the hook wraps, and `never` what it does not see.

    `types` says for each key what a layer may pass on; a key that is not in it may have any value. A converter turns
    what is accepted in place of a value into that value. It is called with what the layer passed on and with what the
    chain was entered with; it returns what it does not know as it is, or raises `ValueError`.

    An observer hook is in no chain; with `inside_of` it is folded around the core of the hook of that name.
    """

    name: str
    shape: Shape
    keys: tuple[str, ...]
    item_types: tuple[type, ...]
    terminal: type | None
    wraps: str
    never: str = ""
    types: Mapping[str, tuple[type, ...]] = field(default_factory=dict, hash=False)
    converters: Mapping[str, Callable[[object, object], object]] = field(default_factory=dict, hash=False)
    inside_of: str = ""

    @property
    def parameters(self) -> tuple[str, ...]:
        """The parameters of the hook's method, without `self`."""
        return self.keys if self.shape in ("transformer", "observer") else ("agent", "input_kwargs", "next_handler")
