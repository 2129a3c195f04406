"""The compiler: the one place where middlewares become chains.

For each hook, `compile_chains` folds the layers around the core from the innermost outwards. What one *step* does is
fixed when the agent is built; what belongs to one entry into the chain (the agent, the values that flow, the owner) is
handed from step to step.
"""

import inspect
import weakref
from bisect import bisect_right
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from functools import partial
from itertools import chain, count
from types import CodeType
from typing import Any, NoReturn

from agentrt.chain.attribution import code_that_reads, name_the_layer
from agentrt.chain.chains import Chains, Layer
from agentrt.chain.check import check_middlewares, overrides, where
from agentrt.chain.owner import Owner
from agentrt.chain.spec import HookSpec
from agentrt.chain.violations import (
    call_is_running,
    chain_has_ended,
    no_terminal,
    not_called,
    positional_value,
    still_running,
    unfit_override,
    wrong_item,
    wrong_keys,
    wrong_override,
    wrong_result,
    wrong_value,
)
from agentrt.errors import ChainError

__all__ = ["compile_chains"]

Values = dict[str, Any]
StreamStep = Callable[[Any, Values, Owner], AsyncIterator[Any]]
CallStep = Callable[[Any, Values, Owner], Awaitable[Any]]
Known = tuple[tuple[str, set[type]], ...]
"""For each key the classes of values that have passed the check: a further value of one needs only a look."""

_MAX_KNOWN = 64  # a program may make any number of classes


def compile_chains(
    base: type, table: Sequence[HookSpec], cores: Mapping[str, Callable[..., Any]], middlewares: Sequence[Any]
) -> Chains:
    """Check the middlewares and compile one entry per hook that has a core.

    An entry is called as its core is: `entry(agent, **values)`. Raises `MiddlewareConfigError`.
    """
    middlewares = tuple(middlewares)
    check_middlewares(middlewares, base, table)
    keys = _assign_keys(middlewares)
    layers = {
        spec.name: tuple(
            Layer(each, getattr(each, spec.name), keys[id(each)], where(getattr(type(each), spec.name)))
            for each in middlewares
            if overrides(each, base, spec.name)
        )
        for spec in table
    }
    entries = {spec.name: _compile(spec, cores[spec.name], layers[spec.name]) for spec in table if spec.name in cores}
    return Chains(tuple(table), entries, layers, middlewares, keys)


def _assign_keys(middlewares: Sequence[Any]) -> dict[int, str]:
    keys = {id(each): each.key for each in middlewares if each.key is not None}
    for each in middlewares:
        if each.key is None:
            keys[id(each)] = _free_key(type(each).__name__, keys.values())
    return keys


def _free_key(name: str, taken: Collection[str]) -> str:
    numbered = (f"{name}#{number}" for number in count(2))
    return next(key for key in chain([name], numbered) if key not in taken)


def _compile(spec: HookSpec, core: Callable[..., Any], layers: tuple[Layer, ...]) -> Callable[..., Any]:
    if not layers:
        return core
    return _BUILDERS[spec.shape](spec, core, layers)


def _stream_chain(spec: HookSpec, core: Callable[..., Any], layers: tuple[Layer, ...]) -> Callable[..., Any]:
    def innermost(agent: Any, values: Values, owner: Owner) -> AsyncIterator[Any]:
        owner.core = stream = core(agent, **values)
        return stream  # type: ignore[no-any-return]  # cores are checked by their own signatures

    step: StreamStep = innermost
    checks = _known_classes(spec)
    for layer in reversed(layers):
        step = _stream_layer(spec, layer, step, checks)
    codes = _codes(core, layers)
    item_types, terminal = spec.item_types, spec.terminal
    known: set[type] = set()  # classes that have passed the check, for a cheaper look at each item

    async def entry(agent: Any, /, **values: Any) -> AsyncIterator[Any]:
        owner = Owner({**values})
        left = owner.left
        stream = step(agent, values, owner)
        owner.opened.append(stream)
        item = error = None
        try:
            async for item in stream:
                if item.__class__ not in known:
                    if not isinstance(item, item_types):
                        raise wrong_item(spec, layers, item)
                    known.add(item.__class__)
                if left:
                    await owner.close_left()
                yield item
            if terminal is not None and not isinstance(item, terminal):
                raise no_terminal(spec, layers, item)
        except GeneratorExit:  # being closed is no error, so one in the clean-up may be raised
            raise
        except BaseException as raised:  # named and raised again
            error = raised
            if isinstance(raised, Exception):
                name_the_layer(raised, spec, codes | {code_that_reads(owner.core): None}, layers)
            raise
        finally:
            try:
                await owner.close(error)
            finally:
                error = None  # error and frame would hold each other

    return entry


def _stream_layer(spec: HookSpec, layer: Layer, inner: StreamStep, checks: Known) -> StreamStep:
    hook = layer.hook
    key_count = len(checks)

    class NextHandler:
        """The `next_handler` of one layer in one entry into the chain."""

        __slots__ = ("agent", "handed", "owner", "place", "values")

        def __init__(self, agent: Any, values: Values, owner: Owner) -> None:
            self.agent = agent
            self.values = values
            self.owner = owner
            self.handed: Any = None

        def __call__(self, /, *args: Any, **values: Any) -> AsyncIterator[Any]:
            owner = self.owner
            if args or owner.is_closed:
                raise _wrong_call(spec, layer, args)
            if len(values) != key_count:
                values = _merge_values(spec, layer, self.values, values)
            try:
                for key, known in checks:
                    if values[key].__class__ not in known:
                        _check_value(spec, layer, key, values, known, owner)
            except KeyError:
                raise wrong_keys(spec, layer, {**self.values, **values}) from None
            if self.handed is not None:
                return _call_again(spec, layer, inner, self, values)
            self.place = len(owner.opened)
            self.handed = stream = inner(self.agent, values, owner)
            owner.opened.append(stream)
            return stream

        def _refuse(self) -> NoReturn:
            raise not_called(layer, spec)

        __aiter__ = __await__ = __iter__ = _refuse

        def __del__(self) -> None:
            # The layer's frame held the last reference, so the layer has stopped. What it left open is closed as soon
            # as the owner has control, in the owner's task.
            opened = self.owner.opened
            if getattr(self.handed, "ag_frame", None) is not None and self.place < len(opened):
                self.owner.left.append((self.place, opened[self.place]))

    def step(agent: Any, values: Values, owner: Owner) -> AsyncIterator[Any]:
        next_handler = NextHandler(agent, values, owner)
        stream: AsyncIterator[Any] = hook(agent, values, next_handler)
        if stream is next_handler.handed:  # passed on as it is, by a wrapper around the hook: nobody has left it
            next_handler.handed = None
        return stream

    return step


def _known_classes(spec: HookSpec) -> Known:
    return tuple((key, set()) for key in spec.keys)


def _merge_values(spec: HookSpec, layer: Layer, values: Values, overrides: Values) -> Values:
    """Return the overrides, filled up with the values that reached the layer."""
    merged = {**values, **overrides}
    if len(merged) != len(spec.keys):
        raise wrong_keys(spec, layer, merged)
    return merged


def _check_value(spec: HookSpec, layer: Layer, key: str, values: Values, known: set[type], owner: Owner) -> None:
    """Check a value of a class that is not known yet, and convert what is accepted in place of one.

    A value that the chain was entered with is not a layer's fault, and is left to the core to judge.
    """
    value, wanted = values[key], spec.types.get(key, (object,))
    if not isinstance(value, wanted) and key in spec.converters:
        try:
            values[key] = value = spec.converters[key](value, owner.given.get(key))
        except ValueError as error:
            raise unfit_override(spec, layer, key, error) from None
    if not isinstance(value, wanted):
        if value is not owner.given.get(key):
            raise wrong_override(spec, layer, key, value)
    elif len(known) < _MAX_KNOWN:
        known.add(value.__class__)


def _wrong_call(spec: HookSpec, layer: Layer, args: tuple[Any, ...]) -> ChainError:
    return positional_value(layer, spec, args) if args else chain_has_ended(layer, spec)


def _call_again(spec: HookSpec, layer: Layer, inner: StreamStep, handler: Any, values: Values) -> AsyncIterator[Any]:
    complaint = still_running(layer, spec)
    if getattr(handler.handed, "ag_running", False):
        raise complaint
    own: list[weakref.ref[Any]] = []
    handler.handed = stream = _after_closing(inner, complaint, handler.agent, values, handler.owner, handler.place, own)
    own.append(weakref.ref(stream))
    return stream


async def _after_closing(
    inner: StreamStep, complaint: ChainError, agent: Any, values: Values, owner: Owner, place: int, own: list[Any]
) -> AsyncIterator[Any]:
    """Take the place of the stream of an earlier call, once that is closed with everything under it.

    `own` holds this generator, weakly: a plain reference would keep it, and with it the layer's frame, alive.
    """
    if any(getattr(stream, "ag_running", False) for stream in owner.opened[place:]):
        raise complaint
    await owner.close_from(place)
    owner.opened.append(own[0]())
    stream = inner(agent, values, owner)
    owner.opened.append(stream)
    async for item in stream:
        yield item


def _call_chain(spec: HookSpec, core: Callable[..., Any], layers: tuple[Layer, ...]) -> Callable[..., Any]:
    check = _result_check(spec)

    def innermost(agent: Any, values: Values, owner: Owner) -> Awaitable[Any]:
        return core(agent, **values)  # type: ignore[no-any-return]  # cores are checked by their own signatures

    step: CallStep = innermost
    by: Layer | None = None
    checks = _known_classes(spec)
    for place, layer in reversed(list(enumerate(layers))):
        step = _call_layer(spec, layer, place, step, checks, partial(check, by, place + 1))
        by = layer
    codes = _codes(core, layers)

    async def entry(agent: Any, /, **values: Any) -> Any:
        owner = Owner({**values})
        try:
            result = await step(agent, values, owner)
            check(by, 0, result, owner)
        except BaseException as error:  # whatever it is, what was opened is closed before it leaves
            if isinstance(error, Exception):
                name_the_layer(error, spec, codes | owner.makers, layers)
            await owner.close(error)
            raise
        if not owner.opened:
            owner.is_closed = True
            return result
        if not _is_stream(result):
            await owner.close()
            return result
        return OwnedStream(spec, layers, codes, result, owner)

    return entry


def _call_layer(
    spec: HookSpec, layer: Layer, place: int, inner: CallStep, checks: Known, check: Callable[[Any, Owner], None]
) -> CallStep:
    hook = layer.hook
    key_count = len(checks)
    plain = type(None) if spec.terminal is None else spec.terminal

    def step(agent: Any, values: Values, owner: Owner) -> Awaitable[Any]:
        running: bool | None = None  # until the first call

        async def next_handler(*args: Any, **overrides: Any) -> Any:
            nonlocal running
            if args or owner.is_closed:
                raise _wrong_call(spec, layer, args)
            if len(overrides) != key_count:
                overrides = _merge_values(spec, layer, values, overrides)
            try:
                for key, known in checks:
                    if overrides[key].__class__ not in known:
                        _check_value(spec, layer, key, overrides, known, owner)
            except KeyError:
                raise wrong_keys(spec, layer, {**values, **overrides}) from None
            if running:
                raise call_is_running(layer, spec)
            try:
                is_further, running = running is not None, True
                if is_further:
                    await _close_handed(spec, layer, place, owner)
                result = await inner(agent, overrides, owner)
            finally:
                running = False
            if result.__class__ is not plain:
                check(result, owner)
            return result

        return hook(agent, values, next_handler)  # type: ignore[no-any-return]  # checked at construction

    return step


async def _close_handed(spec: HookSpec, layer: Layer, place: int, owner: Owner) -> None:
    """Close the streams that the layer's last call handed out, and everything under them."""
    first = bisect_right(owner.places, place)
    if any(getattr(stream, "ag_running", False) for stream in owner.opened[first:]):
        raise still_running(layer, spec)
    await owner.close_from(first)


def _result_check(spec: HookSpec) -> Callable[[Layer | None, int, Any, Owner], None]:
    """Return the check of what the layer at a place returned, which also hands a stream to the owner.

    The core's is the last place. A place has one stream at most: a further call first closes all that are further in.
    """
    terminal = spec.terminal

    def check(by: Layer | None, place: int, result: Any, owner: Owner) -> None:
        if result.__class__ is terminal or (terminal is None and result is None):
            return
        if spec.item_types and _is_stream(result):
            if not any(stream is result for stream in owner.opened):  # one that is only handed on is there already
                # An outer layer's stream may be there as well, if its reader makes a further call.
                first = bisect_right(owner.places, place)
                owner.places.insert(first, place)
                owner.opened.insert(first, result)
                code = code_that_reads(result)
                # Objects of one class that two layers return have the same code, and nothing tells whose one is. Of a
                # generator the frame does.
                is_shared = owner.makers.get(code, by) is not by and not hasattr(result, "ag_code")
                owner.makers[code] = None if is_shared else by
        elif terminal is None or not isinstance(result, terminal):
            raise wrong_result(spec, by, result)

    return check


class OwnedStream:
    """A stream that a call returned, with everything that was opened for it; closing it closes all of that."""

    __slots__ = ("_items", "_owner")

    def __init__(
        self, spec: HookSpec, layers: tuple[Layer, ...], codes: dict[CodeType, Any], stream: Any, owner: Owner
    ) -> None:
        self._owner = owner
        self._items = _owned_items(spec, layers, codes, stream, owner)

    def __aiter__(self) -> AsyncIterator[Any]:
        return self._items  # the generator itself: one call less per item

    def __anext__(self) -> Awaitable[Any]:
        return self._items.__anext__()

    async def aclose(self) -> None:
        # A generator that was never started does not run its `finally`, so the owner is asked as well.
        try:
            await self._items.aclose()
        finally:
            await self._owner.close()


async def _owned_items(
    spec: HookSpec, layers: tuple[Layer, ...], codes: dict[CodeType, Any], stream: Any, owner: Owner
) -> AsyncGenerator[Any, None]:
    error = None
    item_types = spec.item_types
    try:
        async for item in stream:
            if not isinstance(item, item_types):
                raise wrong_item(spec, layers, item)
            yield item
    except GeneratorExit:  # being closed is no error, so one in the clean-up may be raised
        raise
    except BaseException as raised:  # named and raised again
        error = raised
        if isinstance(raised, Exception):
            name_the_layer(raised, spec, codes | owner.makers, layers)
        raise
    finally:
        try:
            await owner.close(error)
        finally:
            error = None  # error and frame would hold each other


def _transformer_chain(spec: HookSpec, core: Callable[..., Any], layers: tuple[Layer, ...]) -> Callable[..., Any]:
    codes = _codes(core, layers)

    async def entry(agent: Any, /, **values: Any) -> Any:
        try:
            value = await core(agent, **values)
            for layer in layers:
                value = await layer.hook(agent, value)
                if not isinstance(value, spec.item_types):
                    raise wrong_value(spec, layer, value)
        except Exception as error:  # named and raised again
            name_the_layer(error, spec, codes, layers)
            raise
        return value

    return entry


_BUILDERS = {"stream": _stream_chain, "call": _call_chain, "transformer": _transformer_chain}


def _is_stream(result: Any) -> bool:
    return hasattr(result, "__aiter__") and hasattr(result, "__anext__")


def _codes(core: Callable[..., Any], layers: tuple[Layer, ...]) -> dict[CodeType, Any]:
    codes: dict[CodeType, Any] = {}
    for layer in layers:
        for function in (layer.hook, inspect.unwrap(layer.hook)):
            code = getattr(function, "__code__", None)
            if code is not None:
                codes[code] = layer
    code = getattr(inspect.unwrap(core), "__code__", None)
    if code is not None:
        codes[code] = None
    return codes
