"""Guards that judge while a request is in progress."""

from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from math import inf

import anyio

from agentrt.agent import AgentBase
from agentrt.model import ChatResponse
from agentrt_middleware.attempts import close

MAX_READ_AHEAD = 10_000
"""Items of an answer that are kept in memory while guards judge; more than most answers have."""


_WITHDRAW_NOTHING = ("BudgetMiddleware", "GuardrailMiddleware", "RateLimitMiddleware")


def may_withdraw(agent: AgentBase) -> bool:
    """Say whether a layer may withdraw what it has passed on of an answer, as one that repeats requests does.

    Such an answer must not be read ahead: the event that withdraws its pieces would come before them.
    """
    return any(layer.emits and type(layer).__name__ not in _WITHDRAW_NOTHING for layer in agent.middlewares)


class GuardTime:
    """The seconds that a guard may take.

    Beside a request they are counted from its end: a judge may have to wait for the place that the request has in a
    rate limit.
    """

    def __init__(self, seconds: float, *, has_begun: bool = True) -> None:
        self.seconds = seconds
        self._has_begun = has_begun
        self._scope: anyio.CancelScope | None = None

    def begin(self) -> None:
        """Count from now on."""
        self._has_begun = True
        if self._scope is not None:
            self._scope.deadline = anyio.current_time() + self.seconds

    def limit(self) -> anyio.CancelScope:
        """Return a scope for one guard, which ends when its time is over."""
        self._scope = anyio.CancelScope(deadline=anyio.current_time() + self.seconds if self._has_begun else inf)
        return self._scope


class ReadAhead:
    """A stream of which the beginning is read while guards judge.

    If it were not read, it would keep its place in a rate limit, and a judge might wait for that place.
    """

    def __init__(self, stream: AsyncIterator[ChatResponse]) -> None:
        self._stream = stream
        self._pieces: deque[ChatResponse] = deque()

    async def read_while(self, is_needed: Callable[[], bool]) -> None:
        """Read until it is no longer needed, or nothing is left."""
        while is_needed() and len(self._pieces) < MAX_READ_AHEAD:
            try:
                self._pieces.append(await anext(self._stream))
            except StopAsyncIteration:
                return

    def __aiter__(self) -> "ReadAhead":
        return self

    async def __anext__(self) -> ChatResponse:
        return self._pieces.popleft() if self._pieces else await anext(self._stream)

    async def aclose(self) -> None:
        self._pieces.clear()
        await close(self._stream)


async def run_beside(judge: Callable[[], Awaitable[bool]], work: Callable[[], Awaitable[None]]) -> BaseException | None:
    """Run both to their ends, and cancel the work if the judge returns `False`; returns what one of them raised."""
    failure: BaseException | None = None
    cancelled = anyio.get_cancelled_exc_class()

    async def run_judge() -> None:
        nonlocal failure
        passes = False
        try:
            passes = await judge()
        except cancelled:
            raise
        except BaseException as error:  # noqa: BLE001  # returned below: a group would wrap it
            failure = error
        if not passes:
            group.cancel_scope.cancel()

    async with anyio.create_task_group() as group:
        group.start_soon(run_judge)
        try:
            await work()
        except cancelled:
            raise
        except BaseException as error:  # noqa: BLE001  # likewise
            failure = failure or error
            group.cancel_scope.cancel()  # nothing is left to judge for
    return failure
