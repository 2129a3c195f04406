"""Work beside the consumer of a stream.

A generator must not hold a task group or cancel scope while it yields, so whatever has to run beside its consumer runs
in a *background task*: one task that owns the scope, and that the consumer's side always stops and waits for.
"""

import logging
import math
from collections.abc import Awaitable, Callable, Hashable
from contextvars import ContextVar
from typing import Any

import anyio

from agentrt.concurrency.event_loop import run_shielded, spawn
from agentrt.concurrency.mailbox import Mailbox
from agentrt.errors import AgentRTError

__all__ = ["BackgroundTask", "enclosing_replies"]

enclosing_replies: ContextVar[frozenset[Hashable]] = ContextVar("agentrt_enclosing_replies", default=frozenset())
"""The replies that the current task is working for; not their ids, which two conversations may share."""

_logger = logging.getLogger("agentrt")
_STOP_SECONDS = 10.0


class BackgroundTask:
    """Runs one coroutine function in a task of its own, and tells the mailbox's reader when it is over.

        async with BackgroundTask(reply, mailbox, main) as host:
            while await host.running():
                for event in mailbox.take():
                    yield event
            result = await host.outcome()

    The task has the deadline of whoever enters the block, unless it is to have none. Leaving the block stops the task
    and waits for it, for a bounded time, whatever the reason for leaving.
    """

    __slots__ = (
        "_error",
        "_has_deadline",
        "_mailbox",
        "_main",
        "_over",
        "_reply",
        "_result",
        "_returned",
        "_scope",
        "_stopped",
    )

    def __init__(
        self, reply: Hashable, mailbox: Mailbox, main: Callable[[], Awaitable[Any]], *, has_deadline: bool = True
    ) -> None:
        self._reply = reply
        self._mailbox = mailbox
        self._main = main
        self._has_deadline = has_deadline
        self._over = False
        self._stopped: anyio.Event | None = None
        self._returned = False
        self._result: Any = None
        self._error: BaseException | None = None

    async def __aenter__(self) -> "BackgroundTask":
        self._mailbox.is_read = True
        deadline = anyio.current_effective_deadline() if self._has_deadline else math.inf
        self._scope = anyio.CancelScope(deadline=deadline)
        spawn(self._run, self._end)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._mailbox.is_read = False
        if self._over:
            return
        self._stopped = anyio.Event()
        self._scope.cancel()
        if not await run_shielded(_STOP_SECONDS, self._stopped.wait):
            _logger.error("a tool or middleware did not stop within %s s of being cancelled", _STOP_SECONDS)

    async def running(self) -> bool:
        """Wait for something to take; `False` once the task is over and everything was taken."""
        if self._mailbox.items:
            return True
        if not self._over:
            await self._mailbox.wait()
        return bool(self._mailbox.items) or not self._over

    async def outcome(self) -> Any:
        """Return what the coroutine returned, or raise what it raised."""
        if self._error is not None:
            raise self._error
        if not self._returned:
            # Our own deadline, shared with the task, is the usual reason; then this is where it shows.
            await anyio.lowlevel.checkpoint()
            raise AgentRTError("a task of the runtime was cancelled from outside")
        return self._result

    async def _run(self) -> None:
        enclosing_replies.set(enclosing_replies.get() | {self._reply})
        try:
            with self._scope:
                self._result = await self._main()
                self._returned = True
        except anyio.get_cancelled_exc_class():
            raise
        except BaseException as error:  # noqa: BLE001  # handed to the side that waits, in `outcome`
            self._error = error
        finally:
            self._end()

    def _end(self) -> None:
        self._over = True
        self._mailbox.wake()
        if self._stopped is not None:
            self._stopped.set()
