"""Work that runs while the consumer of a stream waits.

A generator must not hold a task group or a cancel scope while it yields, so work that has to proceed between its items
runs in a *background task*: one task that owns the scope, and that the consumer's side always stops and waits for.
"""

import logging
import math
from collections.abc import Awaitable, Callable, Hashable
from contextvars import ContextVar
from typing import Any, Generic, TypeVar

import anyio

from agentrt.concurrency.event_loop import run_shielded, spawn
from agentrt.concurrency.mailbox import Mailbox
from agentrt.errors import AgentRTError

__all__ = ["BackgroundTask", "enclosing_replies"]

enclosing_replies: ContextVar[frozenset[Hashable]] = ContextVar("agentrt_enclosing_replies", default=frozenset())
"""The replies that the current task is working for; not their ids, which two conversations may share."""

_TaskResult = TypeVar("_TaskResult")
_logger = logging.getLogger("agentrt")
_MAX_STOP_SECONDS = 10.0


class BackgroundTask(Generic[_TaskResult]):
    """Runs one coroutine function in a task of its own; iterating gives the items of its mailbox until it has ended.

        async with BackgroundTask(reply, mailbox, main) as task:
            async for event in task:
                yield event
            result = await task.outcome()

    The task gets the deadline of the code that enters the block, unless `has_deadline` is false. Leaving the block, for
    whatever reason, stops the task and waits for it, for a bounded time.
    """

    __slots__ = (
        "_error",
        "_has_deadline",
        "_is_over",
        "_mailbox",
        "_main",
        "_reply",
        "_result",
        "_scope",
        "_stopped",
    )

    def __init__(
        self,
        reply: Hashable,
        mailbox: Mailbox,
        main: Callable[[], Awaitable[_TaskResult]],
        *,
        has_deadline: bool = True,
    ) -> None:
        self._reply = reply
        self._mailbox = mailbox
        self._main = main
        self._has_deadline = has_deadline
        self._is_over = False
        self._stopped: anyio.Event | None = None
        self._result: tuple[_TaskResult] | None = None
        self._error: BaseException | None = None

    async def __aenter__(self) -> "BackgroundTask[_TaskResult]":
        self._mailbox.is_read = True  # before the task begins, which may emit at once
        # A task of its own does not inherit the deadline of the scopes that its reader is in.
        deadline = anyio.current_effective_deadline() if self._has_deadline else math.inf
        self._scope = anyio.CancelScope(deadline=deadline)
        spawn(self._run, self._end)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._mailbox.is_read = False
        if self._is_over:
            return
        # Before the cancellation, which may end the task at once; shielded, since the reader may be cancelled as well.
        self._stopped = anyio.Event()
        self._scope.cancel()
        if not await run_shielded(_MAX_STOP_SECONDS, self._stopped.wait):
            _logger.error("a tool or middleware did not stop within %s s of being cancelled", _MAX_STOP_SECONDS)

    def __aiter__(self) -> "BackgroundTask[_TaskResult]":
        return self

    # Not an async generator: a reader that stops early would leave one for the event loop to close.
    async def __anext__(self) -> Any:
        mailbox = self._mailbox
        items = mailbox.items
        while not items:
            mailbox.admit_waiting()  # only now that all was taken, so that they are not woken for one place each
            if self._is_over:  # not before the mailbox is empty: what was put last is taken, too
                raise StopAsyncIteration
            await mailbox.wait()
        return items.popleft()

    async def outcome(self) -> _TaskResult:
        """Return what the coroutine returned, or raise what it raised."""
        if self._error is not None:
            raise self._error
        if self._result is None:
            # Our own deadline, which the task shares, is the usual reason; then the checkpoint raises.
            await anyio.lowlevel.checkpoint()
            raise AgentRTError("a task of the runtime was cancelled from outside")
        return self._result[0]

    async def _run(self) -> None:
        # The task has a copy of its reader's context, so this is not seen outside of it.
        enclosing_replies.set(enclosing_replies.get() | {self._reply})
        try:
            with self._scope:
                self._result = (await self._main(),)
        except anyio.get_cancelled_exc_class():
            raise
        except BaseException as error:  # noqa: BLE001  # raised where the reader asks for the outcome
            self._error = error
        finally:
            self._end()

    def _end(self) -> None:
        # Called a second time when asyncio reports the task as done, which alone happens to one that was cancelled
        # before its first step.
        self._is_over = True
        self._mailbox.wake()
        if self._stopped is not None:
            self._stopped.set()
