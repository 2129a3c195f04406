"""Calls that wait for one place between them: a semaphore on the floor, a rate limiter on agentrt."""

import anyio
import anyio.lowlevel

from agentrt_middleware.rate_limit.queue import Limiter
from agentrt_middleware.rate_limit.usage_window import RateLimits
from benchmarks.workloads.script import Workload, expect

__all__ = ["CALLS", "AgentQueue", "FloorQueue"]

CALLS = 400
CALLERS = 4


class FloorQueue(Workload):
    """On the floor: calls that go through one place, each waiting in its queue."""

    def __init__(self, calls: int = CALLS) -> None:
        self._calls_of_caller = range(calls // CALLERS)
        self._expected_order = [caller for _ in self._calls_of_caller for caller in range(CALLERS)]
        self._order: list[int] = []

    async def __call__(self) -> None:
        self._order.clear()
        place = anyio.Semaphore(1, fast_acquire=True)
        async with anyio.create_task_group() as callers, place:
            for caller in range(CALLERS):
                callers.start_soon(self._calls, caller, place)
                await anyio.lowlevel.checkpoint()
        expect(len(self._order), len(self._expected_order))

    async def _calls(self, caller: int, place: anyio.Semaphore) -> None:
        for _ in self._calls_of_caller:
            await place.acquire()
            self._order.append(caller)
            place.release()

    def check(self) -> None:
        expect(self._order, self._expected_order)


class AgentQueue(Workload):
    """On agentrt: the same through a rate limiter, where every second call is refunded and the others owe tokens."""

    def __init__(self, calls: int = CALLS) -> None:
        self._calls_of_caller = range(calls // CALLERS)
        self._expected_order = [caller for _ in self._calls_of_caller for caller in range(CALLERS)]
        self._order: list[int] = []
        self._limits = RateLimits(requests_per_minute=1e9, tokens_per_minute=1e9, max_concurrency=1)
        self._limiter = Limiter(self._limits)

    async def __call__(self) -> None:
        self._order.clear()
        self._limiter = Limiter(self._limits)
        async with anyio.create_task_group() as callers:
            lease = await self._limiter.acquire(100)
            for caller in range(CALLERS):
                callers.start_soon(self._calls, caller)
                await anyio.lowlevel.checkpoint()
            await lease.settle()
        expect(len(self._order), len(self._expected_order))

    async def _calls(self, caller: int) -> None:
        for number in self._calls_of_caller:
            lease = await self._limiter.acquire(100)
            self._order.append(caller)
            await lease.settle(1_000 if number % 2 else 10)

    def check(self) -> None:
        expect(self._order, self._expected_order)
        expect(self._limiter.usage.active, 0)
