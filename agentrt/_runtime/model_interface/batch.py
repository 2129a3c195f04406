"""Batches: many requests that a provider answers within a day, at a lower price."""

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import anyio

from agentrt._runtime.concurrency.reaper import Reaper
from agentrt._runtime.options import check_seconds
from agentrt._runtime.representation import never_raises
from agentrt.errors import Malformed, ModelError, RateLimited, Timeout, Transient
from agentrt.message import Msg
from agentrt.types import ChatResponse, JSONSchema, ToolChoice

BATCH_SECONDS = 50 * 3600.0
"""The default limit for the wait: a provider ends a batch after 24 hours, Google after 48."""

POLL_SECONDS = 5.0
"""The default of the first pause between two questions for the status."""

_LONGEST_PAUSE = 60.0
_PAUSE_GROWTH = 1.5
_MAX_FAILURES = 10  # in a row
_PASSING = (RateLimited, Timeout, Transient)


def check_wait(poll_seconds: object, max_wait: object) -> None:
    """Raise `ConfigError` for a pause or a limit that is not a number of seconds."""
    check_seconds("batch(poll_seconds=...)", poll_seconds)
    check_seconds("batch(max_wait=...)", max_wait)


@dataclass(frozen=True, slots=True)
class BatchRequest:
    """One request of a batch: the arguments of one call of the model."""

    messages: Sequence[Msg]
    tools: Sequence[JSONSchema] | None = None
    tool_choice: ToolChoice | str | None = None


@dataclass(frozen=True, slots=True)
class BatchResult:
    """The result of one request of a batch: a `response` as a call of the model returns it, or an `error`.

    `index` is the position of the request in the list that was submitted. `cost` is in US dollars, at the price of a
    batch; `None` if no price is known, or the provider did not count the tokens.
    """

    index: int
    response: ChatResponse | None = None
    error: ModelError | None = None
    cost: float | None = None


@dataclass(frozen=True, slots=True)
class BatchStatus:
    """The status of a batch; the counts of a batch in progress may be behind.

    A batch that "failed" was refused as a whole. The results of an "expired" or "cancelled" one have an error for each
    request that was not answered in time.
    """

    state: Literal["in_progress", "completed", "failed", "expired", "cancelled"]
    total: int
    succeeded: int
    failed: int


class BatchAPI(Protocol):
    """The batch API of a provider, for one model."""

    source: str

    async def fetch(self, id: str) -> dict[str, Any]:
        """Return the provider's record of a batch."""

    def status(self, record: dict[str, Any]) -> BatchStatus:
        """Return the status in a record."""

    def results(self, record: dict[str, Any]) -> AsyncGenerator[BatchResult, None]:
        """Yield the results of a batch that has ended, in any order; raises `Rejected` for one that failed."""

    async def cancel(self, id: str) -> None:
        """Ask the provider to stop a batch."""


class Batch:
    """A batch that was submitted; `id` is the provider's.

    `async for result in batch` waits until the batch has ended, and yields its results as they are read, in the
    provider's order; `await batch.wait()` returns all of them in the order of the requests. Each reads the results from
    the beginning, so both may be used several times, and by several tasks at once.

    The wait ends with `Timeout` after the `max_wait` of the batch. Failures that may pass, ten in a row, do not end it.
    """

    def __init__(self, api: BatchAPI, id: str, *, total: int, poll_seconds: float, max_wait: float) -> None:
        self.id = id
        self._api = api
        self._total = total
        self._poll_seconds = poll_seconds
        self._max_wait = max_wait

    @never_raises
    def __repr__(self) -> str:
        return f"<Batch {self.id!r} of {self._api.source}>"

    async def status(self) -> BatchStatus:
        """Return the status, which the provider is asked for once."""
        return self._api.status(await self._api.fetch(self.id))

    async def cancel(self) -> None:
        """Ask the provider to stop the batch, and return at once; requests that it has answered stay answered."""
        await self._api.cancel(self.id)

    async def wait(self) -> list[BatchResult]:
        """Wait until the batch has ended, and return all results in the order of the requests.

        Raises `Rejected` for a batch that was refused as a whole.
        """
        return sorted([result async for result in self], key=lambda result: result.index)

    def __aiter__(self) -> AsyncIterator[BatchResult]:
        return _DroppableResults(self._results())

    async def _results(self) -> AsyncGenerator[BatchResult, None]:
        record = await self._until_ended()
        status = self._api.status(record)
        total = self._total or status.total
        yielded: set[int] = set()
        failures = 0
        while True:
            count = len(yielded)
            try:
                # A connection that was cut is opened again, and sends everything again.
                async with aclosing(self._api.results(record)) as results:
                    async for result in results:
                        if result.index >= total > 0:
                            raise Malformed(
                                f"{self._api.source}: the batch {self.id!r} has {total} requests, and a result of "
                                f"request {result.index}"
                            )
                        if result.index not in yielded:
                            yielded.add(result.index)
                            yield result
                break
            except _PASSING as error:
                failures = 1 if len(yielded) > count else failures + 1
                if failures > _MAX_FAILURES:
                    raise
                await anyio.sleep(max(error.retry_after or 0, self._poll_seconds))
        for index in range(total):
            if index not in yielded:
                yield BatchResult(index, error=self._missing_result(status.state))

    def _missing_result(self, state: str) -> ModelError:
        source = self._api.source
        if state == "expired":
            return expired_error(source)
        if state == "cancelled":
            return cancelled_error(source)
        return Malformed(f"{source}: the batch {self.id!r} has no result for this request")

    async def _until_ended(self) -> dict[str, Any]:
        deadline = anyio.current_time() + self._max_wait
        pause, failures = self._poll_seconds, 0
        while True:
            delay = pause
            try:
                record = await self._api.fetch(self.id)
                failures = 0
                if self._api.status(record).state != "in_progress":
                    return record
            except _PASSING as error:
                failures += 1
                if failures > _MAX_FAILURES:
                    raise
                delay = max(pause, error.retry_after or 0)
            seconds_left = deadline - anyio.current_time()
            if seconds_left <= 0:
                raise Timeout(
                    f"{self._api.source}: the batch {self.id!r} has not ended within {self._max_wait:g} s: wait for it "
                    f"again with resume_batch({self.id!r}), or give max_wait=..."
                )
            await anyio.sleep(min(delay, seconds_left))
            pause = min(pause * _PAUSE_GROWTH, max(_LONGEST_PAUSE, self._poll_seconds))


class _DroppableResults:
    """Results whose reader may leave by a plain `break`: the generator, and its connection, is closed at once."""

    def __init__(self, results: AsyncGenerator[BatchResult, None]) -> None:
        self._results = results
        self._reaper: Reaper | None = None

    def __aiter__(self) -> AsyncIterator[BatchResult]:
        return self

    async def __anext__(self) -> BatchResult:
        self._reaper = self._reaper or Reaper()  # here, inside an event loop
        return await anext(self._results)

    async def aclose(self) -> None:
        await self._results.aclose()

    def __del__(self) -> None:
        # Nothing but scheduling here. Trio warns of a generator that is collected before its end.
        if self._reaper is not None and getattr(self._results, "ag_frame", None) is not None:
            self._reaper.reap(self._results)


def expired_error(source: str) -> Timeout:
    """Return the error of a request that was not answered before its batch expired."""
    return Timeout(f"{source}: the batch expired before this request was answered: submit the request again")


def cancelled_error(source: str) -> ModelError:
    """Return the error of a request that was not answered before its batch was cancelled."""
    return ModelError(f"{source}: the batch was cancelled before this request was answered")
