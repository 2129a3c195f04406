"""What a probe is notified of, and the steps that tell it: the compiler puts them in between the layers.

A layer is *in control* while its code, or code that it waits for, runs. A stream takes and gives back control at each
item: while its reader holds an item, no layer is in control, so a slow reader costs no layer any time.
"""

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, Literal, Protocol

from agentrt.chain.chains import Layer
from agentrt.chain.owned_stream import StreamStep, is_stream
from agentrt.chain.owner import Owner
from agentrt.chain.spec import Function, HookSpec, Values

__all__ = ["LayerCall", "LayerOutcome", "Probe", "ProbePoint", "ProbedStream"]

LayerOutcome = Literal["paused", "returned", "raised", "cancelled", "closed"]
"""How a layer gives back control: with an item, after which it is entered again, or for good.

A "closed" stream was left before its end. "cancelled" is everything that stops a reply from outside.
"""

_logger = logging.getLogger("agentrt")


class LayerCall:
    """One call of one layer; it is the same object from its first entry to its last leave.

    `layer` is the key of the middleware, and `None` for the core. `place` counts from the outermost layer, which has 0,
    to the core; in a transformer chain they run from the core on, in their order. `caller` is the call of the layer
    further out that called this one. `data` is for the probe, which may keep there what it knows of the call.
    """

    __slots__ = ("agent", "caller", "data", "hook", "layer", "place")

    def __init__(self, hook: str, layer: str | None, place: int, agent: object, caller: "LayerCall | None") -> None:
        self.hook = hook
        self.layer = layer
        self.place = place
        self.agent = agent
        self.caller = caller
        self.data: Any = None

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.layer or 'the core'} in {self.hook}>"


class Probe(Protocol):
    """Told when each layer gets control, and when it gives it back; `Agent(probe=...)` takes one.

    Both methods run inside the reply, between the layers: they must be quick. What they raise is logged, and changes
    nothing for the reply. The last `leave` of a call has another outcome than "paused", whatever ends it: an end, a
    short circuit, an error, a cancellation, or a reader who leaves early.
    """

    def enter(self, call: LayerCall, /) -> None:
        """Control goes to the layer: it is called, or its stream is read on or closed."""

    def leave(self, call: LayerCall, outcome: LayerOutcome, /) -> None:
        """Control comes back from the layer."""


class _Reporter:
    """Tells a probe, whatever the probe does with it."""

    __slots__ = ("_logged", "_probe")

    def __init__(self, probe: Probe) -> None:
        self._probe = probe
        self._logged: set[tuple[str, type]] = set()

    def enter(self, call: LayerCall) -> None:
        try:
            self._probe.enter(call)
        except Exception as error:  # noqa: BLE001  # the reply does not fail for those who look on
            self._log("enter", error)

    def leave(self, call: LayerCall, outcome: LayerOutcome) -> None:
        try:
            self._probe.leave(call, outcome)
        except Exception as error:  # noqa: BLE001  # as above
            self._log("leave", error)

    def _log(self, method: str, error: Exception) -> None:
        # Once, since it may fail at every item; the type alone, since the text may quote what is not for a log.
        kind = (method, type(error))
        if kind not in self._logged:
            self._logged.add(kind)
            _logger.error(
                "%s.%s failed, and the reply continues: %s", type(self._probe).__name__, method, type(error).__name__
            )


class ProbePoint:
    """The point in a chain where a probe is notified of one of its layers, or of the core."""

    __slots__ = ("_hook", "_layer", "_place", "_reporter", "_shape", "_streams")

    def __init__(self, probe: Probe, spec: HookSpec, layers: Sequence[Layer], layer: Layer | None) -> None:
        self._reporter = _Reporter(probe)
        self._hook = spec.name
        self._layer = None if layer is None else layer.key
        self._place = len(layers) if layer is None else layers.index(layer)
        self._shape = spec.shape
        self._streams = bool(spec.item_types)

    def wrap(self, step: Function) -> Any:
        """Return a step of this shape, as the compiler makes them, with the probe around it."""
        if self._shape == "stream":
            return self._wrap_stream(step)
        return self._wrap_call(step) if self._shape == "call" else self._wrap_change(step)

    def _wrap_stream(self, step: StreamStep) -> StreamStep:

        def probed(values: Values, owner: Owner) -> AsyncIterator[object]:
            call = self._begin(owner)
            try:
                stream = step(values, owner)
            except BaseException as error:
                self._reporter.leave(call, _outcome_of(error))
                raise
            self._reporter.leave(call, "paused")
            return ProbedStream(stream, owner, call, self._reporter)

        return probed

    def _wrap_call(self, step: Callable[[Values, Owner], Awaitable[object]]) -> Callable[..., Awaitable[object]]:

        async def probed(values: Values, owner: Owner) -> object:
            call = self._begin(owner)
            try:
                result = await step(values, owner)
            except BaseException as error:
                self._reporter.leave(call, _outcome_of(error))
                raise
            if not (self._streams and is_stream(result)):
                self._reporter.leave(call, "returned")
                return result
            self._reporter.leave(call, "paused")
            # A stream that is passed on stays the same object, by which the owner knows it.
            if isinstance(result, ProbedStream):
                result.add(call, self._reporter)
                return result
            return ProbedStream(result, owner, call, self._reporter)

        return probed

    def _wrap_change(self, change: Function) -> Function:

        async def probed(agent: object, *value: object, **values: object) -> object:
            call = LayerCall(self._hook, self._layer, self._place, agent, None)
            self._reporter.enter(call)
            try:
                result: object = await change(agent, *value, **values)
            except BaseException as error:
                self._reporter.leave(call, _outcome_of(error))
                raise
            self._reporter.leave(call, "returned")
            return result

        return probed

    def _begin(self, owner: Owner) -> LayerCall:
        calls, place = owner.layer_calls, self._place
        if calls is None:
            calls = owner.layer_calls = {}
        # The last call of the layer further out is the one that calls now, for it makes one at a time.
        call = calls[place] = LayerCall(self._hook, self._layer, place, owner.agent, calls.get(place - 1))
        self._reporter.enter(call)
        return call


class ProbedStream:
    """A stream that tells a probe of each step; to the owner it looks like the stream inside."""

    __slots__ = ("_calls", "_items", "_owner", "_stream")

    def __init__(self, stream: AsyncIterator[object], owner: Owner, call: LayerCall, reporter: _Reporter) -> None:
        self._stream = self._items = stream
        self._owner: Owner | None = owner
        self._calls = [(call, reporter)]  # innermost first

    def add(self, call: LayerCall, reporter: _Reporter) -> None:
        """Tell of a further layer, which has passed the stream on."""
        self._calls.append((call, reporter))

    def __getattr__(self, name: str) -> object:
        # Owners and layers see the stream inside: whether it is a generator that has ended, and what else it tells.
        return getattr(self._stream, name)

    def __aiter__(self) -> "ProbedStream":
        self._items = aiter(self._stream)
        return self

    async def __anext__(self) -> object:
        owner = self._owner  # noqa: F841  # `returning_layer` looks for it in the frame that reads a layer's stream
        self._enter()
        try:
            item = await anext(self._items)
        except BaseException as error:
            self._leave(_outcome_of(error))
            raise
        self._leave("paused")
        return item

    async def aclose(self) -> None:
        """Close the stream inside, which is notified as the end of its calls."""
        aclose = getattr(self._stream, "aclose", None)
        if not self._calls:
            # It has ended by itself, which a generator takes as closed; other streams may have something left to do.
            if aclose is not None:
                await aclose()
            return
        self._enter()
        try:
            if aclose is not None:
                await aclose()
        except BaseException as error:
            self._leave(_outcome_of(error))
            raise
        self._leave("closed")

    def _enter(self) -> None:
        for call, reporter in reversed(self._calls):
            reporter.enter(call)

    def _leave(self, outcome: LayerOutcome) -> None:
        for call, reporter in self._calls:
            reporter.leave(call, outcome)
        if outcome != "paused":
            self._calls, self._owner = [], None  # the owner has this stream, and the two would hold each other


def _outcome_of(error: BaseException) -> LayerOutcome:
    if isinstance(error, StopAsyncIteration):
        return "returned"
    if isinstance(error, GeneratorExit):
        return "closed"
    return "raised" if isinstance(error, Exception) else "cancelled"
