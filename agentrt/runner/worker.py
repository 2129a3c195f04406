"""The replies that run in this process, whichever engine has chosen them."""

import logging
from collections.abc import Awaitable, Callable, Hashable
from functools import partial
from typing import TypeVar

import anyio

from agentrt.agent import Agent
from agentrt.errors import InvalidInputError, SessionIOError
from agentrt.runner.events import EventLog
from agentrt.runner.execution import Execution
from agentrt.runner.queue import SUSPECT_DEATHS, ClaimedRequest, ReplyQueue, Result
from agentrt.runner.requests import Request
from agentrt.runner.tasks import UNLIMITED, SessionTasks
from agentrt.state import SessionStore

_logger = logging.getLogger("agentrt")
_SETTLE_AGAIN_SECONDS = 0.5
_QueueAnswer = TypeVar("_QueueAnswer")


class ReplyWorker:
    """Runs claimed requests, records their outcome in the queue, and leaves them to others on request."""

    def __init__(
        self,
        agent_of: Callable[[str], Agent],
        store: SessionStore,
        max_attempts: int,
        tasks_of: Callable[[str], SessionTasks],
    ) -> None:
        self._agent_of = agent_of
        self._tasks_of = tasks_of
        self._store = store
        self._max_attempts = max_attempts
        self._running: dict[Hashable, Execution] = {}
        self._suspect: Hashable = None
        self._changed = anyio.Event()
        self.draining = anyio.Event()

    def reopen(self) -> None:
        """Prepare for use in the current event loop, after an earlier use has ended."""
        self._changed, self.draining = anyio.Event(), anyio.Event()

    def __len__(self) -> int:
        return len(self._running)

    @property
    def names(self) -> set[Hashable]:
        """The names of the requests that run here."""
        return set(self._running)

    def begin(
        self,
        queue: ReplyQueue,
        claimed: ClaimedRequest,
        events: EventLog,
        is_ours: Callable[[], Awaitable[bool]] | None = None,
    ) -> None:
        """Take a request, which counts as running from now on; `run` does the rest."""
        self._running[claimed.name] = Execution(
            self._agent_of(claimed.request.session_id),
            self._store,
            events,
            claimed,
            max_attempts=self._max_attempts,
            is_ours=is_ours,
            prepare=partial(self._prepare, queue, claimed),
            note_saved=partial(self._retry, partial(queue.note_saved, claimed)),
            on_progress=partial(self._clear, claimed.name),
            tasks=self._tasks_of(claimed.request.session_id),
        )

    async def run(self, queue: ReplyQueue, claimed: ClaimedRequest, events: EventLog) -> Result | None:
        """Run a started request; returns `None` if that is not possible, and raises nothing.

        A cancellation ends no reply: who cancels calls `leave_all`.
        """
        request = claimed.request
        result = None
        with anyio.CancelScope(shield=True):
            try:
                execution = self._running[claimed.name]
                result = await execution.run()
                # Before the request is over in the queue, so that followers have every event when they see that.
                await events.flush()
                # Before as well, so that a task whose process dies here is found again in the queue.
                for wake in await execution.wakes(result):
                    await self._retry(partial(_add_once, queue, wake))
                await self._settle(queue, claimed, result)
            except Exception as error:  # noqa: BLE001  # one reply must not end the others; a restart takes it up again
                name = type(error).__name__
                _logger.error("reply %s of session %.100r: %s", request.reply_id, request.session_id, name)
                result = None
            finally:
                del self._running[claimed.name]
                self._clear(claimed.name)
                self._wake()
                events.tell_change(request.session_id, request.reply_id)
        return result

    async def _prepare(self, queue: ReplyQueue, claimed: ClaimedRequest, deaths: int) -> None:
        """Run suspected requests one at a time: any of them may have killed the workers before.

        Else the others would be given up with it. What has got on is free of it.
        """
        while deaths >= SUSPECT_DEATHS and self._suspect not in (None, claimed.name):
            if self._running[claimed.name].is_leaving:
                return
            await self._changed.wait()
        if deaths >= SUSPECT_DEATHS:
            self._suspect = claimed.name
        if claimed.deaths >= SUSPECT_DEATHS:
            await self._retry(partial(queue.begin, claimed))

    def _clear(self, name: Hashable) -> None:
        if self._suspect == name:
            self._suspect = None
            self._wake()

    def _wake(self) -> None:
        # An event is set once; those who wait later wait for the next one.
        changed, self._changed = self._changed, anyio.Event()
        changed.set()

    async def _settle(self, queue: ReplyQueue, claimed: ClaimedRequest, result: Result) -> None:
        """Record the outcome of a request in the queue; while that is unavailable, nothing else of the session runs.

        If the process dies in here, the next worker does all of it again.
        """
        request = claimed.request
        if result.kind == "held":
            await self._retry(partial(queue.hold, claimed))
        elif result.kind != "left":
            await self._retry(partial(queue.finish, claimed, result))
        else:
            is_own = await self._retry(partial(queue.give_back, claimed))
            what = "handed over" if is_own else "lost to another worker:"
            _logger.info("%s reply %s of session %.100r", what, request.reply_id, request.session_id)

    async def _retry(self, call: Callable[[], Awaitable[_QueueAnswer]]) -> _QueueAnswer:
        while True:
            try:
                return await call()
            except SessionIOError as error:
                if self.draining.is_set():
                    raise  # the next worker finds by the saved state what is left to do
                _logger.warning("%s", error)
                await anyio.sleep(_SETTLE_AGAIN_SECONDS)

    def interrupt(self, session_id: str, reply_id: str) -> bool:
        """End a reply tidily, if it runs here; returns whether it does."""
        found = [
            execution
            for execution in self._running.values()
            if (execution.request.session_id, execution.request.reply_id) == (session_id, reply_id)
        ]
        for execution in found:
            execution.interrupt()
        return bool(found)

    def interrupt_request(self, name: Hashable) -> None:
        """The same for a request, by its name."""
        if name in self._running:
            self._running[name].interrupt()

    async def leave(self, name: Hashable) -> None:
        """Stop a reply, and leave it to be resumed elsewhere."""
        if name in self._running:
            await self._running[name].leave()
            self._wake()

    async def leave_all(self) -> None:
        """Leave whatever runs; `wait_for_end` waits until that is done."""
        async with anyio.create_task_group() as group:
            for name in self.names:
                group.start_soon(self.leave, name)

    async def wait_for_end(self) -> None:
        """Wait until nothing runs here."""
        while self._running:
            await self._changed.wait()


async def _add_once(queue: ReplyQueue, wake: Request) -> None:
    try:
        await queue.add(wake, 0, UNLIMITED)
    except InvalidInputError as error:  # it was added before, and what the task has left has changed since
        _logger.warning("%s", error)
