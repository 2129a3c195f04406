"""Stop calling a model that keeps failing, for a while."""

import logging
from collections.abc import Callable, Hashable
from time import monotonic
from typing import Any, ClassVar

from agentrt.errors import CircuitOpen, Timeout, Transient
from agentrt.hooks import MiddlewareBase, ModelCallValues, NextModelCall
from agentrt.model import ChatModelBase, ChatResponse, ModelResult
from agentrt_middleware.attempts import watch
from agentrt_middleware.validation import ErrorChoice, check_number, choose_errors, retry_after_of

__all__ = ["CircuitBreakerMiddleware"]

_logger = logging.getLogger("agentrt")


class CircuitBreakerMiddleware(MiddlewareBase):
    """Refuses calls of a model that has failed `failure_threshold` times in a row, with `CircuitOpen`.

    After `recovery_seconds`, or as long as the provider asked for (`retry_after`, a day at most) if that is longer, up
    to `half_open_probes` calls at a time are let through: when one brings an answer, all calls are; when one fails, the
    refusals begin again; one that is not over after `recovery_seconds` makes room for another. `trip_on` says which
    errors are failures; other errors, and calls that their reader leaves, say nothing either way. A stream counts when
    it is over.

    Calls of one model of one account count together, for all users of this middleware. `CircuitOpen.retry_after` is the
    time that is left. `clock` is in seconds and must never go back.
    """

    wrapped_by: ClassVar = ("TracingMiddleware", "ModelFallbackMiddleware", "RetryMiddleware")
    wraps: ClassVar = ("RateLimitMiddleware", "TimeoutMiddleware")

    def __init__(
        self,
        failure_threshold: int = 5,
        recovery_seconds: float = 30.0,
        *,
        half_open_probes: int = 1,
        trip_on: ErrorChoice = (Timeout, Transient, OSError),
        clock: Callable[[], float] = monotonic,
    ) -> None:
        check_number("CircuitBreakerMiddleware(failure_threshold=...)", failure_threshold, least=1, whole=True)
        check_number("CircuitBreakerMiddleware(recovery_seconds=...)", recovery_seconds)
        check_number("CircuitBreakerMiddleware(half_open_probes=...)", half_open_probes, least=1, whole=True)
        self.failure_threshold = failure_threshold
        self.recovery_seconds = recovery_seconds
        self.half_open_probes = half_open_probes
        self._is_failure = choose_errors("CircuitBreakerMiddleware(trip_on=...)", trip_on, our_own=False)
        self._clock = clock
        self._circuits: dict[Hashable, _Circuit] = {}

    async def on_model_call(
        self, agent: Any, input_kwargs: ModelCallValues, next_handler: NextModelCall
    ) -> ModelResult:
        circuit = self._circuit_of(input_kwargs["current_model"])
        return await watch(next_handler, input_kwargs, circuit.enter())

    def _circuit_of(self, model: ChatModelBase) -> "_Circuit":
        key = (type(model), model.account, model.model)
        circuit = self._circuits.get(key)
        if circuit is None:
            circuit = self._circuits[key] = _Circuit(self, model.model)
        return circuit


class _Circuit:
    """Whether calls of one model are let through.

    Closed: all are. Open, until a time: none is. Half open, after that time: some are, to see. Each change begins a new
    `era`, and what comes of a call that was let through in an earlier one does not count any more.
    """

    def __init__(self, layer: CircuitBreakerMiddleware, model: str) -> None:
        self._layer = layer
        self._model = model
        self._failures = 0
        self._open_until: float | None = None
        self._probes: dict[_Call, float] = {}  # when each of the calls that probe the model was let through
        self.era = 0

    def enter(self) -> "_Call":
        """Let a call through, or raise `CircuitOpen`."""
        if self._open_until is not None:
            now = self._layer._clock()
            left = self._open_until - now
            if left > 0:
                raise self._refusal(f"and may be called again in {left:.1f} s", left)
            if len(self._probes) >= self._layer.half_open_probes:
                self._forget_hanging(now)
            if len(self._probes) >= self._layer.half_open_probes:
                raise self._refusal("and a first call is finding out whether it is back", None)
            call = _Call(self, self._layer._is_failure)
            self._probes[call] = now
            return call
        return _Call(self, self._layer._is_failure)

    def _forget_hanging(self, now: float) -> None:
        oldest, begun = next(iter(self._probes.items()))
        if now - begun >= self._layer.recovery_seconds:
            del self._probes[oldest]

    def succeed(self) -> None:
        self._failures = 0
        if self._open_until is not None:
            self._open_until = None
            self._change()
            _logger.warning("model %r answers again: calls are let through", self._model)

    def fail(self, told: float | None) -> None:
        self._failures += 1
        if self._open_until is None and self._failures < self._layer.failure_threshold:
            return
        seconds = max(self._layer.recovery_seconds, told or 0.0)
        self._open_until = self._layer._clock() + seconds
        self._change()
        _logger.warning("model %r has failed %s times: no calls for %g s", self._model, self._failures, seconds)

    def leave(self, call: "_Call") -> None:
        """A call of this era is over."""
        self._probes.pop(call, None)

    def _change(self) -> None:
        self.era += 1
        self._probes.clear()

    def _refusal(self, when: str, left: float | None) -> CircuitOpen:
        error = CircuitOpen(f"model {self._model!r} was not called: it has failed {self._failures} times, {when}")
        error.retry_after = left
        return error


class _Call:
    """One call that was let through."""

    def __init__(self, circuit: _Circuit, is_failure: Callable[[Exception], bool]) -> None:
        self._circuit = circuit
        self._is_failure = is_failure
        self._era = circuit.era

    def see(self, response: ChatResponse) -> None:
        """Only the end counts."""

    def end(self, error: BaseException | None, *, is_whole: bool) -> None:
        circuit = self._circuit
        if circuit.era != self._era:
            return
        circuit.leave(self)
        if is_whole:
            circuit.succeed()
        elif isinstance(error, Exception) and self._is_failure(error):
            circuit.fail(retry_after_of(error))
