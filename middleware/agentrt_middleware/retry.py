"""Retries: calls the model again after a transient error."""

from collections.abc import Callable
from random import Random
from time import monotonic
from typing import ClassVar

from agentrt.agent import AgentBase
from agentrt.errors import MalformedCall, RateLimited, Timeout, Transient
from agentrt.event import ModelCallRetryEvent
from agentrt.hooks import MiddlewareBase, ModelCallValues, NextModelCall
from agentrt.model import ChatResponse, ModelResult
from agentrt_middleware.attempts import add_note_once, make_attempts
from agentrt_middleware.validation import Backoff, ErrorChoice, check_number, choose_errors, retry_after_of

_MAX_SAVED_RETRIES = 10.0  # saved in quiet times
_RETRIES_PER_SECOND = 10.0 / 60.0  # granted even with few calls


class RetryMiddleware(MiddlewareBase):
    """Calls the model again, up to `max_retries` times, after an error of `retry_on`.

    `retry_on` is one or several error classes, or a function of the error. `CircuitOpen` and `RateLimitTimeout`, which
    our own middlewares raise, are retried only if `retry_on` names them. A stream that breaks off is retried as well:
    its text is withdrawn, and the next attempt continues the same stream. A `ModelCallRetryEvent` announces each retry
    before the wait for it.

    A wait is a random number of seconds: up to `initial_delay` the first time, twice that the second time, and so on
    up to `max_delay`. A provider's `retry_after` is always respected, up to a day. If the waits of one call would
    add up to more than `max_wait`, the error is raised at once. `budget` is the share of calls that all users of this
    middleware together may retry in the long run, so that retries do not keep an overloaded provider down; ten retries,
    and ten more per minute, are always granted. `None` removes the limit of the waits or of the retries.

    The error of the last attempt is raised unchanged, with a note that counts the attempts.
    """

    inherited = False
    emits = True
    wraps: ClassVar = {
        "CircuitBreakerMiddleware": "each attempt that fails counts",
        "RateLimitMiddleware": "each attempt waits for its turn",
        "TimeoutMiddleware": "each attempt has its own time",
    }

    def __init__(
        self,
        max_retries: int = 3,
        *,
        initial_delay: float = 0.5,
        max_delay: float = 30.0,
        max_wait: float | None = 120.0,
        retry_on: ErrorChoice = (RateLimited, Timeout, Transient, MalformedCall, OSError),
        budget: float | None = 0.2,
        clock: Callable[[], float] = monotonic,
        random: Random | None = None,
    ) -> None:
        check_number("RetryMiddleware(max_retries=...)", max_retries, least=0, whole=True)
        if max_wait is not None:
            check_number("RetryMiddleware(max_wait=...)", max_wait, least=0)
        if budget is not None:
            check_number("RetryMiddleware(budget=...)", budget, least=0)
        self.max_retries = max_retries
        self.max_wait = max_wait
        # Unchanged, since `repr` finds options by name.
        self.initial_delay, self.max_delay, self.retry_on, self.budget = initial_delay, max_delay, retry_on, budget
        self.backoff = Backoff("RetryMiddleware", initial_delay, max_delay, random)
        self.is_retried = choose_errors("RetryMiddleware(retry_on=...)", retry_on, our_refusals=False)
        self.retry_budget = None if budget is None else _RetryBudget(budget, clock)

    async def on_model_call(
        self, agent: AgentBase, input_kwargs: ModelCallValues, next_handler: NextModelCall
    ) -> ModelResult:
        if self.retry_budget is not None:
            self.retry_budget.earn()
        return await make_attempts(_RetriedCall(self, agent, input_kwargs, next_handler))


class _RetriedCall:
    """The attempts at one model call."""

    def __init__(
        self, retry: RetryMiddleware, agent: AgentBase, values: ModelCallValues, next_handler: NextModelCall
    ) -> None:
        self._retry = retry
        self._agent = agent
        self._values = values
        self._next_handler = next_handler
        self._failures = 0
        self._waited = 0.0

    async def start(self) -> ModelResult:
        return await self._next_handler(**self._values)

    def wait_after(self, error: Exception) -> float | None:
        self._failures += 1
        wait = self._retry.backoff.wait_after(self._failures, retry_after_of(error))
        refusal = self._refusal(error, wait)
        if refusal is not None:
            # Otherwise there were no retries, and none were intended.
            if self._failures > 1 or (self._retry.max_retries and self._retry.is_retried(error)):
                attempts = "1 attempt" if self._failures == 1 else f"{self._failures} attempts"
                add_note_once(error, f"agentrt: RetryMiddleware gave up after {attempts}: {refusal}")
            return None
        self._waited += wait
        # The event names only the error's type: its text is the provider's, and may hold a secret.
        self._agent.run.emit(ModelCallRetryEvent(type(error).__name__, self._failures, wait))
        return wait

    def accept(self, response: ChatResponse) -> ChatResponse:
        return response

    def _refusal(self, error: Exception, wait: float) -> str | None:
        """Return the reason against a further attempt, or `None`."""
        retry = self._retry
        if not retry.is_retried(error):
            return f"{type(error).__name__} is not retried"
        if self._failures > retry.max_retries:
            return f"max_retries={retry.max_retries}"
        if retry.max_wait is not None and self._waited + wait > retry.max_wait:
            return f"it would have waited for {self._waited + wait:.1f} s in all, and max_wait={retry.max_wait:g}"
        # Last, since this takes a retry from the budget.
        if retry.retry_budget is not None and not retry.retry_budget.spend():
            return "the retry budget is used up"
        return None


class _RetryBudget:
    """The retry budget: a share of the calls, and a few per minute."""

    __slots__ = ("_clock", "_saved", "_share", "_updated_at")

    def __init__(self, share: float, clock: Callable[[], float]) -> None:
        self._share = share
        self._clock = clock
        self._saved = _MAX_SAVED_RETRIES
        self._updated_at = clock()

    def earn(self) -> None:
        """Count a call."""
        self._saved = min(_MAX_SAVED_RETRIES, self._saved + self._share)

    def spend(self) -> bool:
        """Take one retry, if available; returns whether it was."""
        now = self._clock()
        self._saved = min(_MAX_SAVED_RETRIES, self._saved + (now - self._updated_at) * _RETRIES_PER_SECOND)
        self._updated_at = now
        if self._saved < 1.0:
            return False
        self._saved -= 1.0
        return True
