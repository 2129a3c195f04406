"""Hooks under a limit: each step of a layer has its seconds, and a failure means what `on_failure` says.

A scope is opened for each step and never spans a `yield`. Of a failure only the layer's own counts: what comes from
further in passes as it is.
"""

from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from functools import partial
from types import CodeType
from typing import Any, NoReturn

from anyio import CancelScope

from agentrt._runtime.chain.attribution import add_origin_note, code_that_reads
from agentrt._runtime.chain.chains import Layer
from agentrt._runtime.chain.owner import is_stream
from agentrt._runtime.chain.spec import Function, HookSpec, Values
from agentrt._runtime.chain.terms.clock import OwnTime, count_own_time
from agentrt._runtime.chain.terms.entries import Limit
from agentrt.errors import LayerTimeout


def limit_hook(spec: HookSpec, layer: Layer, limit: Limit) -> Function:
    """Return the layer's hook under a limit."""
    limited = _LimitedHook(spec, layer, limit)
    if spec.shape == "stream":
        return limited.stream
    return limited.call if spec.shape == "call" else limited.change


class _LimitedHook:
    """One hook of one layer, and its limit."""

    __slots__ = ("_layer", "limit", "spec")

    def __init__(self, spec: HookSpec, layer: Layer, limit: Limit) -> None:
        self.spec = spec
        self.limit = limit
        self._layer = layer

    def stream(self, agent: Any, values: Values, next_handler: Function) -> AsyncIterator[object]:
        """Enter a stream hook."""
        inside = _InnerCalls(agent, values, self.limit, next_handler)
        return _LimitedStream(self, inside, self._layer.hook(agent, values, inside.open_stream))

    async def call(self, agent: Any, values: Values, next_handler: Function) -> object:
        """Enter a call hook."""
        inside = _InnerCalls(agent, values, self.limit, next_handler)
        step = partial(self._layer.hook, agent, values, inside.call)
        result, failure = await self.take_step(inside, step)
        if failure is not None:
            return await self._result_after(failure, inside)
        stream = inside.stream
        if stream is not None and result is stream:  # passed on: nothing of the layer is left in between
            inside.stream = None
            return stream.source
        return _LimitedStream(self, inside, result) if is_stream(result) else result

    async def change(self, agent: Any, value: object) -> object:
        """Enter a transformer."""
        key = self.spec.keys[-1]
        inside = _InnerCalls(agent, {key: value}, self.limit, lambda: None)  # it calls nothing
        changed, failure = await self.take_step(inside, partial(self._layer.hook, agent, value))
        if failure is None:
            return changed
        return inside.reached[key] if self.limit.on_failure == "skip" else self.refuse(failure, inside)

    async def take_step(
        self, inside: "_InnerCalls", step: Callable[[], Awaitable[Any]]
    ) -> tuple[Any, Exception | None]:
        """Take one step of the layer; returns its result, or how the layer has failed.

        Raises what came from further in.
        """
        failure: Exception | None = None
        result: object = None
        with CancelScope() as scope:
            inside.clock.begin(scope)
            try:
                result = await count_own_time(step(), inside.clock)
            except StopAsyncIteration:
                raise
            except Exception as error:
                if error is inside.failure:
                    raise
                failure = error
            finally:
                inside.clock.end()
        if scope.cancelled_caught or (failure is not None and scope.cancel_called):
            name, hook, seconds = self._layer.name, self.spec.name, self.limit.seconds
            words = f"{name} took longer than {seconds:g} s of its own in {hook}"
            remedy = 'give it more time, or let a failure mean "skip" or "deny"'
            late = LayerTimeout(f"{words}: {remedy}", layer=name, hook=hook, seconds=seconds)
            add_origin_note(late, f"{self._layer.name} in {self.spec.name} ({self._layer.where})")
            late.__cause__ = failure
            failure = late
        return result, failure

    def refuse(self, failure: Exception, inside: "_InnerCalls") -> object:
        """Return the hook's refusal, or raise the failure."""
        if self.limit.on_failure != "deny":
            raise failure
        assert self.spec.denied is not None
        why = f"took longer than {self.limit.seconds:g} s" if isinstance(failure, LayerTimeout) else "failed"
        return self.spec.denied(inside.agent, inside.reached, f"{self._layer.name}, which guards this, {why}")

    async def _result_after(self, failure: Exception, inside: "_InnerCalls") -> object:
        """Return the result of a call in which the layer has failed."""
        if self.limit.on_failure != "skip":
            return self.refuse(failure, inside)
        if not inside.is_called:
            return await inside.next_handler(**inside.reached)
        if inside.failure is not None:
            raise inside.failure
        if not inside.has_result:  # the layer itself has cancelled the call, which must not run twice
            raise failure
        return inside.result if inside.stream is None else inside.stream.source


class _InnerCalls:
    """The inner calls of one entry of a layer: the clock stands still meanwhile.

    `reached` holds the values that reached the layer, which may change its own dict and lists. `failure` is the last
    error that came from further in, `result` that of the last call, and `stream` the last stream. `keeps_taken` says
    that what is taken of it and not given is needed once the layer has failed.
    """

    __slots__ = (
        "agent",
        "clock",
        "failure",
        "has_result",
        "is_called",
        "keeps_taken",
        "next_handler",
        "reached",
        "result",
        "stream",
    )

    def __init__(self, agent: object, values: Values, limit: Limit, next_handler: Function) -> None:
        self.agent = agent
        self.reached = {key: [*value] if value.__class__ is list else value for key, value in values.items()}
        self.clock = OwnTime(limit.seconds)
        self.keeps_taken = limit.on_failure == "skip"
        self.next_handler = next_handler
        self.is_called = self.has_result = False
        self.failure: Exception | None = None
        self.result: object = None
        self.stream: _InnerStream | None = None

    def open_stream(self, *args: object, **values: object) -> "_InnerStream":
        """Call the `next_handler` of a stream hook."""
        source = self.next_handler(*args, **values)
        self.is_called, self.failure = True, None
        self.stream = _InnerStream(source, self)
        return self.stream

    async def call(self, *args: object, **values: object) -> object:
        """Call the `next_handler` of a call hook."""
        self.is_called, self.has_result, self.failure, self.stream = True, False, None, None
        self.clock.stop()
        try:
            self.result = await self.next_handler(*args, **values)
        except Exception as error:
            self.failure = error
            raise
        finally:
            self.clock.resume()
        self.has_result = True
        if not is_stream(self.result):
            return self.result
        self.stream = _InnerStream(self.result, self)
        return self.stream


class _InnerStream:
    """The inner stream as a limited layer reads it: what it has taken is known, and its clock stands meanwhile.

    `taken` holds the items that the layer has taken, and not given yet. A layer that closes the stream may do so
    because it has failed, when the rest is still to pass: the stream is closed once the layer's step is known to be in
    order, see `close_if_left`.
    """

    __slots__ = ("_inside", "_is_left", "_items", "source", "taken")

    def __init__(self, source: AsyncIterator[object], inside: "_InnerCalls") -> None:
        self.source = source
        self.taken: deque[object] = deque()
        self._items: AsyncIterator[object] | None = None
        self._inside = inside
        self._is_left = False

    def __aiter__(self) -> "_InnerStream":
        return self

    async def __anext__(self) -> object:
        if self._is_left:
            raise StopAsyncIteration
        inside = self._inside
        if self._items is None:
            self._items = aiter(self.source)
        inside.clock.stop()
        try:
            item = await anext(self._items)
        except StopAsyncIteration:
            raise
        except Exception as error:
            inside.failure = error
            raise
        finally:
            inside.clock.resume()
        if inside.keeps_taken:
            self.taken.append(item)
        return item

    async def aclose(self) -> None:
        """Leave the stream."""
        self._is_left = True

    async def athrow(self, error: BaseException | type[BaseException]) -> NoReturn:
        """Leave the stream and raise the error."""
        self._is_left = True
        raise error

    async def close_if_left(self) -> None:
        """Close the stream, if the layer has."""
        aclose = getattr(self.source, "aclose", None)
        if self._is_left and aclose is not None:
            await aclose()

    def give(self, item: object) -> None:
        """Note that the layer has given an item: the one that it took, or one of its class in its place.

        What it took before that one, it has dropped.
        """
        taken = self.taken
        if taken and taken[0] is item:  # as nearly always
            taken.popleft()
            return
        place = next((place for place, one in enumerate(taken) if one is item), None)
        if place is None:
            same_class = [place for place, one in enumerate(taken) if one.__class__ is item.__class__]
            place = same_class[-1] if same_class else -1
        for _ in range(place + 1):
            taken.popleft()

    async def rest(self) -> AsyncGenerator[object, None]:
        """Yield what the layer has taken and not given, and then what is left of the stream."""
        while self.taken:
            yield self.taken.popleft()
        async for item in self.source if self._items is None else self._items:
            yield item


class _LimitedStream:
    """The stream of a limited layer. To the owner of the chain it looks like the generator of the layer."""

    __slots__ = ("__weakref__", "_hook", "_inside", "_last", "_rest", "_stream", "ag_code", "ag_running")

    def __init__(self, hook: _LimitedHook, inside: _InnerCalls, stream: AsyncIterator[object]) -> None:
        self._hook = hook
        self._inside: _InnerCalls | None = inside  # `None` after the end, so that the inner stream is known to be left
        self._stream: Any = stream
        self._rest: AsyncIterator[object] | None = None
        self._last: object = None
        self.ag_code: CodeType | None = code_that_reads(stream)
        self.ag_running = False

    @property
    def ag_frame(self) -> object | None:
        return None if self._inside is None else self

    def __aiter__(self) -> "_LimitedStream":
        return self

    async def __anext__(self) -> object:
        inside = self._inside
        if inside is None:
            raise StopAsyncIteration
        if self.ag_running:
            raise RuntimeError("this stream is being read by another task: one task reads it at a time")
        self.ag_running = True
        try:
            item = await (self._next_of_layer(inside) if self._rest is None else anext(self._rest))
        except BaseException:
            self._inside = inside.stream = None  # it refers to what is inside, which only a collector could free
            raise
        finally:
            self.ag_running = False
        self._last = item
        return item

    async def _next_of_layer(self, inside: _InnerCalls) -> object:
        item, failure = await self._hook.take_step(inside, self._stream.__anext__)
        stream = inside.stream
        if failure is None:
            if stream is not None:
                stream.give(item)
                await stream.close_if_left()
            return item
        if self._hook.limit.on_failure == "skip":
            self._rest = await self._without_layer(inside, failure)
            return await anext(self._rest)
        if self._has_given_last():  # too late for another one
            raise failure
        item = self._hook.refuse(failure, inside)
        self._rest = _items_of()
        return item

    async def _without_layer(self, inside: _InnerCalls, failure: Exception) -> AsyncIterator[object]:
        """Return what would come now if the layer were not there; raises its failure if it has given parts of that."""
        if inside.failure is not None:
            raise inside.failure
        if inside.stream is not None:
            return inside.stream.rest()
        if self._hook.spec.shape == "stream":
            return _items_of() if self._has_given_last() else aiter(inside.next_handler(**inside.reached))
        if self._last is not None or (inside.is_called and not inside.has_result):
            raise failure
        result = inside.result if inside.is_called else await inside.next_handler(**inside.reached)
        return aiter(result) if is_stream(result) else _items_of(result)

    def _has_given_last(self) -> bool:
        spec = self._hook.spec
        return spec.shape == "stream" and spec.terminal is not None and isinstance(self._last, spec.terminal)

    async def aclose(self) -> None:
        """Close the layer's stream: its clean-up has the time of a step."""
        inside, self._inside = self._inside, None
        if inside is None:
            return
        if self._rest is not None:
            aclose = getattr(self._rest, "aclose", None)
        else:
            aclose = getattr(self._stream, "aclose", None)
        if aclose is None:
            return
        self.ag_running = True
        try:
            _, failure = await self._hook.take_step(inside, aclose)
        finally:
            self.ag_running = False
        stream, inside.stream = inside.stream, None
        if stream is not None:
            await stream.close_if_left()
        if failure is not None and self._hook.limit.on_failure == "raise":
            raise failure


async def _items_of(*items: object) -> AsyncGenerator[object, None]:
    for item in items:
        yield item
