"""The compiler: the one place where middlewares become chains.

For each hook, `compile_chains` folds the layers around the core from the innermost outwards. What one *step* does is
fixed when the agent is built; what belongs to one entry into the chain (the agent, the values that flow, the owner) is
passed from step to step.
"""

import logging
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, NoReturn, TypeVar, cast, overload

from agentrt._runtime.chain.attribution import name_the_layer, origins_of
from agentrt._runtime.chain.chains import Chains, Layer
from agentrt._runtime.chain.check import check_middlewares, lifespans_of
from agentrt._runtime.chain.layer_record import ObserveStep
from agentrt._runtime.chain.owned_stream import OwnedStream, StreamContract
from agentrt._runtime.chain.owner import Owner, StreamStep, is_stream
from agentrt._runtime.chain.spec import (
    EVERY_STEP,
    Core,
    Function,
    HookSpec,
    Middleware,
    Notify,
    ObservableCore,
    StreamCore,
    Values,
)
from agentrt._runtime.chain.terms.entries import ListEntry, layers_in, split_entries
from agentrt._runtime.chain.terms.layer_terms import AskCondition, LayerTerms, ask_condition
from agentrt._runtime.chain.violations import (
    ended_chain,
    positional_value,
    running_call,
    running_stream,
    uncalled_handler,
    unusable_override,
    wrong_keys,
    wrong_override,
    wrong_result,
    wrong_value,
)
from agentrt.errors import ChainError

CallStep = Callable[[Values, Owner], Awaitable[object]]
CheckedClasses = tuple[tuple[str, set[type]], ...]
"""For each key the classes of values that have passed the check: a further value of one needs only a look."""

_ChainsT = TypeVar("_ChainsT", bound=Chains)
_logger = logging.getLogger("agentrt")
_new_object = object.__new__
_MAX_CHECKED_CLASSES = 64  # a program may make any number of classes


@overload
def compile_chains(
    base: type, table: Sequence[HookSpec], cores: Mapping[str, Core], middlewares: Sequence[ListEntry]
) -> Chains: ...
@overload
def compile_chains(
    base: type,
    table: Sequence[HookSpec],
    cores: Mapping[str, Core],
    middlewares: Sequence[ListEntry],
    kind: type[_ChainsT],
    origins: Mapping[int, str] | None = ...,
    ask: AskCondition = ...,
) -> _ChainsT: ...
def compile_chains(
    base: type,
    table: Sequence[HookSpec],
    cores: Mapping[str, Core],
    middlewares: Sequence[ListEntry],
    kind: type[Chains] = Chains,
    origins: Mapping[int, str] | None = None,
    ask: AskCondition = ask_condition,
) -> Chains:
    """Check the middlewares and compile one entry per hook that has a core.

    An entry is called as its core is: `entry(agent, **values)`. `kind` may be a class of `Chains` that says what type
    each entry has. `origins` has the name of the agent that a middleware comes from, by its `id()`, where that is
    another one. Middlewares may have terms; `ask` asks their conditions. Raises `MiddlewareConfigError`.
    """
    stated = split_entries(middlewares)
    layered = tuple(layers_in(stated))
    overridden = check_middlewares(layered, base, table)
    keys = _assign_keys(layered, origins or {})
    terms = LayerTerms(stated, layered, keys, ask)
    layers_of: dict[str, list[Layer]] = {spec.name: [] for spec in table}
    for middleware, specs in zip(layered, overridden, strict=True):
        key = keys[id(middleware)]
        is_stated = terms.by_layer or middleware.__class__.limits
        limits = terms.limits_of(middleware, specs, table) if is_stated else None
        for spec in specs:
            hook = getattr(middleware, spec.name)
            layer = Layer(middleware, hook, key, hook)
            layers_of[spec.name].append(layer if limits is None else terms.apply(spec, layer, limits))
    terms.check_used()
    layers = {name: tuple(listed) for name, listed in layers_of.items()}
    entries: dict[str, Function] = {}
    observed: dict[str, Function] = {}
    # First, since what is observed is the core of a chain.
    for spec in table:
        if spec.shape == "observer" and spec.name in cores:
            silent, observers = cast(ObservableCore, cores[spec.name]), layers[spec.name]
            entry: Any = silent.observed(_notify_all(spec, observers)) if observers else silent.plain
            entries[spec.name] = observed[spec.inside_of] = entry
    observe_step: ObserveStep | None = observed.get(EVERY_STEP)
    for spec in table:
        if spec.shape != "observer" and spec.name in cores:
            core: Any = observed.get(spec.name, cores[spec.name])
            # A hook that nobody overrides has no chain: its entry is the core itself, and costs nothing.
            entries[spec.name] = core.plain if isinstance(core, StreamCore) else core
            if layers[spec.name]:
                entries[spec.name] = _BUILDERS[spec.shape](spec, core, layers[spec.name], observe_step)
    return kind(tuple(table), entries, layers, layered, keys, terms, lifespans_of(layered, base))


def _assign_keys(middlewares: Sequence[Middleware], origins: Mapping[int, str]) -> dict[int, str]:
    """Return the key of each middleware by its `id`: its own, else the name of its class, numbered if that is taken.

    That of another agent says so, so that an agent's own have the keys that they have without it.
    """
    keys = {id(middleware): middleware.key for middleware in middlewares if middleware.key is not None}
    taken = set(keys.values())
    for middleware in middlewares:
        if middleware.key is None:
            origin = origins.get(id(middleware))
            key = name = type(middleware).__name__ if origin is None else f"{type(middleware).__name__}@{origin}"
            number = 1
            while key in taken:
                number += 1
                key = f"{name}#{number}"
            keys[id(middleware)] = key
            taken.add(key)
    return keys


# Observers


def _notify_all(spec: HookSpec, observers: tuple[Layer, ...]) -> Notify:
    """Return what tells all observers in their order, whatever each of them does with it.

    An error is logged once for each observer and type, since one may fail at every event. Its text may quote what does
    not belong in a log.
    """
    logged: set[tuple[str, type]] = set()

    def notify(agent: object, item: object) -> None:
        for observer in observers:
            try:
                observer.enter(agent, item)
            except Exception as error:  # noqa: BLE001  # the reply does not fail for those who look on
                kind = (observer.key, type(error))
                if kind not in logged:
                    logged.add(kind)
                    _logger.error(
                        "%s failed in %s (%s), and the reply continues: %s",
                        observer.name,
                        spec.name,
                        observer.where,
                        type(error).__name__,
                    )

    return notify


# Stream hooks


def _stream_chain(
    spec: HookSpec, core: Function | StreamCore, layers: tuple[Layer, ...], observe_step: ObserveStep | None
) -> Function:
    plain, open_core = (core.plain, core.stream) if isinstance(core, StreamCore) else (core, core)

    def innermost(values: Values, owner: Owner) -> AsyncIterator[object]:
        stream: AsyncIterator[object] = open_core(owner.agent, **values)
        owner.core = stream
        return stream

    step: StreamStep = innermost if observe_step is None else observe_step(innermost, spec, layers, None)
    # One for all layers of the hook: a class that one of them may pass on, all of them may.
    checks: CheckedClasses = tuple((key, set()) for key in spec.keys)
    for layer in reversed(layers):
        step = _stream_step(spec, layer, step, checks)
        if observe_step is not None:
            step = observe_step(step, spec, layers, layer)
    contract = StreamContract(spec, layers, origins_of(plain, layers), spec.terminal, step)

    # The agent is positional only, since a custom agent's `reply` may have a parameter of that name.
    def entry(agent: object, /, **values: object) -> OwnedStream:
        return OwnedStream(contract, Owner(agent, values))

    return entry


_StepParts = tuple[HookSpec, Layer, StreamStep, CheckedClasses, int]
"""The data for a layer's calls of `next_handler`, fixed when the chain is compiled."""


class _StreamNextHandler:
    """The `next_handler` of one layer in one entry into the chain of a stream hook.

    The layer gets the inner stream itself, so that an item passes one generator per layer. The price is that nothing of
    ours sees a layer leave its `async for`. But the layer's frame holds the only reference to this object, and CPython
    frees what nobody refers to at once, so `__del__` runs as soon as the layer has stopped. Where it runs later or
    never (the layer keeps a reference, an error that is still being handled holds the frame, another Python collects
    its garbage now and then), the streams stay open until the chain ends: `Owner.close` asks for no `__del__`.
    """

    __slots__ = ("inner_stream", "owner", "parts", "place", "values")
    # No `__init__`: this is made for each layer and entry, and a call more is what it would cost.
    parts: _StepParts
    values: Values
    owner: Owner
    inner_stream: AsyncIterator[object] | None
    place: int  # of the inner stream among those that the owner has opened

    def __call__(self, /, *args: object, **values: object) -> AsyncIterator[object]:
        spec, layer, inner, checks, key_count = self.parts
        owner = self.owner
        if args or owner.is_closed:
            raise _wrong_call(spec, layer, args)
        if len(values) != key_count:  # as `next_handler(**input_kwargs)` passes all, nothing has to be filled up
            values = _merge_values(spec, layer, self.values, values)
        try:
            for key, classes in checks:
                if values[key].__class__ not in classes:
                    _check_value(spec, layer, key, values, classes, owner)
        except KeyError:
            raise wrong_keys(spec, layer, {**self.values, **values}) from None
        if self.inner_stream is not None:
            return self._replace_stream(spec, layer, inner, values)
        self.place = len(owner.opened)
        self.inner_stream = stream = inner(values, owner)
        owner.opened.append(stream)
        return stream

    def _refuse(self) -> NoReturn:
        spec, layer, *_ = self.parts
        raise uncalled_handler(layer, spec)

    __aiter__ = __await__ = __iter__ = _refuse

    def _replace_stream(self, spec: HookSpec, layer: Layer, inner: StreamStep, values: Values) -> AsyncIterator[object]:
        """Return a stream that takes the place of that of the layer's last call."""
        refusal = running_stream(layer, spec)
        if getattr(self.inner_stream, "ag_running", False):
            raise refusal
        weak_stream: list[weakref.ref[AsyncIterator[object]]] = []
        stream = _replace_stream(inner, refusal, values, self.owner, self.place, weak_stream)
        self.inner_stream = stream
        weak_stream.append(weakref.ref(stream))
        return stream

    def __del__(self) -> None:
        # Only noted here, where nothing can be awaited: the owner closes it as soon as it has control, in its task.
        opened = self.owner.opened
        if getattr(self.inner_stream, "ag_frame", None) is not None and self.place < len(opened):
            self.owner.abandoned.append((self.place, opened[self.place]))


def _stream_step(spec: HookSpec, layer: Layer, inner: StreamStep, checks: CheckedClasses) -> StreamStep:
    enter, parts = layer.enter, (spec, layer, inner, checks, len(checks))

    def step(values: Values, owner: Owner) -> AsyncIterator[object]:
        next_handler = _new_object(_StreamNextHandler)
        next_handler.parts, next_handler.values = parts, values
        next_handler.owner, next_handler.inner_stream = owner, None
        stream: AsyncIterator[object] = enter(owner.agent, values, next_handler)
        if stream is next_handler.inner_stream:  # passed on as it is, by a wrapper around the hook: not abandoned
            next_handler.inner_stream = None
        return stream

    return step


def _merge_values(spec: HookSpec, layer: Layer, values: Values, overrides: Values) -> Values:
    """Return the overrides, filled up with the values that reached the layer."""
    merged = {**values, **overrides}
    if len(merged) != len(spec.keys):
        raise wrong_keys(spec, layer, merged)
    return merged


def _check_value(spec: HookSpec, layer: Layer, key: str, values: Values, classes: set[type], owner: Owner) -> None:
    """Check a value of a class that has not passed yet, and convert what is accepted in place of one.

    A value that the chain was entered with is not a layer's fault, and is left to the core to judge.
    """
    value, expected = values[key], spec.types.get(key, (object,))
    if not isinstance(value, expected) and key in spec.converters:
        try:
            values[key] = value = spec.converters[key](value, owner.given.get(key), layer.name)
        except ValueError as error:
            raise unusable_override(spec, layer, key, value, error) from None
    if not isinstance(value, expected):
        if value is not owner.given.get(key):
            raise wrong_override(spec, layer, key, value)
    elif len(classes) < _MAX_CHECKED_CLASSES:
        classes.add(value.__class__)


def _wrong_call(spec: HookSpec, layer: Layer, args: tuple[object, ...]) -> ChainError:
    return positional_value(layer, spec, args) if args else ended_chain(layer, spec)


async def _replace_stream(
    inner: StreamStep,
    refusal: ChainError,
    values: Values,
    owner: Owner,
    place: int,
    weak_stream: list[weakref.ref[AsyncIterator[object]]],
) -> AsyncIterator[object]:
    """Close the stream of an earlier call with everything under it, then take its place.

    `weak_stream` holds this generator, weakly: a plain reference would keep it, and with it the layer's frame, alive.
    """
    if owner.is_running_from(place):
        raise refusal
    await owner.close_from(place)
    owner.opened.append(weak_stream[0]())  # this generator, which the layer may leave like any other stream
    stream = inner(values, owner)
    owner.opened.append(stream)
    async for item in stream:
        yield item


# Call hooks


def _call_chain(
    spec: HookSpec, core: Function, layers: tuple[Layer, ...], observe_step: ObserveStep | None
) -> Function:
    terminal = spec.terminal

    def check(layer: Layer | None, depth: int, result: object, owner: Owner) -> None:
        """Check what the layer at a depth returned (`None` stands for the core), and give a stream to the owner."""
        if result.__class__ is terminal or (terminal is None and result is None):
            return
        if spec.item_types and is_stream(result):
            owner.keep_returned(result, depth, layer)
        elif terminal is None or not isinstance(result, terminal):
            raise wrong_result(spec, layer, result)

    def innermost(values: Values, owner: Owner) -> Awaitable[object]:
        result: Awaitable[object] = core(owner.agent, **values)
        return result

    step: CallStep = innermost if observe_step is None else observe_step(innermost, spec, layers, None)
    inner_layer: Layer | None = None  # whose result the next layer checks; `None` stands for the core
    checks: CheckedClasses = tuple((key, set()) for key in spec.keys)
    for depth, layer in reversed(list(enumerate(layers))):
        step = _call_step(spec, layer, depth, step, checks, partial(check, inner_layer, depth + 1))
        if observe_step is not None:
            step = observe_step(step, spec, layers, layer)
        inner_layer = layer
    contract = StreamContract(spec, layers, origins_of(core, layers))
    plain = type(None) if terminal is None else terminal

    async def entry(agent: object, /, **values: object) -> object:
        owner = Owner(agent, values)
        try:
            result = await step({**values}, owner)
            if result.__class__ is not plain:
                check(inner_layer, 0, result, owner)
        except BaseException as error:  # a cancellation too: what was opened is closed before it leaves
            if isinstance(error, Exception):
                name_the_layer(error, spec, contract.origins | owner.origin_by_code, layers, (entry.__code__,))
            await owner.close(error)
            raise
        if not owner.opened:  # no stream was returned anywhere, as in most calls
            owner.is_closed = True
            return result
        if not is_stream(result):
            await owner.close()
            return result
        owner.stream = result
        return OwnedStream(contract, owner)

    return entry


def _call_step(
    spec: HookSpec,
    layer: Layer,
    depth: int,
    inner: CallStep,
    checks: CheckedClasses,
    check: Callable[[object, Owner], None],
) -> CallStep:
    enter = layer.enter
    key_count = len(checks)
    plain = type(None) if spec.terminal is None else spec.terminal

    def step(values: Values, owner: Owner) -> Awaitable[object]:
        running: bool | None = None  # until the first call

        # A plain function, unlike that of a stream hook: a call needs no notice of when the layer drops it, since what
        # is left open is closed at its next call or at the end.
        async def next_handler(*args: object, **overrides: object) -> object:
            nonlocal running
            if args or owner.is_closed:
                raise _wrong_call(spec, layer, args)
            if len(overrides) != key_count:  # as `next_handler(**input_kwargs)` passes all, nothing is to be filled up
                overrides = _merge_values(spec, layer, values, overrides)
            try:
                for key, classes in checks:
                    if overrides[key].__class__ not in classes:
                        _check_value(spec, layer, key, overrides, classes, owner)
            except KeyError:
                raise wrong_keys(spec, layer, {**values, **overrides}) from None
            if running:
                raise running_call(layer, spec)
            try:
                is_repeated, running = running is not None, True
                if is_repeated:
                    # The streams of the last call are closed first, so that what they hold is free for this one.
                    place = owner.place_below(depth)
                    if owner.is_running_from(place):
                        raise running_stream(layer, spec)
                    await owner.close_from(place)
                result = await inner(overrides, owner)
            finally:
                running = False
            if result.__class__ is not plain:
                check(result, owner)
            return result

        call: Awaitable[object] = enter(owner.agent, values, next_handler)
        return call

    return step


# Transformers


def _transformer_chain(
    spec: HookSpec, core: Function, layers: tuple[Layer, ...], observe_step: ObserveStep | None
) -> Function:
    origins = origins_of(core, layers)
    changes = [(layer, layer.enter) for layer in layers]
    if observe_step is not None:
        core = observe_step(core, spec, layers, None)
        changes = [(layer, observe_step(layer.enter, spec, layers, layer)) for layer in layers]

    async def entry(agent: object, /, **values: object) -> object:
        try:
            value: object = await core(agent, **values)
            for layer, change in changes:
                value = await change(agent, value)
                if not isinstance(value, spec.item_types):
                    raise wrong_value(spec, layer, value)
        except Exception as error:  # named and raised again
            name_the_layer(error, spec, origins, layers, (entry.__code__,))
            raise
        return value

    return entry


_BUILDERS = {"stream": _stream_chain, "call": _call_chain, "transformer": _transformer_chain}
