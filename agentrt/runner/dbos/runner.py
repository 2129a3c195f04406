"""The runner of many machines: workers in any number of processes, over one PostgreSQL database."""

import asyncio
import logging
import os
import secrets
import socket
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from math import inf
from time import monotonic
from typing import Any, TypeVar

import anyio
from anyio import to_thread
from anyio.abc import TaskGroup

from agentrt._runtime.database.operations import MAX_WAIT
from agentrt._runtime.options import check_seconds
from agentrt._runtime.representation import never_raises
from agentrt.agent import Agent
from agentrt.errors import ConfigError, SessionIOError, UsageError
from agentrt.event import AnyEvent, ReplyEndEvent
from agentrt.message import Msg
from agentrt.runner.base import RunnerBase, check_reply
from agentrt.runner.dbos.database import EventBatch, RunnerDatabase, read_notice
from agentrt.runner.dbos.engine import DBOSEngine, import_dbos, make_client, make_connections, migrate
from agentrt.runner.dbos.following import Follower, Followers
from agentrt.runner.dbos.listener import RunnerListener
from agentrt.runner.dbos.publisher import Publisher
from agentrt.runner.dbos.queue import DBOSQueue, outcome_of
from agentrt.runner.dbos.version import version_of
from agentrt.state import SessionStore

_RetryResult = TypeVar("_RetryResult")
_logger = logging.getLogger("agentrt")
_ASK_AGAIN_SECONDS = 0.5
_RELOCK_SECONDS = 2.0  # after which others have found that the lock is free
_MIGRATION_SECONDS = 110.0  # beyond `MAX_WAIT`: a small machine takes long to import DBOS and to make its tables
_PATIENCE_SECONDS = 60.0  # of those who follow a reply, while the database is started again


class DBOSRunner(RunnerBase):
    """Runs the replies of many sessions on many machines, with the extra `durable`: DBOS over PostgreSQL.

    Any number of processes may submit, follow, and work; one process has one worker. A worker that dies is noticed
    within seconds, one that is frozen after `lease_seconds`, and others resume its replies from the saved states. What
    a worker writes of a reply that was taken from it is not taken.

    Its queue and the events for followers are in tables of their own `schema`; the `store` may be any one that all
    machines reach. `max_concurrency` is that of each worker, and the worker that started last says it for all. A worker
    runs what agents of its own `version` have left or queued, and that of the versions in `accepts`; what nobody has
    run for ten minutes is run by any.

    Needs asyncio, since DBOS does.
    """

    def __init__(
        self,
        agent: Agent,
        store: SessionStore,
        database_url: str,
        *,
        schema: str = "agentrt_runner",
        max_concurrency: int = 50,
        max_queued: int = 10_000,
        max_queued_per_session: int = 100,
        max_attempts: int = 5,
        lease_seconds: float = 30.0,
        drain_seconds: float = 30.0,
        event_ttl: float = 3600.0,
        accepts: Collection[str] = (),
    ) -> None:
        owner = type(self).__name__
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
        self._lease_seconds = check_seconds(f"{owner}(lease_seconds=...)", lease_seconds, least=1)
        names: object = accepts
        if not isinstance(names, (list, tuple, set, frozenset)) or not all(isinstance(name, str) for name in accepts):
            raise ConfigError(f"{owner}(accepts=...) takes versions, such as [old_runner.version], not {names!r:.200}")
        self._accepts = list(accepts)
        import_dbos(owner)
        self._database = RunnerDatabase(owner, database_url, schema)
        self._url = database_url
        self._version = version_of(agent)
        self._queue: DBOSQueue
        self._followers = Followers()  # who are told what the listener hears
        self._group: TaskGroup | None = None
        self._connected = anyio.Event()
        # Threads cannot start tasks, so a task of the worker does so for them.
        self._orders: asyncio.Queue[tuple[Callable[..., None], tuple[object, ...]]] = asyncio.Queue()

    @never_raises
    def __repr__(self) -> str:
        place = f"{self._store!r}, {self._database.place}, {len(self._replies)} running"
        return f"{type(self).__name__}({self._agent.name!r}, {place})"

    @property
    def version(self) -> str:
        """The version of the agent: the same for the same chains and schemas of tools."""
        return self._version

    async def _work(self) -> None:
        # Another name each time, since what it leaves is looked after by others.
        self._queue.executor = f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"
        async with self._agent, anyio.create_task_group() as group:
            self._group = group
            self._orders = asyncio.Queue()
            # Before the lock is asked for, since the listener tells by this that it is there.
            group.start_soon(self._obey)
            try:
                self._connected = anyio.Event()
                self._listener.begin_work(self._queue, self._lease_seconds, self._event_ttl)
                await self._connected.wait()
                await to_thread.run_sync(
                    DBOSEngine.launch,
                    self._database,
                    self._queue.executor,
                    self._version,
                    self._queue.name,
                    self._max_concurrency,
                    partial(_call_in_loop, _running_loop(), self._order, self._begin),
                )
                _logger.info("ready: %s works on %s", self._queue.executor, self._database.place)
                self._supervisor.note_work()
                await self._run_until_drained()
                group.cancel_scope.cancel()
            finally:
                self._group = None
                self._listener.end_work()

    async def events(self, session_id: str, reply_id: str, *, after: int = 0) -> AsyncGenerator[AnyEvent, None]:
        """Follow a reply, as `ReplyHandle.events` does; raises `UsageError` for one that nobody knows."""
        check_reply(session_id, reply_id, after)
        has_ended, is_to_look = False, True
        # Before anything is read, so that what comes meanwhile is heard.
        with self._followers.follow(session_id, reply_id) as follower:
            while True:
                self._check_is_open("events")
                has_gap = False
                for batch in await self._next_batches(follower, session_id, reply_id, after):
                    if batch.follows > after:
                        read = partial(self._saved_events, session_id, reply_id, after)
                        for event in await self._retry(read, _PATIENCE_SECONDS):
                            after = event.seq
                            yield event
                        if batch.follows > after:
                            has_gap = True  # of what is said since then, a part is lost until the next save, or the end
                            break
                    for event in batch.read_events():
                        if event.seq > after:
                            after = event.seq
                            has_ended = has_ended or (isinstance(event, ReplyEndEvent) and event.reply_id == reply_id)
                            yield event
                if follower.has_news():
                    continue
                if not has_ended:
                    # While events come, nothing else is to be asked.
                    look = partial(self._queue.standing, session_id, reply_id)
                    standing = await self._retry(look, _PATIENCE_SECONDS) if is_to_look else None
                    if not is_to_look or (standing is not None and standing.is_pending):
                        is_to_look = not await follower.wait()
                        follower.is_behind = follower.is_behind or has_gap
                        continue
                    if follower.has_news():
                        continue
                    snapshot = await self._retry(partial(self._read, session_id, reply_id, standing), _PATIENCE_SECONDS)
                    for event in snapshot.events_after(after):
                        yield event
                return

    async def read_message(self, session_id: str, reply_id: str) -> Msg:
        """Return the message of a reply that is over or waits for an answer."""
        return await self._retry(partial(super().read_message, session_id, reply_id), _PATIENCE_SECONDS)

    async def _next_batches(self, follower: Follower, session_id: str, reply_id: str, after: int) -> list[EventBatch]:
        batches = follower.take()
        if follower.is_behind or any(batch.events is None or batch.follows > after for batch in batches):
            follower.is_behind = False
            read = partial(self._database.read_events, session_id, reply_id, after)
            batches = await self._retry(read, _PATIENCE_SECONDS)
            follower.is_behind = len(batches) > 100  # there may be more
        return [batch for batch in batches if batch.last > after]

    # What the listener's thread tells.

    def _hear(self, payload: str) -> None:
        kind, key, batch = read_notice(payload)
        self._followers.tell(kind, key, batch)
        if kind == "interrupt":
            self._replies.interrupt(*key)

    def _order(self, call: Callable[..., None], *arguments: object) -> None:
        if call == self._connect:
            self._followers.tell_all_lost()
        self._orders.put_nowait((call, arguments))

    async def _obey(self) -> None:
        """Do in a task of this worker what other threads ask for."""
        while True:
            call, arguments = await self._orders.get()
            call(*arguments)

    def _connect(self) -> None:
        self._connected.set()
        if self._group is not None and len(self._replies):
            self._group.start_soon(self._leave_lost)

    def _disconnect(self) -> None:
        if self._connected.is_set():
            self._connected = anyio.Event()
            if self._group is not None:
                self._group.start_soon(self._leave_all_unless_connected, self._connected)

    async def _leave_lost(self) -> None:
        """Leave what was taken from this worker while it had no lock; with the lock, nobody takes anything from it."""
        workflows = self._replies.names
        try:
            owned = await self._queue.find_owned(workflows)
            for workflow in owned:
                if (await self._queue.read_claimed(workflow)).is_interrupted:  # which may have been told to nobody
                    self._replies.interrupt_request(workflow)
        except SessionIOError as error:
            _logger.warning("%s", error)
            return
        for workflow in workflows - owned:
            await self._replies.leave(workflow)

    async def _leave_all_unless_connected(self, connected: anyio.Event) -> None:
        with anyio.move_on_after(_RELOCK_SECONDS):
            await connected.wait()
            return
        await self._replies.leave_all()

    # Working.

    async def _run_until_drained(self) -> None:
        try:
            async with anyio.create_task_group() as helpers:
                helpers.start_soon(self._follow_schedules)
                await self._replies.draining.wait()
                helpers.cancel_scope.cancel()
            async with anyio.create_task_group() as group:
                # It stops claiming at once, and looks each second whether what it claimed is done.
                group.start_soon(to_thread.run_sync, DBOSEngine.destroy, self._drain_seconds + 20)
                with anyio.move_on_after(self._drain_seconds):
                    await self._replies.wait_for_end()
                await self._replies.leave_all()
                await self._replies.wait_for_end()
        except BaseException:
            with anyio.CancelScope(shield=True):
                await self._replies.leave_all()
                with anyio.move_on_after(20):
                    await self._replies.wait_for_end()
                await to_thread.run_sync(DBOSEngine.destroy, 1.0)
            raise

    def _begin(self, workflow: str, outcome: "Future[dict[str, Any]]") -> None:
        if self._group is None:
            outcome.cancel()
        else:
            self._group.start_soon(self._run, workflow, outcome)

    async def _run(self, workflow: str, outcome: "Future[dict[str, Any]]") -> None:
        result = None
        try:
            claimed = await self._retry(partial(self._queue.read_claimed, workflow))
            if self._group is not None:
                lose = partial(self._group.start_soon, self._replies.leave, workflow)
                owner = workflow, self._queue.executor
                publisher = Publisher(self._database, owner, self._group.start_soon, lose)
                self._replies.begin(self._queue, claimed, publisher, partial(self._is_ours, workflow))
                if self._replies.draining.is_set():
                    await self._replies.leave(workflow)
                result = await self._replies.run(self._queue, claimed, publisher)
        except Exception as error:  # noqa: BLE001  # one request must not end the others
            _logger.error("the request %s cannot be read: %s", workflow, type(error).__name__)
        finally:
            # What was not run stays with this worker, until others find that it is gone.
            if result is None:
                outcome.cancel()
            elif outcome.set_running_or_notify_cancel():
                outcome.set_result(outcome_of(result))

    async def _is_ours(self, workflow: str) -> bool:
        return bool(await self._queue.find_owned([workflow]))

    async def _retry(self, call: Callable[[], Awaitable[_RetryResult]], seconds: float = inf) -> _RetryResult:
        """Call until the database answers, with a time limit."""
        until = monotonic() + seconds
        while True:
            try:
                return await call()
            except SessionIOError as error:
                if monotonic() > until:
                    raise
                _logger.warning("%s", error)
            await anyio.sleep(_ASK_AGAIN_SECONDS)

    # What the base asks for.

    async def _open(self) -> None:
        loop = _running_loop()
        await self._database.run(self._prepare, _MIGRATION_SECONDS)
        store_migrate = getattr(self._store, "migrate", None)
        if store_migrate is not None:
            await store_migrate()
        self._connections = make_connections(self._database)
        self._client = make_client(self._database, self._connections)
        # By the name of the agent, so that two of them never get each other's sessions.
        name = f"replies of {self._agent.name}"
        self._queue = DBOSQueue(self._database, self._client, name, self._version, self._accepts)
        tell = partial(_call_in_loop, loop)
        self._listener = RunnerListener(
            self._database,
            on_notice=partial(tell, self._hear),
            on_connected=partial(tell, self._order, self._connect),
            on_lost=partial(tell, self._order, self._disconnect),
        )
        self._listener.start()

    def _prepare(self, _: float) -> None:
        with self._database.connect(monotonic() + MAX_WAIT):
            pass  # a server that is away is noticed before DBOS, which would wait for it without an end
        migrate(self._database, self._url)

    async def _close(self) -> None:
        await to_thread.run_sync(self._listener.stop)
        await to_thread.run_sync(self._client.destroy)
        self._connections.dispose()
        self._database.close()

    def _is_own(self, worker: str) -> bool:
        return worker == self._queue.executor


def _call_in_loop(loop: asyncio.AbstractEventLoop, call: Callable[..., object], *arguments: object) -> None:
    with suppress(RuntimeError):  # the loop is closed, so nobody waits for it
        loop.call_soon_threadsafe(call, *arguments)


def _running_loop() -> asyncio.AbstractEventLoop:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        raise UsageError(
            "DBOSRunner needs asyncio, since DBOS, which decides who runs, works on nothing else: begin with "
            "asyncio.run(main()), or use Runner, which works on trio, on one machine"
        ) from None
