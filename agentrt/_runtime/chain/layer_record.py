"""Records of layer calls for observers, and the steps between layers that make them, which the compiler inserts.

A layer is *in control* while its code, or code that it waits for, runs. A stream gets and returns control at each item:
while its reader holds an item, no layer is in control, so a slow reader costs no layer any time.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from itertools import count
from time import perf_counter_ns
from typing import Any, Literal

from agentrt._runtime.chain.chains import Layer
from agentrt._runtime.chain.owner import Owner, StreamStep, is_stream
from agentrt._runtime.chain.spec import Function, HookSpec, Notify, ObservableCore, Values

LayerOutcome = Literal["returned", "raised", "cancelled", "closed"]
"""The end of a layer call; a "closed" stream was left before its end, "cancelled" is a stop from outside."""

ObserveStep = Callable[[Any, HookSpec, Sequence[Layer], Layer | None], Any]
"""Returns the observed step of a layer, or of the core for `None`."""

_call_ids = count(1)


@dataclass(slots=True, repr=False, eq=False)
class LayerRecord:
    """The start or the end of a layer call; both have the same `call_id`, which is unique in the process.

    `layer` is the key of the middleware, `None` for the core. `place` counts from 0, the outermost layer, to the core;
    transformers run from the core on, in their order. `parent` is the `call_id` of the next outer layer, which made
    this call. `values` are those that reached the layer, before it could change them.

    The other fields are set at the "end". `result` is the return value of a call, or the last item of a stream.
    `total_ns` is the time that the layer was in control, with everything that it called; `own_ns` excludes inner layers
    and the core, and is 0 if they took longer, because a background task reads them. Neither includes the time of a
    stream's reader.

    The record shares objects with the reply: do not change them.
    """

    kind: Literal["begin", "end"]
    call_id: int
    parent: int | None
    hook: str
    layer: str | None
    place: int
    values: dict[str, Any]
    result: Any = None
    outcome: LayerOutcome | None = None
    own_ns: int = 0
    total_ns: int = 0

    def __repr__(self) -> str:  # the values are a whole conversation
        return f"<LayerRecord {self.kind!r} of {self.layer or 'the core'} in {self.hook}>"


class LayerCall:
    """One call of one layer, and the time for which the layer was in control so far."""

    start: LayerRecord
    # Defaults of the class, since most calls set few of these.
    _ns = earlier_ns = 0
    _stream: "ObservedStream | None" = None
    # The latest call of the next layer; `earlier_ns` is the time of those before, since a layer makes one at a time.
    inner: "LayerCall | None" = None

    def __init__(self, point: "_Point", agent: object, outer: "LayerCall | None", values: Values) -> None:
        self._notify = point.notify
        self._agent = agent
        parent_id = None
        if outer is not None:
            parent_id = outer.start.call_id
            if outer.inner is not None:
                outer.earlier_ns += outer.inner.total_ns
            outer.inner = self
        # A copy: the layer may change its dict.
        start = LayerRecord("begin", next(_call_ids), parent_id, point.hook, point.layer, point.place, {**values})
        self.start = start
        point.notify(agent, start)

    @property
    def total_ns(self) -> int:
        """How long the layer was in control, with all that it called."""
        return self._ns if self._stream is None else self._ns + self._stream.read_ns

    def leave(self, since: int, stream: "ObservedStream") -> None:
        """Take back the control that the layer has had `since` then; it returned a stream, whose reader gives it."""
        # The layer may have read a part of the stream that it passes on.
        self._ns = perf_counter_ns() - since - stream.read_ns
        self._stream = stream

    def end(self, outcome: LayerOutcome, since: int, result: object = None) -> None:
        """Take back the control for good, and notify the observers."""
        self._ns += perf_counter_ns() - since
        total_ns = self.total_ns
        own_ns = total_ns - self.earlier_ns
        # A layer that fails ends before the stream that it has read: the owner closes that afterwards.
        if self.inner is not None:
            own_ns -= self.inner.total_ns
        start = self.start
        values = (start.call_id, start.parent, start.hook, start.layer, start.place, start.values)
        # Inner layers may take longer than this one, if it reads their stream in a background task.
        times = (own_ns if own_ns > 0 else 0, total_ns)
        # Built directly, since `replace` would take longer than all the rest.
        self._notify(self._agent, LayerRecord("end", *values, result, outcome, *times))


class _Point:
    """The place in a chain where observers are notified of one of its layers, or of the core."""

    __slots__ = ("hook", "layer", "notify", "place")

    def __init__(self, notify: Notify, spec: HookSpec, layers: Sequence[Layer], layer: Layer | None) -> None:
        self.notify = notify
        self.hook = spec.name
        self.layer = None if layer is None else layer.key
        self.place = len(layers) if layer is None else layers.index(layer)

    def begin(self, owner: Owner, values: Values) -> LayerCall:
        calls, place = owner.layer_calls, self.place
        if calls is None:
            calls = owner.layer_calls = {}
        # The outer layer's latest call is the caller, since it makes one call at a time.
        call = calls[place] = LayerCall(self, owner.agent, calls.get(place - 1), values)
        return call

    def observe_stream(self, step: StreamStep) -> StreamStep:
        def observed(values: Values, owner: Owner) -> AsyncIterator[object]:
            call, since = self.begin(owner, values), perf_counter_ns()
            try:
                stream = step(values, owner)
            except BaseException as error:
                call.end(_outcome_of(error), since)
                raise
            return ObservedStream(stream, call, since)

        return observed

    def observe_call(self, step: Callable[[Values, Owner], Awaitable[object]], streams: bool) -> Function:
        async def observed(values: Values, owner: Owner) -> object:
            call, since = self.begin(owner, values), perf_counter_ns()
            try:
                result = await step(values, owner)
            except BaseException as error:
                call.end(_outcome_of(error), since)
                raise
            if not (streams and is_stream(result)):
                call.end("returned", since, result)
                return result
            # A stream that is passed on stays the same object, which the owner recognizes.
            if isinstance(result, ObservedStream):
                result.add(call, since)
                return result
            return ObservedStream(result, call, since)

        return observed

    def observe_change(self, change: Function, key: str) -> Function:
        async def observed(agent: object, *value: object, **values: object) -> object:
            call = LayerCall(self, agent, None, {key: value[0]} if value else values)
            since = perf_counter_ns()
            try:
                result: object = await change(agent, *value, **values)
            except BaseException as error:
                call.end(_outcome_of(error), since)
                raise
            call.end("returned", since, result)
            return result

        return observed


class ObservedStream:
    """A stream that measures its layers; to the owner it looks like the inner stream.

    `read_ns` is how long it has been read, not counting the time of its reader.
    """

    __slots__ = ("_calls", "_items", "_last", "_stream", "read_ns")

    def __init__(self, stream: AsyncIterator[object], call: LayerCall, since: int) -> None:
        self._stream = self._items = stream
        self._calls: list[LayerCall] = []  # innermost first
        self._last: object = None
        self.read_ns = 0
        self.add(call, since)

    def add(self, call: LayerCall, since: int) -> None:
        """Measure the layer that returned the stream: it made it, or passed it on."""
        self._calls.append(call)
        call.leave(since, self)

    def __getattr__(self, name: str) -> object:
        # Owners and layers see the attributes of the inner stream, such as whether a generator has ended.
        return getattr(self._stream, name)

    def __aiter__(self) -> "ObservedStream":
        self._items = aiter(self._stream)
        return self

    async def __anext__(self) -> object:
        # The clock is read twice for each item and layer, and nothing else is called: most of the cost is here.
        since = perf_counter_ns()
        try:
            item = self._last = await anext(self._items)
        except BaseException as error:
            self._end(_outcome_of(error), since)
            raise
        self.read_ns += perf_counter_ns() - since
        return item

    async def aclose(self) -> None:
        """Close the inner stream, which ends its calls."""
        aclose = getattr(self._stream, "aclose", None)
        since = perf_counter_ns()
        try:
            # One that ended by itself, too: generators are closed by then, but other streams may not be.
            if aclose is not None:
                await aclose()
        except BaseException as error:
            self._end(_outcome_of(error), since)
            raise
        self._end("closed", since)

    def _end(self, outcome: LayerOutcome, since: int) -> None:
        # Let go of the calls, which hold this stream: a circle would wait for the garbage collector.
        calls, self._calls = self._calls, []
        for call in calls:
            call.end(outcome, since, self._last)


def _outcome_of(error: BaseException) -> LayerOutcome:
    if isinstance(error, StopAsyncIteration):
        return "returned"
    if isinstance(error, GeneratorExit):
        return "closed"
    return "raised" if isinstance(error, Exception) else "cancelled"


def observed_layers(notify: Notify) -> ObserveStep:
    """Return the function that puts observers around each step of a chain."""

    def observe(step: Any, spec: HookSpec, layers: Sequence[Layer], layer: Layer | None) -> Any:
        point = _Point(notify, spec, layers, layer)
        if spec.shape == "stream":
            return point.observe_stream(step)
        if spec.shape == "call":
            return point.observe_call(step, bool(spec.item_types))
        return point.observe_change(step, spec.keys[-1])

    return observe


OBSERVED_LAYERS = ObservableCore(None, observed_layers)
"""The core of the hook that observes layers: without observers, chains have no extra steps."""
