"""A circuit breaker: stops calling a model that keeps failing, for a while."""

import logging
from collections.abc import Callable, Hashable
from time import monotonic
from typing import ClassVar

from agentrt.agent import AgentBase
from agentrt.errors import CircuitOpen, Timeout, Transient
from agentrt.hooks import MiddlewareBase, ModelCallValues, NextModelCall
from agentrt.model import ChatResponse, ModelResult
from agentrt_middleware.attempts import watch
from agentrt_middleware.validation import ErrorChoice, check_number, choose_errors, retry_after_of

_logger = logging.getLogger("agentrt")


class CircuitBreakerMiddleware(MiddlewareBase):
    """Refuses calls of a model that has failed `failure_threshold` times in a row, with `CircuitOpen`.

    The circuit stays open for `recovery_seconds`, or for the provider's `retry_after` (a day at most) if that is
    longer. Then up to `half_open_probes` calls at a time are let through. If one succeeds, the circuit closes;
    if one fails, it opens again. A probe that is not over after `recovery_seconds` makes room for another. `trip_on`
    says which errors are failures; other errors, and abandoned calls, change nothing. A stream counts
    when it is over.

    Calls of one model of one account count together, for all users of this middleware. `CircuitOpen.retry_after` is the
    time that is left. `clock` is in seconds and must never go back.
    """

    inherited = True

    wraps: ClassVar = {
        "RateLimitMiddleware": "a call that is refused waits for no turn",
        "TimeoutMiddleware": "a model that is too slow has failed",
    }

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
        self.trip_on = trip_on  # for `repr`, which finds options by their names
        self.is_failure = choose_errors("CircuitBreakerMiddleware(trip_on=...)", trip_on, our_refusals=False)
        self.clock = clock
        self._circuits: dict[Hashable, _Circuit] = {}

    async def on_model_call(
        self, agent: AgentBase, input_kwargs: ModelCallValues, next_handler: NextModelCall
    ) -> ModelResult:
        if agent.run.is_replay:  # a recorded failure says nothing of the model today
            return await next_handler(**input_kwargs)
        model = input_kwargs["current_model"]
        key = (type(model), model.account, model.model)
        circuit = self._circuits.get(key)
        if circuit is None:
            circuit = self._circuits[key] = _Circuit(self, model.model)
        return await watch(next_handler, input_kwargs, circuit.admit())


class _Circuit:
    """The state of the circuit of one model.

    Closed: all calls pass. Open, until a certain time: none. Half open, after that time: a few, as probes. Each change
    starts a new `era`, and outcomes of calls from an earlier era no longer count.
    """

    def __init__(self, breaker: CircuitBreakerMiddleware, model: str) -> None:
        self.breaker = breaker
        self.era = 0
        self._model = model
        self._failures = 0
        self._open_until: float | None = None  # `None` while closed
        self._probes: dict[_AdmittedCall, float] = {}  # with their start times, oldest first

    def admit(self) -> "_AdmittedCall":
        """Let a call through, or raise `CircuitOpen`."""
        call = _AdmittedCall(self)
        if self._open_until is None:
            return call
        now = self.breaker.clock()
        remaining = self._open_until - now
        if remaining > 0:
            raise self._refusal(f"and may be called again in {remaining:.1f} s", remaining)
        if len(self._probes) >= self.breaker.half_open_probes:
            # A hanging probe must not keep the circuit open for ever.
            oldest, admitted_at = next(iter(self._probes.items()))
            if now - admitted_at >= self.breaker.recovery_seconds:
                del self._probes[oldest]
        if len(self._probes) >= self.breaker.half_open_probes:
            raise self._refusal("and another call is finding out whether it answers again", None)
        self._probes[call] = now
        return call

    def succeed(self) -> None:
        self._failures = 0
        if self._open_until is not None:
            self._open_until = None
            self._begin_era()
            _logger.warning("model %r answers again: calls are let through", self._model)

    def fail(self, retry_after: float | None) -> None:
        self._failures += 1
        # A failure while the circuit is open comes from a probe, and reopens it at once.
        if self._open_until is None and self._failures < self.breaker.failure_threshold:
            return
        seconds = max(self.breaker.recovery_seconds, retry_after or 0.0)
        self._open_until = self.breaker.clock() + seconds
        self._begin_era()
        _logger.warning("model %r has failed %s times: no calls for %g s", self._model, self._failures, seconds)

    def release(self, call: "_AdmittedCall") -> None:
        """Make room for another probe: a call of this era is over."""
        self._probes.pop(call, None)

    def _begin_era(self) -> None:
        self.era += 1
        self._probes.clear()

    def _refusal(self, when: str, retry_after: float | None) -> CircuitOpen:
        error = CircuitOpen(f"model {self._model!r} was not called: it has failed {self._failures} times, {when}")
        error.retry_after = retry_after
        return error


class _AdmittedCall:
    def __init__(self, circuit: _Circuit) -> None:
        self._circuit = circuit
        self._era = circuit.era

    def see(self, response: ChatResponse) -> None:
        """Do nothing: only the end counts."""

    def end(self, error: BaseException | None, *, is_whole: bool) -> None:
        circuit = self._circuit
        if circuit.era != self._era:
            return  # the circuit has changed since
        circuit.release(self)
        if is_whole:
            circuit.succeed()
        elif isinstance(error, Exception) and circuit.breaker.is_failure(error):
            circuit.fail(retry_after_of(error))
