"""The runner of one process: a queue in the store's database, and the worker that runs what is in it."""

import logging
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from itertools import count

import anyio
from anyio import to_thread
from anyio.abc import TaskGroup

from agentrt._runtime.options import check_whole
from agentrt._runtime.representation import never_raises
from agentrt.agent import Agent
from agentrt.errors import AgentRTError, SessionIOError
from agentrt.message import UserMsg
from agentrt.runner.base import RunnerBase
from agentrt.runner.execution import open_conversation
from agentrt.runner.queue import ClaimedRequest
from agentrt.runner.requests import Request, make_resumption, owner_of
from agentrt.runner.sqlite.queue import SQLiteQueue
from agentrt.runner.sqlite.worker_lock import WorkerLock
from agentrt.state import AgentState, FileStateStore, InMemoryStateStore, SessionStore, SQLiteStore

_logger = logging.getLogger("agentrt")
_POLL_SECONDS = 0.1
_RETRY_SECONDS = 1.0
_numbers = count(1)  # of the runners of this process


class Runner(RunnerBase):
    """Runs the replies of many sessions in one process, each from its saved state on, and loses none that it has taken.

    `submit` stores an input before it returns; a process that awaits `work()` runs what is stored, at most
    `max_concurrency` replies at a time, and one of a session. Owners, whom the label "owner" of a session names, take
    turns, and have at most `max_concurrency_per_owner` replies at a time. When that process dies, the next one that
    works resumes what was in progress. A reply that kills its process `max_attempts` times, with no tool result in
    between, is given up: its end is "failed".

    The queue of an `SQLiteStore` is in the same database, and that of a `FileStateStore` is a file in its folder; both
    take inputs from any process of the machine, and one process works at a time, while others wait to take over. With
    any other store the queue is in memory: what is queued ends with the process, and replies in progress are resumed.

    Events are kept in memory, those of a reply that is over for `event_ttl` seconds. In other processes followers get
    what is saved. The replies have no `deps`. Everything belongs to one event loop, asyncio or trio.
    """

    def __init__(
        self,
        agent: Agent,
        store: SessionStore,
        *,
        max_concurrency: int = 50,
        max_concurrency_per_owner: int = 25,
        max_queued: int = 10_000,
        max_queued_per_session: int = 100,
        max_attempts: int = 5,
        drain_seconds: float = 30.0,
        event_ttl: float = 3600.0,
    ) -> None:
        super().__init__(
            agent,
            store,
            max_concurrency=max_concurrency,
            max_queued=max_queued,
            max_queued_per_session=max_queued_per_session,
            max_attempts=max_attempts,
            drain_seconds=drain_seconds,
            event_ttl=event_ttl,
        )
        # In the same place as the store, so that both are there, or neither is.
        path = store.directory / "queue.db" if isinstance(store, FileStateStore) else None
        path = store.path if isinstance(store, SQLiteStore) else path
        self._queue: SQLiteQueue = SQLiteQueue(
            path,
            is_full=getattr(store, "durability", "full") == "full",
            max_per_owner=check_whole(
                f"{type(self).__name__}(max_concurrency_per_owner=...)", max_concurrency_per_owner
            ),
        )
        self._worker = f"{socket.gethostname()}:{os.getpid()}:{next(_numbers)}"
        self._lock = None if path is None else WorkerLock(path.with_name(f"{path.name}.worker"), self._worker)
        self._is_superseded = False
        self._changed = anyio.Event()  # there may be something to claim

    @never_raises
    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._agent.name!r}, {self._store!r}, {len(self._replies)} running)"

    async def drain(self) -> None:
        await super().drain()
        self._wake()

    async def _work(self) -> None:
        # If another process works on the store, this one waits until that ends, and then takes over.
        # Before that it builds what a process needs for its first save and load, so that it takes over at once.
        store = InMemoryStateStore()
        await store.save(AgentState(session_id="warm-up", context=[UserMsg("-")]))
        await store.load("warm-up")
        self._is_superseded = True
        while self._is_superseded:
            self._is_superseded = False
            async with self._hold_lock() as is_held, self._agent:
                if is_held:
                    await self._take_over()
                    _logger.info("ready: %s works on %r", self._worker, self._store)
                    await self._run_claimed()

    @asynccontextmanager
    async def _hold_lock(self) -> AsyncIterator[bool]:
        """Hold the store's lock, which another process may have; not if `drain` comes first."""
        if self._lock is None:
            yield not self._replies.draining.is_set()
            return
        is_told = False
        while not await to_thread.run_sync(self._lock.take):
            if not is_told:
                is_told = True
                self._supervisor.note_work()
                holder = await to_thread.run_sync(self._lock.read_holder)
                _logger.info("waiting: %s works on %r, and this process takes over when it ends", holder, self._store)
            with anyio.move_on_after(_POLL_SECONDS):
                await self._replies.draining.wait()
            if self._replies.draining.is_set():
                yield False
                return
        try:
            yield True
        finally:
            self._lock.release()

    async def _take_over(self) -> None:
        """Queue what the worker before this one has left, and what the store has in progress besides."""
        # Under the lock, so the worker that has them has ended.
        for session_id, reply_id, worker in await self._queue.recover():
            _logger.info("taking over reply %s of session %.100r from %s", reply_id, session_id, worker)
        cursor: str | None = None
        while True:
            page = await self._store.list(limit=1000, cursor=cursor)
            for info in page.sessions:
                if info.status == "running":
                    await self._resume(info.session_id)
            cursor = page.cursor
            if cursor is None:
                return

    async def _resume(self, session_id: str) -> None:
        """Queue the reply that a session has in progress, unless it is in the queue."""
        try:
            conversation = await open_conversation(self.agent_of(session_id), self._store, session_id)
        except AgentRTError as error:
            _logger.error("session %.100r cannot be resumed: %s", session_id, error)
            return
        context = conversation.state.reply_context
        if context is None or context.reply_id in await self._queue.find_replies(session_id):
            return
        _logger.info("taking over reply %s of session %.100r, which was in progress", context.reply_id, session_id)
        state = conversation.state
        request = make_resumption(session_id, context.reply_id, state.revision, owner_of(state.labels))
        await self._queue.add_first(request, context.deaths + (not context.handed_over))

    async def _run_claimed(self) -> None:
        async with anyio.create_task_group() as group:
            try:
                async with anyio.create_task_group() as helpers:
                    helpers.start_soon(self._watch_interrupts)
                    helpers.start_soon(self._keep_lock)
                    helpers.start_soon(self._follow_schedules)
                    await self._claim_all(group)
                    helpers.cancel_scope.cancel()
                # The queue does not change meanwhile: unstarted requests are for the next worker.
                with anyio.move_on_after(self._drain_seconds):
                    await self._replies.wait_for_end()
            finally:
                with anyio.CancelScope(shield=True):
                    await self._replies.leave_all()

    async def _claim_all(self, group: TaskGroup) -> None:
        """Begin what is queued, as it comes, until the runner is drained."""
        while not self._replies.draining.is_set() and not self._is_superseded:
            changed = self._changed  # taken first, so that what comes while the queue is read counts
            claimed = await self._claim() if len(self._replies) < self._max_concurrency else None
            if claimed is not None:
                self._replies.begin(self._queue, claimed, self._events)
                group.start_soon(self._run, claimed)
                continue
            # Other processes add to the queue, and nothing in SQLite would tell this one of it.
            with anyio.move_on_after(_POLL_SECONDS):
                await changed.wait()

    async def _claim(self) -> ClaimedRequest | None:
        try:
            claimed = await self._queue.claim(self._worker)
            self._supervisor.note_work()
            return claimed
        except SessionIOError as error:
            _logger.warning("%s", error)
            await anyio.sleep(_RETRY_SECONDS)
            return None

    async def _run(self, claimed: ClaimedRequest) -> None:
        await self._replies.run(self._queue, claimed, self._events)
        self._wake()

    async def _watch_interrupts(self) -> None:
        """End the replies that other processes ask to be ended."""
        while True:
            await anyio.sleep(_POLL_SECONDS)
            if len(self._replies) and self._queue.path is not None:
                try:
                    names = await self._queue.interrupted()
                except AgentRTError as error:
                    _logger.warning("%s", error)
                    continue
                for name in names:
                    self._replies.interrupt_request(name)

    async def _keep_lock(self) -> None:
        """Lock a deleted lock file again; if another worker was faster, leave the running replies to it."""
        while self._lock is not None:
            await anyio.sleep(_POLL_SECONDS)
            with suppress(SessionIOError):  # its folder is missing, and so is the store
                if not self._lock.keep():
                    _logger.error(
                        "%s leaves %r: the lock file %r was deleted, and another worker has the new one",
                        self._worker,
                        self._store,
                        str(self._lock.path),
                    )
                    self._is_superseded = True
                    await self._replies.leave_all()
                    self._wake()
                    return

    def _wake(self) -> None:
        # An event is set once; those who wait later wait for the next one.
        changed, self._changed = self._changed, anyio.Event()
        changed.set()

    async def _open(self) -> None:
        self._changed = anyio.Event()  # belongs to the current event loop, not to that of the constructor
        migrate = getattr(self._store, "migrate", None)
        if migrate is not None:
            await migrate()  # first: it knows by its tables whose database that is
        if isinstance(self._store, FileStateStore):
            self._store.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        await self._queue.open()

    async def _close(self) -> None:
        await self._queue.close()

    async def _enqueue(self, request: Request, due_at: int, max_per_owner: int | None = None) -> None:
        await super()._enqueue(request, due_at, max_per_owner)
        self._wake()

    def _is_own(self, worker: str) -> bool:
        return worker == self._worker
