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
from agentrt._runtime.chain.owned_stream import StreamStep, is_stream
from agentrt._runtime.chain.owner import Owner
from agentrt._runtime.chain.spec import Function, HookSpec, Notify, ObservableCore, Values

__all__ = ["OBSERVED_LAYERS", "LayerOutcome", "LayerRecord", "ObserveStep", "observed_layers"]

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
    and the core. Neither includes the time of a stream's reader.

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
    """One call of one layer, and its time so far."""

    __slots__ = (
        "agent",
        "entered_at",
        "inner_calls",
        "is_in_control",
        "notify",
        "own_ns",
        "own_since",
        "parent",
        "start",
        "total_ns",
    )
    start: LayerRecord

    def __init__(self, point: "_Point", agent: object, parent: "LayerCall | None", values: Values) -> None:
        self.notify = point.notify
        self.agent = agent
        self.parent = parent
        self.inner_calls = 0  # calls of inner layers in progress: their time is not this layer's own
        self.own_ns = self.total_ns = self.entered_at = self.own_since = 0
        self.is_in_control = False
        parent_id = None if parent is None else parent.start.call_id
        # A copy: the layer may change its dict.
        self.start = LayerRecord("begin", next(_call_ids), parent_id, point.hook, point.layer, point.place, {**values})
        point.notify(agent, self.start)
        self.enter()

    def enter(self) -> None:
        """Give control to the layer: it is called, or its stream is read or closed."""
        now = perf_counter_ns()
        parent = self.parent
        if parent is not None:
            if parent.is_in_control and not parent.inner_calls:
                parent.own_ns += now - parent.own_since
            parent.inner_calls += 1
        self.entered_at = self.own_since = now
        self.is_in_control = True

    def leave(self) -> None:
        """Take control back from the layer."""
        now = perf_counter_ns()
        self.is_in_control = False
        self.total_ns += now - self.entered_at
        if not self.inner_calls:
            self.own_ns += now - self.own_since
        parent = self.parent
        if parent is not None:
            parent.inner_calls -= 1
            parent.own_since = now

    def end(self, outcome: LayerOutcome, result: object = None) -> None:
        """Take control back for good, and notify the observers."""
        self.leave()
        start = self.start
        values = (start.call_id, start.parent, start.hook, start.layer, start.place, start.values)
        # Built directly, since `replace` would take longer than all the rest.
        self.notify(self.agent, LayerRecord("end", *values, result, outcome, self.own_ns, self.total_ns))


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
            call = self.begin(owner, values)
            try:
                stream = step(values, owner)
            except BaseException as error:
                call.end(_outcome_of(error))
                raise
            call.leave()
            return ObservedStream(stream, call)

        return observed

    def observe_call(self, step: Callable[[Values, Owner], Awaitable[object]], streams: bool) -> Function:
        async def observed(values: Values, owner: Owner) -> object:
            call = self.begin(owner, values)
            try:
                result = await step(values, owner)
            except BaseException as error:
                call.end(_outcome_of(error))
                raise
            if not (streams and is_stream(result)):
                call.end("returned", result)
                return result
            call.leave()
            # A stream that is passed on stays the same object, which the owner recognizes.
            if isinstance(result, ObservedStream):
                result.add(call)
                return result
            return ObservedStream(result, call)

        return observed

    def observe_change(self, change: Function, key: str) -> Function:
        async def observed(agent: object, *value: object, **values: object) -> object:
            call = LayerCall(self, agent, None, {key: value[0]} if value else values)
            try:
                result: object = await change(agent, *value, **values)
            except BaseException as error:
                call.end(_outcome_of(error))
                raise
            call.end("returned", result)
            return result

        return observed


class ObservedStream:
    """A stream that measures its layers; to the owner it looks like the inner stream."""

    __slots__ = ("_calls", "_items", "_last", "_stream")

    def __init__(self, stream: AsyncIterator[object], call: LayerCall) -> None:
        self._stream = self._items = stream
        self._calls = [call]  # innermost first
        self._last: object = None

    def add(self, call: LayerCall) -> None:
        """Measure another layer, which passed the stream on."""
        self._calls.append(call)

    def __getattr__(self, name: str) -> object:
        # Owners and layers see the attributes of the inner stream, such as whether a generator has ended.
        return getattr(self._stream, name)

    def __aiter__(self) -> "ObservedStream":
        self._items = aiter(self._stream)
        return self

    async def __anext__(self) -> object:
        for call in reversed(self._calls):
            call.enter()
        try:
            item = self._last = await anext(self._items)
        except BaseException as error:
            self._end(_outcome_of(error))
            raise
        for call in self._calls:
            call.leave()
        return item

    async def aclose(self) -> None:
        """Close the inner stream, which ends its calls."""
        aclose = getattr(self._stream, "aclose", None)
        if not self._calls:
            # It ended by itself, which closes a generator; other streams may still need closing.
            if aclose is not None:
                await aclose()
            return
        for call in reversed(self._calls):
            call.enter()
        try:
            if aclose is not None:
                await aclose()
        except BaseException as error:
            self._end(_outcome_of(error))
            raise
        self._end("closed")

    def _end(self, outcome: LayerOutcome) -> None:
        calls, self._calls = self._calls, []
        for call in calls:
            call.end(outcome, self._last)


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
