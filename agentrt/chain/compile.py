"""The compiler: the one place where middlewares become chains.

For each hook, `compile_chains` folds the layers around the core from the innermost outwards. What one *step* does is
fixed when the agent is built; what belongs to one entry into the chain (the agent, the values that flow, the owner) is
passed from step to step.
"""

import weakref
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from functools import partial
from itertools import chain, count
from typing import NoReturn, TypeGuard, TypeVar, overload

from agentrt.chain.attribution import Origins, code_that_reads, name_the_layer, origins_of
from agentrt.chain.chains import Chains, Layer
from agentrt.chain.check import check_middlewares, location_of, overrides
from agentrt.chain.owner import Owner
from agentrt.chain.spec import Function, HookSpec, Middleware, Values
from agentrt.chain.violations import (
    ended_chain,
    missing_terminal,
    positional_value,
    running_call,
    running_stream,
    uncalled_handler,
    unusable_override,
    wrong_item,
    wrong_keys,
    wrong_override,
    wrong_result,
    wrong_value,
)
from agentrt.errors import ChainError

__all__ = ["compile_chains"]

StreamStep = Callable[[object, Values, Owner], AsyncIterator[object]]
CallStep = Callable[[object, Values, Owner], Awaitable[object]]
CheckedClasses = tuple[tuple[str, set[type]], ...]
"""For each key the classes of values that have passed the check: a further value of one needs only a look."""

_ChainsT = TypeVar("_ChainsT", bound=Chains)
_MAX_CHECKED_CLASSES = 64  # a program may make any number of classes


@overload
def compile_chains(
    base: type, table: Sequence[HookSpec], cores: Mapping[str, Function], middlewares: Sequence[Middleware]
) -> Chains: ...
@overload
def compile_chains(
    base: type,
    table: Sequence[HookSpec],
    cores: Mapping[str, Function],
    middlewares: Sequence[Middleware],
    kind: type[_ChainsT],
) -> _ChainsT: ...
def compile_chains(
    base: type,
    table: Sequence[HookSpec],
    cores: Mapping[str, Function],
    middlewares: Sequence[Middleware],
    kind: type[Chains] = Chains,
) -> Chains:
    """Check the middlewares and compile one entry per hook that has a core.

    An entry is called as its core is: `entry(agent, **values)`. `kind` may be a class of `Chains` that says what type
    each entry has. Raises `MiddlewareConfigError`.
    """
    middlewares = tuple(middlewares)
    check_middlewares(middlewares, base, table)
    keys = _assign_keys(middlewares)
    layers = {
        spec.name: tuple(
            Layer(
                middleware,
                getattr(middleware, spec.name),
                keys[id(middleware)],
                location_of(getattr(type(middleware), spec.name)),
            )
            for middleware in middlewares
            if overrides(middleware, base, spec.name)
        )
        for spec in table
    }
    # A hook that nobody overrides has no chain: its entry is the core itself, and costs nothing.
    entries = {
        spec.name: _BUILDERS[spec.shape](spec, cores[spec.name], layers[spec.name])
        if layers[spec.name]
        else cores[spec.name]
        for spec in table
        if spec.name in cores
    }
    return kind(tuple(table), entries, layers, middlewares, keys)


def _assign_keys(middlewares: Sequence[Middleware]) -> dict[int, str]:
    """Return the key of each middleware by its `id`: its own, else the name of its class, numbered if that is taken."""
    keys = {id(middleware): middleware.key for middleware in middlewares if middleware.key is not None}
    for middleware in middlewares:
        if middleware.key is None:
            name = type(middleware).__name__
            numbered = (f"{name}#{number}" for number in count(2))
            keys[id(middleware)] = next(key for key in chain([name], numbered) if key not in keys.values())
    return keys


# Stream hooks


def _stream_chain(spec: HookSpec, core: Function, layers: tuple[Layer, ...]) -> Function:
    def innermost(agent: object, values: Values, owner: Owner) -> AsyncIterator[object]:
        stream: AsyncIterator[object] = core(agent, **values)
        owner.core = stream
        return stream

    step: StreamStep = innermost
    # One for all layers of the hook: a class that one of them may pass on, all of them may.
    checks: CheckedClasses = tuple((key, set()) for key in spec.keys)
    for layer in reversed(layers):
        step = _stream_step(spec, layer, step, checks)
    origins = origins_of(core, layers)
    item_types, terminal = spec.item_types, spec.terminal
    item_classes: set[type] = set()  # which have passed the check, for a cheaper look at each item

    # The agent is positional only, since a custom agent's `reply` may have a parameter of that name.
    async def entry(agent: object, /, **values: object) -> AsyncGenerator[object, None]:
        owner = Owner({**values})  # a copy: the outermost layer may change its dict
        abandoned = owner.abandoned
        stream = step(agent, values, owner)
        owner.opened.append(stream)
        item = error = None
        try:
            async for item in stream:
                if item.__class__ not in item_classes:
                    if not isinstance(item, item_types):
                        raise wrong_item(spec, layers, item)
                    item_classes.add(item.__class__)
                if abandoned:  # by a layer that stopped early, while one further out still yields
                    await owner.close_abandoned()
                yield item
            if terminal is not None and not isinstance(item, terminal):
                raise missing_terminal(spec, layers, item)
        except GeneratorExit:  # being closed is not an error, so one in the clean-up may be raised
            raise
        except BaseException as raised:  # named and raised again
            error = raised
            if isinstance(raised, Exception):
                name_the_layer(raised, spec, origins | {code_that_reads(owner.core): None}, layers)
            raise
        finally:
            try:
                await owner.close(error)
            finally:
                error = None  # error and frame would hold each other

    return entry


class _StreamNextHandler:
    """The `next_handler` of one layer in one entry into the chain of a stream hook.

    The layer gets the inner stream itself, so that an item passes one generator per layer. The price is that nothing of
    ours sees a layer leave its `async for`. But the layer's frame holds the only reference to this object, and CPython
    frees what nobody refers to at once, so `__del__` runs as soon as the layer has stopped. Where it runs later or
    never (the layer keeps a reference, an error that is still being handled holds the frame, another Python collects
    its garbage now and then), the streams stay open until the chain ends: `Owner.close` asks for no `__del__`.
    """

    __slots__ = ("agent", "inner_stream", "owner", "place", "values")
    place: int  # of the inner stream among those that the owner has opened

    def __init__(self, agent: object, values: Values, owner: Owner) -> None:
        self.agent = agent
        self.values = values
        self.owner = owner
        self.inner_stream: AsyncIterator[object] | None = None

    def replace_stream(self, spec: HookSpec, layer: Layer, inner: StreamStep, values: Values) -> AsyncIterator[object]:
        """Return a stream that takes the place of that of the layer's last call."""
        refusal = running_stream(layer, spec)
        if getattr(self.inner_stream, "ag_running", False):
            raise refusal
        weak_stream: list[weakref.ref[AsyncIterator[object]]] = []
        stream = _replace_stream(inner, refusal, self.agent, values, self.owner, self.place, weak_stream)
        self.inner_stream = stream
        weak_stream.append(weakref.ref(stream))
        return stream

    def __del__(self) -> None:
        # Only noted here, where nothing can be awaited: the owner closes it as soon as it has control, in its task.
        opened = self.owner.opened
        if getattr(self.inner_stream, "ag_frame", None) is not None and self.place < len(opened):
            self.owner.abandoned.append((self.place, opened[self.place]))


def _stream_step(spec: HookSpec, layer: Layer, inner: StreamStep, checks: CheckedClasses) -> StreamStep:
    hook = layer.hook
    key_count = len(checks)

    class NextHandler(_StreamNextHandler):
        # A class for each layer, since reading a variable of the closure is cheaper than an attribute.
        __slots__ = ()

        def __call__(self, /, *args: object, **values: object) -> AsyncIterator[object]:
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
                return self.replace_stream(spec, layer, inner, values)
            self.place = len(owner.opened)
            self.inner_stream = stream = inner(self.agent, values, owner)
            owner.opened.append(stream)
            return stream

        def _refuse(self) -> NoReturn:
            raise uncalled_handler(layer, spec)

        __aiter__ = __await__ = __iter__ = _refuse

    def step(agent: object, values: Values, owner: Owner) -> AsyncIterator[object]:
        next_handler = NextHandler(agent, values, owner)
        stream: AsyncIterator[object] = hook(agent, values, next_handler)
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
            values[key] = value = spec.converters[key](value, owner.given.get(key))
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
    agent: object,
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
    stream = inner(agent, values, owner)
    owner.opened.append(stream)
    async for item in stream:
        yield item


# Call hooks


def _call_chain(spec: HookSpec, core: Function, layers: tuple[Layer, ...]) -> Function:
    terminal = spec.terminal

    def check(layer: Layer | None, depth: int, result: object, owner: Owner) -> None:
        """Check what the layer at a depth returned (`None` stands for the core), and give a stream to the owner."""
        if result.__class__ is terminal or (terminal is None and result is None):
            return
        if spec.item_types and _is_stream(result):
            owner.keep_returned(result, depth, layer)
        elif terminal is None or not isinstance(result, terminal):
            raise wrong_result(spec, layer, result)

    def innermost(agent: object, values: Values, owner: Owner) -> Awaitable[object]:
        result: Awaitable[object] = core(agent, **values)
        return result

    step: CallStep = innermost
    inner_layer: Layer | None = None  # whose result the next layer checks; `None` stands for the core
    checks: CheckedClasses = tuple((key, set()) for key in spec.keys)
    for depth, layer in reversed(list(enumerate(layers))):
        step = _call_step(spec, layer, depth, step, checks, partial(check, inner_layer, depth + 1))
        inner_layer = layer
    origins = origins_of(core, layers)

    async def entry(agent: object, /, **values: object) -> object:
        owner = Owner({**values})
        try:
            result = await step(agent, values, owner)
            check(inner_layer, 0, result, owner)
        except BaseException as error:  # a cancellation too: what was opened is closed before it leaves
            if isinstance(error, Exception):
                name_the_layer(error, spec, origins | owner.origin_by_code, layers)
            await owner.close(error)
            raise
        if not owner.opened:  # no stream was returned anywhere, as in most calls
            owner.is_closed = True
            return result
        if not _is_stream(result):
            await owner.close()
            return result
        return OwnedStream(spec, layers, origins, result, owner)

    return entry


def _call_step(
    spec: HookSpec,
    layer: Layer,
    depth: int,
    inner: CallStep,
    checks: CheckedClasses,
    check: Callable[[object, Owner], None],
) -> CallStep:
    hook = layer.hook
    key_count = len(checks)
    plain = type(None) if spec.terminal is None else spec.terminal

    def step(agent: object, values: Values, owner: Owner) -> Awaitable[object]:
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
                result = await inner(agent, overrides, owner)
            finally:
                running = False
            if result.__class__ is not plain:
                check(result, owner)
            return result

        call: Awaitable[object] = hook(agent, values, next_handler)
        return call

    return step


def _is_stream(result: object) -> TypeGuard[AsyncIterator[object]]:
    return hasattr(result, "__aiter__") and hasattr(result, "__anext__")


class OwnedStream:
    """A stream that a call returned, with everything that was opened for it; closing it closes all of that."""

    __slots__ = ("_items", "_owner")

    def __init__(
        self, spec: HookSpec, layers: tuple[Layer, ...], origins: Origins, stream: AsyncIterator[object], owner: Owner
    ) -> None:
        self._owner = owner
        self._items = self._read(spec, layers, origins, stream, owner)

    def __aiter__(self) -> AsyncIterator[object]:
        return self._items  # the generator itself: one call less per item

    def __anext__(self) -> Awaitable[object]:
        return self._items.__anext__()

    async def aclose(self) -> None:
        # A generator that was never started does not run its `finally`, so the owner is asked as well.
        try:
            await self._items.aclose()
        finally:
            await self._owner.close()

    @staticmethod  # a generator that held this object, which holds it, would not be closed as soon as both are dropped
    async def _read(
        spec: HookSpec, layers: tuple[Layer, ...], origins: Origins, stream: AsyncIterator[object], owner: Owner
    ) -> AsyncGenerator[object, None]:
        error = None
        item_types = spec.item_types
        try:
            async for item in stream:
                if not isinstance(item, item_types):
                    raise wrong_item(spec, layers, item)
                yield item
        except GeneratorExit:  # being closed is not an error, so one in the clean-up may be raised
            raise
        except BaseException as raised:  # named and raised again
            error = raised
            if isinstance(raised, Exception):
                name_the_layer(raised, spec, origins | owner.origin_by_code, layers)
            raise
        finally:
            try:
                await owner.close(error)
            finally:
                error = None  # error and frame would hold each other


# Transformers


def _transformer_chain(spec: HookSpec, core: Function, layers: tuple[Layer, ...]) -> Function:
    origins = origins_of(core, layers)

    async def entry(agent: object, /, **values: object) -> object:
        try:
            value: object = await core(agent, **values)
            for layer in layers:
                value = await layer.hook(agent, value)
                if not isinstance(value, spec.item_types):
                    raise wrong_value(spec, layer, value)
        except Exception as error:  # named and raised again
            name_the_layer(error, spec, origins, layers)
            raise
        return value

    return entry


_BUILDERS = {"stream": _stream_chain, "call": _call_chain, "transformer": _transformer_chain}
