"""Timeouts: limits the time of a model."""

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable
from math import inf
from typing import TypeVar

import anyio

from agentrt.agent import AgentBase
from agentrt.errors import MiddlewareConfigError, Timeout
from agentrt.hooks import MiddlewareBase, ModelCallValues, NextModelCall
from agentrt.model import ChatModelBase, ChatResponse, ModelResult
from agentrt_middleware.attempts import close
from agentrt_middleware.validation import check_number

_T = TypeVar("_T")
_SILENCES = {
    "first_chunk": "did not begin to answer for",
    "between_chunks": "said nothing more for",
    "total": "kept us waiting for more than",
}


class TimeoutMiddleware(MiddlewareBase):
    """Raises `Timeout` when a model takes too long, in seconds: at least one limit must be given.

    `first_chunk` limits the wait for the start of a streamed answer, `between_chunks` the wait for each further piece,
    and `total` all waiting of one call; a slow reader does not use it up. For a model that does not stream
    (`stream=False`) only `total` counts. The caller's own deadlines and cancellations are not touched.
    """

    inherited = False

    def __init__(
        self, *, first_chunk: float | None = None, between_chunks: float | None = None, total: float | None = None
    ) -> None:
        # Unchanged, since `repr` finds options by name.
        self.first_chunk, self.between_chunks, self.total = first_chunk, between_chunks, total
        limits = {"first_chunk": first_chunk, "between_chunks": between_chunks, "total": total}
        self._limits = {name: limit for name, limit in limits.items() if limit is not None}
        if not self._limits:
            raise MiddlewareConfigError(f"TimeoutMiddleware has no limit: give at least one of {', '.join(limits)}")
        for name, limit in self._limits.items():
            check_number(f"TimeoutMiddleware({name}=...)", limit)

    async def on_model_call(
        self, agent: AgentBase, input_kwargs: ModelCallValues, next_handler: NextModelCall
    ) -> ModelResult:
        waits = _LimitedWaits(self._limits, input_kwargs["current_model"])
        result = await waits.wait(next_handler(**input_kwargs))
        return result if isinstance(result, ChatResponse) else self._stream(result, waits)

    async def _stream(
        self, stream: AsyncIterator[ChatResponse], waits: "_LimitedWaits"
    ) -> AsyncGenerator[ChatResponse, None]:
        try:
            steps = aiter(stream)
            while True:
                try:
                    response = await waits.wait(anext(steps))
                except StopAsyncIteration:
                    return
                waits.begin_piece()
                yield response
        finally:
            # Before a `Timeout` reaches an outer retry: its next attempt may need the connection.
            await close(stream)


class _LimitedWaits:
    """The remaining time of one call.

    Counted down wait by wait, since no cancel scope may be open across a `yield`.
    """

    def __init__(self, limits: dict[str, float], model: ChatModelBase) -> None:
        self._limits = limits
        self._model = model.model
        self._name = "first_chunk"
        self._step = limits.get("first_chunk", inf) if model.stream else inf
        self._total = limits.get("total", inf)

    def begin_piece(self) -> None:
        """Switch to the limit for the next piece."""
        self._name = "between_chunks"
        self._step = self._limits.get("between_chunks", inf)

    async def wait(self, work: Awaitable[_T]) -> _T:
        """Return the result of `work`, or raise `Timeout` if it exceeds the remaining time."""
        started = anyio.current_time()
        # Not `fail_after`, whose `TimeoutError` would look like one of the work itself; and not
        # `move_on_after`, which would read the clock again.
        with anyio.CancelScope(deadline=started + min(self._step, self._total)):
            result = await work
            spent = anyio.current_time() - started
            self._step -= spent
            self._total -= spent
            return result
        name = self._name if self._step <= self._total else "total"
        limit = self._limits[name]
        raise Timeout(f"model {self._model!r} {_SILENCES[name]} {limit:g} s (TimeoutMiddleware({name}={limit:g}))")
