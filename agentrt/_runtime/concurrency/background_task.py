"""Work that runs while the consumer of a stream waits.

A generator must not hold a task group or a cancel scope while it yields, so work that has to proceed between its items
runs in a *background task*: one task that owns the scope, and that the consumer's side always stops and waits for.
"""

import logging
import math
from collections.abc import Awaitable, Callable, Coroutine, Generator, Hashable
from contextvars import ContextVar, copy_context
from functools import partial
from types import coroutine
from typing import Any, Generic, TypeVar

import anyio

from agentrt._runtime.concurrency.event_loop import (
    Event,
    current_deadline,
    in_event_loop,
    new_cancel_scope,
    new_event,
    run_shielded,
    spawn_and_step,
)
from agentrt._runtime.concurrency.mailbox import Mailbox
from agentrt.errors import AgentRTError

enclosing_replies: ContextVar[tuple[Hashable, ...]] = ContextVar("agentrt_enclosing_replies", default=())
"""The replies that the current task is working for, innermost last; not their ids, which two conversations may share.
"""

_TaskResult = TypeVar("_TaskResult")
_logger = logging.getLogger("agentrt")
_MAX_STOP_SECONDS = 10.0


class BackgroundTask(Generic[_TaskResult]):
    """Runs one coroutine function in a task of its own; iterating gives the items of its mailbox until it has ended.

        async with BackgroundTask(reply, mailbox, main) as task:
            async for event in task:
                yield event
            result = await task.outcome()

    On asyncio the task begins as the block is entered: work that never waits is over by then. The task gets the
    deadline of the code that enters the block, unless `has_deadline` is false. Leaving the block, for whatever reason,
    stops the task and waits for it, for a bounded time.

    Work in several parts may use up to `max_tasks` tasks; each runs the same function, and so takes the next part
    when it is done with one. A further task is started while `has_more` says that no task has taken some part: on
    asyncio that is when the last one waits, so parts that never wait need one task for all of them. None is started
    after an error.
    """

    __slots__ = (
        "_error",
        "_has_deadline",
        "_has_more",
        "_mailbox",
        "_main",
        "_max_tasks",
        "_reply",
        "_results",
        "_running",
        "_scopes",
        "_stopped",
    )

    def __init__(
        self,
        reply: Hashable,
        mailbox: Mailbox,
        main: Callable[[], Awaitable[_TaskResult]],
        *,
        has_deadline: bool = True,
        max_tasks: int = 1,
        has_more: Callable[[], object] = bool,
    ) -> None:
        self._reply = reply
        self._mailbox = mailbox
        self._main = main
        self._has_deadline = has_deadline
        self._max_tasks = max_tasks
        self._has_more = has_more
        self._running = 0
        self._scopes: list[Any] = []
        self._stopped: Event | None = None
        self._results: list[_TaskResult] = []
        self._error: BaseException | None = None

    async def __aenter__(self) -> "BackgroundTask[_TaskResult]":
        self._mailbox.is_read = True  # before the task begins, which may emit at once
        # A task of its own does not inherit the deadline of the scopes that its reader is in.
        deadline = current_deadline() if self._has_deadline else math.inf
        while True:
            scope = new_cancel_scope(deadline)
            self._scopes.append(scope)
            self._running += 1
            if spawn_and_step(partial(self._run, scope)):
                try:
                    await anyio.lowlevel.checkpoint()
                except BaseException:
                    await self.__aexit__()
                    raise
            if self._error is not None or len(self._scopes) >= self._max_tasks or not self._has_more():
                return self

    async def __aexit__(self, kind: object = None, *_: object) -> None:
        self._mailbox.is_read = False
        if not self._running:
            return
        if kind is GeneratorExit and not in_event_loop():  # the event loop is gone, and the task with it
            return
        # Before the cancellation, which may end the task at once; shielded, since the reader may be cancelled as well.
        self._stopped = new_event()
        self._cancel()
        if not await run_shielded(_MAX_STOP_SECONDS, self._stopped.wait):
            _logger.error("a tool or middleware did not stop within %s s of being cancelled", _MAX_STOP_SECONDS)

    def __aiter__(self) -> "BackgroundTask[_TaskResult]":
        return self

    # Not an async generator: a reader that stops early would leave one for the event loop to close.
    async def __anext__(self) -> Any:
        mailbox = self._mailbox
        while not mailbox.items:
            mailbox.admit_waiting()  # only now that all was taken, so that they are not woken for one place each
            if not self._running:  # not before the mailbox is empty: what was put last is taken, too
                raise StopAsyncIteration
            await mailbox.wait()
        return mailbox.items.popleft()

    async def outcome(self) -> _TaskResult:
        """Return what the coroutine returned, or raise what it raised."""
        if self._error is not None:
            raise self._error
        if len(self._results) < len(self._scopes):
            # Our own deadline, which the task shares, is the usual reason; then the checkpoint raises.
            await anyio.lowlevel.checkpoint()
            raise AgentRTError("a task of the runtime was cancelled from outside")
        return self._results[0]

    async def _run(self, scope: anyio.CancelScope) -> None:
        # The task has a copy of its reader's context, so this is not seen outside of it.
        enclosing = enclosing_replies.get()
        if self._reply not in enclosing:
            enclosing_replies.set((*enclosing, self._reply))
        try:
            with scope:
                self._results.append(await self._main())
        except BaseException as error:  # raised where the reader asks for the outcome
            if isinstance(error, anyio.get_cancelled_exc_class()):
                raise
            self._error = self._error or error
            self._cancel()  # its neighbours, whose results nobody will get
        finally:
            self._end()

    def _cancel(self) -> None:
        for scope in self._scopes:
            scope.cancel()

    def _end(self) -> None:
        self._running -= 1
        if self._running:
            return
        self._mailbox.wake()
        if self._stopped is not None:
            self._stopped.set()


@coroutine
def run_in_own_context(work: Coroutine[Any, Any, _TaskResult]) -> Generator[Any, Any, _TaskResult]:
    """Await the work with a copy of the current context, as in a task of its own."""
    context, step = copy_context(), work.send
    value: Any = None
    while True:
        try:
            awaited = context.run(step, value)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]  # what the coroutine returns
        finally:
            value = None  # an error's traceback holds this frame: they would keep each other alive
        try:
            step, value = work.send, (yield awaited)
        except BaseException as error:  # noqa: BLE001  # the work's, as if it were awaited here
            step, value = work.throw, error
