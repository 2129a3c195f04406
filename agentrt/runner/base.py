"""The base of runners with any engine: checks submitted inputs, and follows replies."""

import logging
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from inspect import iscoroutinefunction
from time import time_ns
from typing import Any, Literal, Self, TypeAlias
from weakref import WeakValueDictionary

import anyio

from agentrt._runtime.block import new_name
from agentrt._runtime.conversation.inputs import ANSWERS, AnswerEvent
from agentrt._runtime.decoding.answer_form import AnswerForm
from agentrt._runtime.loop.outcome import UNSAVED
from agentrt._runtime.options import check_seconds, check_whole
from agentrt.agent import Agent, AgentInput
from agentrt.errors import ConfigError, InvalidInputError, ResumeError, UsageError
from agentrt.event import AnyEvent, ExternalExecutionResultEvent, UserConfirmResultEvent, UserInterruptEvent
from agentrt.hooks import ReplyInput
from agentrt.message import Msg
from agentrt.runner.events import EventLog
from agentrt.runner.execution import open_conversation
from agentrt.runner.handle import ReplyHandle
from agentrt.runner.queue import QueueRoom, ReplyQueue, Standing
from agentrt.runner.requests import Request, check_session, make_request, owner_of
from agentrt.runner.schedule import Schedule, next_tick_function, to_nanoseconds
from agentrt.runner.snapshot import Snapshot, empty_snapshot, take_snapshot
from agentrt.runner.supervisor import Supervisor
from agentrt.runner.tasks import UNLIMITED, SessionTasks, TaskInfo, Tasks, is_task_id
from agentrt.runner.worker import ReplyWorker
from agentrt.runs import run_stores
from agentrt.state import AgentState, SessionInfo, SessionStore, check_labels
from agentrt.state.store import find_session
from agentrt.types import FinishedReason, JSONSchema

ReplyStatus: TypeAlias = Literal["running", "waiting"] | FinishedReason
"""How a reply stands: it runs or is queued, it waits for an answer, or it is over, for that reason."""

_logger = logging.getLogger("agentrt")
_FIRST_PAUSE = 0.1
_MAX_PAUSE = 1.0
_LOOKS_PER_SECOND = 50  # of all followers together, or they would keep the queue from what they wait for
_MAX_LOOKS = 30
_MAX_SEQ = 2**53 - 1
_MAX_REPLY_ID = 128
_MAX_OTHER_AGENTS = 1_000
_MAX_YEAR = 2262  # nanoseconds have 63 bits in databases


class RunnerBase(ABC):
    """The part of a runner that is the same in one process and on many machines.

    The `_queue` of a subclass, which is there when the runner is open, has the requests; `_replies` runs them.
    """

    _queue: ReplyQueue

    def __init__(
        self,
        agent: Agent,
        store: SessionStore,
        *,
        max_concurrency: int,
        max_queued: int,
        max_queued_per_session: int,
        max_attempts: int,
        drain_seconds: float,
        event_ttl: float,
    ) -> None:
        owner = type(self).__name__
        if not isinstance(agent, Agent):
            raise ConfigError(f"{owner} runs an Agent, not {agent!r:.200}: agents of other classes save no state")
        for method in ("load", "save", "list", "delete"):
            if not iscoroutinefunction(getattr(store, method, None)):
                raise ConfigError(
                    f"{owner} needs a store that knows its sessions, such as SQLiteStore('agent.db'), and "
                    f"{store!r:.200} has no `async def {method}`"
                )
        if agent.state_store not in (None, store):
            raise ConfigError(
                f"the agent {agent.name!r} saves to {agent.state_store!r:.200}, and {owner} was given {store!r:.200}: "
                f"give both the same store"
            )
        self._agent = agent
        self._store = store
        self._max_concurrency = check_whole(f"{owner}(max_concurrency=...)", max_concurrency)
        self._room = QueueRoom(
            check_whole(f"{owner}(max_queued=...)", max_queued),
            check_whole(f"{owner}(max_queued_per_session=...)", max_queued_per_session),
        )
        self._drain_seconds = check_seconds(f"{owner}(drain_seconds=...)", drain_seconds, least=0)
        self._event_ttl = check_seconds(f"{owner}(event_ttl=...)", event_ttl, least=0)
        self._agents: OrderedDict[str, Agent] = OrderedDict()
        self._events = EventLog(self._event_ttl)
        self._tasks = Tasks(store, lambda: self._queue, self._open_session)
        max_attempts = check_whole(f"{owner}(max_attempts=...)", max_attempts)
        self._replies = ReplyWorker(self.agent_of, store, max_attempts, self._tasks_of)
        self._supervisor = Supervisor()
        self._schedules: dict[str, Schedule] = {}
        # By sessions, as long as an answer to one of them is being stored.
        self._answering: WeakValueDictionary[str, anyio.Lock] = WeakValueDictionary()
        self._is_open = self._is_working = False

    @property
    def agent(self) -> Agent:
        """The agent whose replies this runs."""
        return self._agent

    def agent_of(self, session_id: str) -> Agent:
        """Return the agent whose replies this runs in a session; a background call has that of its session."""
        parent, _, name = session_id.rpartition("~")
        agent = self._agents.get(session_id)
        if agent is None and is_task_id(name):
            agent = self._agents.get(parent)
        return agent or self._agent

    def run_with(self, agent: Agent, session_id: str) -> None:
        """Run the replies of a session with another agent, such as one without a layer, as long as this process lives.

        That agent makes the background calls of the session, too. Another process runs both with the agent of the
        runner. Beyond 1,000 sessions, the oldest are forgotten.
        """
        self._agents[session_id] = agent
        if len(self._agents) > _MAX_OTHER_AGENTS:
            self._agents.popitem(last=False)

    @property
    def store(self) -> SessionStore:
        """The store that has the sessions."""
        return self._store

    @property
    def is_open(self) -> bool:
        """Whether `async with` has opened it, and not closed it yet."""
        return self._is_open

    @property
    def worker_failure(self) -> str | None:
        """Why the worker of this runner does not work at present, by the class of its error; `None` where it does."""
        return self._supervisor.failure

    async def __aenter__(self) -> Self:
        if self._is_open:
            raise UsageError(f"this {type(self).__name__} is open already: write `async with runner:` once")
        # Events of anyio belong to one event loop, and the last use of this runner may have been in another.
        self._replies.reopen()
        self._events.reopen()
        await self._open()
        self._is_open = True
        return self

    async def __aexit__(self, *_: object) -> None:
        self._is_open = False
        # Each part has a limit of its own, and a file that stays open would outlive the program's interest in it.
        with anyio.CancelScope(shield=True):
            try:
                await self._close()
            finally:
                try:
                    await self._agent.aclose()
                finally:
                    close = getattr(self._store, "aclose", None)
                    if close is not None:
                        await close()

    async def submit(
        self,
        session_id: str,
        inputs: AgentInput = None,
        structured_schema: JSONSchema | None = None,
        *,
        reply_id: str | None = None,
        at: datetime | None = None,
        labels: Mapping[str, str] | None = None,
        max_queued_per_owner: int | None = None,
    ) -> ReplyHandle:
        """Store an input for a session, to be answered by a worker, and return a handle of the reply.

        The input is what `Agent.reply` takes: messages, the answer to a question of the reply that waits, or nothing,
        to answer what was observed. With a `reply_id` it is stored once, however often it is submitted. It runs when
        the inputs of its session before it are done, and not before `at`. A message to a session that waits for an
        answer is refused with `ResumeError`, and so is an answer that does not fit; nothing is stored then. `labels`
        are those of a session that is new. The label "owner" of a session names the owner of its replies: owners take
        turns, and `max_queued_per_owner` limits the waiting inputs of one owner. With a `structured_schema`, the JSON
        schema of an object, the final message carries JSON that fits it; a reply that is answered keeps its own.

        Raises `InvalidInputError` for what no agent takes, and for a reply id that was given with another input, and
        `QueueFull` where there are `max_queued` inputs already.
        """
        self._check_is_open("submit")
        check_session(session_id)
        check_labels(labels or {}, "submit(labels=...)")
        due_at = 0 if at is None else _check_time(at)
        schema = None if structured_schema is None else _check_schema(structured_schema, inputs)
        if isinstance(inputs, ANSWERS):
            # One after the other, so that each is checked against a state and a queue that know the one before it.
            async with self._answering.setdefault(session_id, anyio.Lock()):
                request = await self._check_answer(session_id, inputs, reply_id, at)
                await self._enqueue(request, due_at)
            return ReplyHandle(self, session_id, request.reply_id)
        if is_task_id(reply_id):
            raise InvalidInputError(f"ids such as {reply_id!r} are for background calls: choose another reply_id")
        saved = await find_session(self._store, session_id)
        taken = await self._check_message(session_id, inputs, reply_id, saved, is_later=due_at > time_ns())
        name = reply_id or new_name()
        own_labels = dict(labels or {}) if saved is None else saved.labels
        new_labels = own_labels if saved is None else None
        request = make_request(session_id, name, taken, new_labels, owner=owner_of(own_labels), schema=schema)
        await self._enqueue(request, due_at, max_queued_per_owner)
        return ReplyHandle(self, session_id, request.reply_id)

    async def answer(
        self, session_id: str, answer: UserConfirmResultEvent | ExternalExecutionResultEvent | UserInterruptEvent
    ) -> ReplyHandle:
        """Store the answer to what a reply waits for, as `submit` does, and return a handle of that reply.

        The session may also be the one whose background call asks: the handle then has the session of that call.
        """
        if not isinstance(answer, ANSWERS):
            raise InvalidInputError(
                f"answer() takes a UserConfirmResultEvent, an ExternalExecutionResultEvent or a UserInterruptEvent, "
                f"not {answer!r:.200}: give a message to submit()"
            )
        if is_task_id(answer.reply_id):
            self._check_is_open("answer")
            check_session(session_id)
            task_session = await self._tasks.session_asked(session_id, answer.reply_id)
            if task_session is not None:
                own_id = task_session if answer.session_id == session_id else answer.session_id
                return await self.submit(task_session, replace(answer, session_id=own_id))
        return await self.submit(session_id, answer)

    async def tasks(self, session_id: str) -> list[TaskInfo]:
        """Return the background calls of a session, in the order of their start; of finished ones, the newest 100."""
        self._check_is_open("tasks")
        check_session(session_id)
        return await self._tasks.find(session_id)

    async def stop_task(self, session_id: str, task_id: str) -> bool:
        """End a background call of a session, wherever it stands; returns whether there was one to end.

        The session is woken by that, as by any other end. Raises `InvalidInputError` for one that it never had.
        """
        for task in await self.tasks(session_id):
            if task.id == task_id:
                return task.state != "over" and await self.interrupt(task.session_id, task.reply_id)
        raise InvalidInputError(f"session {session_id!r:.100} has no background call {task_id!r:.100}: see tasks()")

    async def has_reply(self, session_id: str, reply_id: str) -> bool:
        """Say whether the session has this reply, or will have it: it may be queued."""
        self._check_is_open("has_reply")
        check_reply(session_id, reply_id)
        if await self._queue.standing(session_id, reply_id) is not None:
            return True
        return await take_snapshot(self.agent_of(session_id), self._store, session_id, reply_id) is not None

    async def queued_replies(self, session_id: str) -> list[str]:
        """Return the replies of a session that are queued or running, by their ids."""
        self._check_is_open("queued_replies")
        check_session(session_id)
        return await self._queue.find_replies(session_id)

    async def status(self, session_id: str, reply_id: str) -> ReplyStatus | None:
        """Return how a reply stands, `None` for one that nobody knows.

        "running" is also a reply that is queued, and one whose answer is not taken in yet; "waiting" is one that waits
        for an answer. Else it is over, and this is its `finished_reason`.
        """
        self._check_is_open("status")
        check_reply(session_id, reply_id)
        standing = await self._queue.standing(session_id, reply_id)
        if standing is not None and standing.is_pending:
            return "running"
        snapshot = await take_snapshot(self.agent_of(session_id), self._store, session_id, reply_id)
        if snapshot is None:
            return None if standing is None else standing.reason  # nothing was said in it
        return snapshot.message.finished_reason or "completed" if snapshot.standing == "over" else snapshot.standing

    async def find_sessions(self, reply_id: str, *, owner: str | None = None, limit: int = 1000) -> list[str]:
        """Return the sessions in which a reply of that id was submitted, as far as the queue remembers.

        They are at most `limit`, those of the latest inputs first: programs that choose reply ids may use one often.
        With an `owner`, those of other owners are left out.
        """
        self._check_is_open("find_sessions")
        check_reply("-", reply_id)
        limit = min(check_whole("find_sessions(limit=...)", limit), _MAX_SEQ)
        return await self._queue.find_sessions(reply_id, owner, limit)

    def handle(self, session_id: str, reply_id: str) -> ReplyHandle:
        """Return a handle of a reply that was submitted before, here or elsewhere."""
        check_reply(session_id, reply_id)
        return ReplyHandle(self, session_id, reply_id)

    async def events(self, session_id: str, reply_id: str, *, after: int = 0) -> AsyncGenerator[AnyEvent, None]:
        """Follow a reply, as `ReplyHandle.events` does; raises `UsageError` for one that nobody knows."""
        check_reply(session_id, reply_id, after)
        revision, has_ended, pause = 0, False, _FIRST_PAUSE
        # Each turn reads the current state: anything may have changed while this waited, or its reader had control.
        while True:
            self._check_is_open("events")
            log = self._events.get(session_id, reply_id)
            if log is not None:
                for event in log.read(after):
                    after = event.seq
                    yield event
                has_ended = log.has_ended
                if log.last_number > after:  # more came while the reader had control
                    continue
                if log.is_open:
                    await log.wait(after)
                    continue
            change = self._events.next_change(session_id, reply_id)  # what comes while the queue is read counts
            standing = await self._queue.standing(session_id, reply_id)
            if log is not self._events.get(session_id, reply_id) or (log is not None and log.is_open):
                continue  # it has started to run here meanwhile
            saved: Sequence[AnyEvent] = ()
            is_pending = False
            if standing is not None and standing.is_pending:
                is_pending = True
                is_elsewhere = log is None and standing.worker and not self._is_own(standing.worker)
                if is_elsewhere and (current := await self._revision(session_id)) != revision:
                    revision, pause = current, _FIRST_PAUSE
                    saved = await self._saved_events(session_id, reply_id, after)
            elif not has_ended:
                snapshot = await self._read(session_id, reply_id, standing)
                saved = snapshot.events_after(after)
                # What was left in the store, and nobody has queued yet, is for the next worker.
                is_pending = snapshot.standing == "running" and (standing is None or standing.reason is None)
            for event in saved:
                after = event.seq
                yield event
            if not is_pending:
                return
            # Longer and longer, since there may be many followers, and none of them hears of another process.
            await self._events.wait(change, pause)
            pause = min(1.5 * pause, max(_MAX_PAUSE, self._events.awaited / _LOOKS_PER_SECOND))

    async def can_have_sent(self, state: AgentState, reply_id: str, number: int) -> bool:
        """Say whether a follower of the reply can have an event of this number, wherever the reply runs.

        `state` is the saved one of its session; followers of a running reply may have read events that are not saved.
        """
        self._check_is_open("can_have_sent")
        check_reply(state.session_id, reply_id, number)
        log = self._events.get(state.session_id, reply_id)
        if number <= state.sequence or (log is not None and number <= log.last_number):
            return True
        # It may run, or have died, in another process: what that has sent without saving is unknown here.
        context = state.reply_context
        is_running = context is not None and context.reply_id == reply_id and not context.parked
        if not is_running:
            standing = await self._queue.standing(state.session_id, reply_id)
            is_running = standing is not None and standing.is_pending
        return is_running and number <= state.sequence + UNSAVED

    async def delete(self, session_id: str) -> None:
        """Delete a session and its runs from the stores: what is queued for it is not run, and what runs of it ends.

        So are the sessions of its background calls. A background call whose session is deleted wakes the session that
        let it go. A session of that id that is submitted to later is a new one.
        """
        self._check_is_open("delete")
        check_session(session_id)
        tasks = await self._tasks.session_ids(session_id)
        wake = await self._tasks.wake_by_deletion(session_id)
        if wake is not None:
            with suppress(InvalidInputError):  # its task has just come to its own end
                await self._queue.add(wake, 0, UNLIMITED)
        await self._delete(session_id)
        for task_session in tasks:  # afterwards, so that none of them wakes it
            await self._delete(task_session)

    async def _delete(self, session_id: str) -> None:
        # Or an id that is used again would give what was said in the session that is gone, maybe to another owner.
        await self._queue.forget(session_id)
        self._events.forget(session_id)
        for reply_id in await self._queue.find_replies(session_id):
            await self._interrupt(session_id, reply_id)
        await self._store.delete(session_id)
        self._agents.pop(session_id, None)
        for runs in run_stores(self._agent):  # which may be those of another store
            await runs.forget(session_id)

    async def interrupt(self, session_id: str, reply_id: str) -> bool:
        """End a reply tidily, wherever it runs, waits or is queued; returns whether there was one to end."""
        self._check_is_open("interrupt")
        check_reply(session_id, reply_id)
        if await self._interrupt(session_id, reply_id):
            return True
        snapshot = await take_snapshot(self.agent_of(session_id), self._store, session_id, reply_id)
        if snapshot is None or snapshot.standing != "waiting":
            return False
        await self.submit(session_id, UserInterruptEvent(reply_id))
        return True

    def every(
        self,
        when: object,
        session_id: str,
        inputs: AgentInput,
        *,
        name: str | None = None,
        labels: Mapping[str, str] | None = None,
    ) -> None:
        """Schedule a recurring input of a session, by an interval in seconds or a line of cron, while a worker runs.

        A line of cron, such as "0 9 * * 1-5", is read in the worker's time zone, and needs the extra `cron`. Each time
        is submitted once; of those that were missed while no worker ran, the last one is made up for. After a restart
        the schedule is known by its `name`, without which that is the session's.
        """
        check_session(session_id)
        check_labels(labels or {}, "every(labels=...)")
        tick = next_tick_function(when)
        taken = self._agent.with_state(AgentState()).check_input(inputs)
        unchecked: object = session_id if name is None else name
        if not isinstance(unchecked, str) or not unchecked or not unchecked.isprintable():
            raise ConfigError(f"every(name=...) must be a non-empty str without control characters, not {name!r:.100}")
        name = unchecked
        if isinstance(taken, ANSWERS):
            raise InvalidInputError(f"every() takes messages, not the answer {taken!r:.100}: give that to answer()")
        if name in self._schedules:
            raise ConfigError(f"every() has a schedule {name!r:.100} already: give each a name of its own")
        self._schedules[name] = Schedule(name, session_id, taken, dict(labels or {}), tick)

    async def work(self) -> None:
        """Run what is submitted, until `drain` is called; a cancelled task hands its replies over first.

        A worker that fails, as by its queue, leaves its replies and starts again after 1, 2, 4, ... 60 seconds. Raises
        `ConfigError` and `UsageError`, such as where this runner works already.
        """
        self._check_is_open("work")
        if self._is_working:
            raise UsageError("this runner works already: raise max_concurrency to run more replies at a time")
        self._is_working = True
        try:
            await self._supervisor.run(repr(self), self._work, self._replies.draining)
        finally:
            self._is_working = False
            self._replies.draining = anyio.Event()  # it may work again

    async def drain(self) -> None:
        """Stop to work: begin nothing, wait `drain_seconds` for what runs, and leave the rest to the next worker.

        `work` returns when that is done; if it has not started yet, it returns at once. What is submitted meanwhile is
        stored.
        """
        self._replies.draining.set()

    @abstractmethod
    async def _work(self) -> None: ...
    @abstractmethod
    async def _open(self) -> None: ...
    @abstractmethod
    async def _close(self) -> None: ...
    @abstractmethod
    def _is_own(self, worker: str) -> bool: ...

    def _tasks_of(self, session_id: str) -> SessionTasks:
        return SessionTasks(session_id, self._tasks, lambda request: self._enqueue(request, 0), self.stop_task)

    async def _open_session(self, session_id: str) -> Agent:
        return await open_conversation(self.agent_of(session_id), self._store, session_id)

    async def _enqueue(self, request: Request, due_at: int, max_per_owner: int | None = None) -> None:
        await self._queue.add(request, due_at, self._room._replace(of_owner=max_per_owner))

    async def _interrupt(self, session_id: str, reply_id: str) -> bool:
        # In the queue too, for a worker that takes the reply over.
        is_queued = await self._queue.interrupt(session_id, reply_id)
        return self._replies.interrupt(session_id, reply_id) or is_queued

    def _check_is_open(self, method: str) -> None:
        if not self._is_open:
            raise UsageError(f"{method}() needs an open runner: write `async with runner:` around it")

    async def _check_answer(
        self, session_id: str, answer: AnswerEvent, reply_id: str | None, at: datetime | None
    ) -> Request:
        if at is not None:
            raise UsageError("submit(at=...) is for messages: an answer is taken in at once")
        conversation = await open_conversation(self.agent_of(session_id), self._store, session_id)
        conversation.check_input(answer, reply_id=reply_id)
        state = conversation.state
        known = [item.reply_id for item in (state.reply_context, state.last_reply) if item is not None]
        if answer.reply_id not in known and await self._queue.standing(session_id, answer.reply_id) is None:
            raise ResumeError(f"session {session_id!r:.100} has no reply {answer.reply_id!r:.200}", code="not_waiting")
        return make_request(session_id, answer.reply_id, answer, owner=owner_of(state.labels))

    async def _check_message(
        self, session_id: str, inputs: Any, reply_id: str | None, saved: SessionInfo | None, *, is_later: bool
    ) -> ReplyInput:
        blank = AgentState(session_id=session_id)
        blank.summary = "-"  # so that it is not the conversation, which is not loaded, that has nothing to answer
        taken = self._agent.with_state(blank).check_input(inputs, reply_id=reply_id)
        if is_later or (reply_id is not None and await self._queue.standing(session_id, reply_id) is not None):
            return taken  # what the session is like now says nothing; or it is known, and not stored again
        if taken and (saved is None or saved.status != "waiting"):
            return taken  # nothing of a long conversation is loaded
        conversation = await open_conversation(self.agent_of(session_id), self._store, session_id)
        try:
            conversation.check_input(taken, reply_id=reply_id)
        except ResumeError:
            context = conversation.state.reply_context
            if context is None or not await self._queue.pending_answers(session_id, context.reply_id):
                raise  # else the message comes after that answer
        return taken

    async def _revision(self, session_id: str) -> int:
        info = await find_session(self._store, session_id)
        return 0 if info is None else info.revision

    async def _saved_events(self, session_id: str, reply_id: str, after: int) -> list[AnyEvent]:
        """Return what a reply that runs in another process has saved, if it is more than what came up to `after`."""
        snapshot = await take_snapshot(self.agent_of(session_id), self._store, session_id, reply_id)
        if snapshot is None or snapshot.standing != "running":
            return []
        return snapshot.events_after(after)

    async def _read(self, session_id: str, reply_id: str, standing: Standing | None) -> Snapshot:
        last_number = None if standing is None else standing.number
        snapshot = await take_snapshot(self.agent_of(session_id), self._store, session_id, reply_id, last_number)
        if snapshot is not None:
            return snapshot
        if standing is not None and standing.reason is not None:  # nothing was said in it
            return empty_snapshot(self.agent_of(session_id), session_id, reply_id, standing.reason, standing.error)
        raise UsageError(
            f"session {session_id!r:.100} has no reply {reply_id!r}, or not any more: take both from the handle that "
            f"submit() returned"
        )

    async def read_message(self, session_id: str, reply_id: str) -> Msg:
        """Return the message of a reply that is over or waits for an answer."""
        for _ in range(_MAX_LOOKS):
            standing = await self._queue.standing(session_id, reply_id)
            try:
                return (await self._read(session_id, reply_id, standing)).message
            except UsageError:
                if standing is None or not standing.is_pending:
                    raise
            # Its events have ended and its session is deleted, and the queue is about to note how it ended.
            await anyio.sleep(_FIRST_PAUSE)
        return (await self._read(session_id, reply_id, await self._queue.standing(session_id, reply_id))).message

    async def _follow_schedules(self) -> None:
        """Submit what schedules ask for, for as long as there is a worker."""
        async with anyio.create_task_group() as group:
            for schedule in self._schedules.values():
                group.start_soon(self._follow_schedule, schedule)

    async def _follow_schedule(self, schedule: Schedule) -> None:
        since, pause = None, 0.0
        while True:
            try:
                now = time_ns()
                if since is None:
                    since = await self._queue.last_tick(schedule.name)
                if since is None:
                    await self._queue.note_tick(schedule.name, now)
                    since = now
                due = schedule.last_missed(since, now)
                if due is None:
                    # Not for longer, since the clock of the machine may be set.
                    pause = min(60.0, max(0.001, (schedule.next_after(max(since, now)) - now) / 1e9))
                else:
                    saved = await find_session(self._store, schedule.session_id)
                    request = make_request(
                        schedule.session_id,
                        f"tick:{due // 1_000_000}",
                        schedule.taken,
                        schedule.labels,
                        owner=owner_of(schedule.labels if saved is None else saved.labels),
                    )
                    # In this order: a process that dies in between submits the tick again, and that is stored once.
                    await self._enqueue(request, 0)
                    await self._queue.note_tick(schedule.name, due)
                    since, pause = due, 0.0
            except Exception as error:  # noqa: BLE001  # a full queue, a database that is away: the tick is made up for
                _logger.warning("the schedule %.100r waits: %s", schedule.name, error)
                pause = 1.0
            await anyio.sleep(pause)


def _check_time(at: object) -> int:
    if not isinstance(at, datetime) or at.tzinfo is None:
        raise UsageError(
            f"submit(at=...) must be a datetime with a time zone, such as datetime.now(UTC) + timedelta(hours=1), "
            f"not {at!r:.100}"
        )
    if at.year >= _MAX_YEAR:
        raise UsageError(f"submit(at=...) must be before the year {_MAX_YEAR}, not {at!r:.100}")
    return max(0, to_nanoseconds(at))


def _check_schema(schema: object, inputs: object) -> JSONSchema:
    """Return a copy of the schema; raises `InvalidInputError` for what a queue cannot hold or an answer cannot have."""
    if not isinstance(schema, dict):
        raise InvalidInputError(
            f"submit(structured_schema=...) must be a JSON schema, which a queue can hold, not {schema!r:.200}: for a "
            f"pydantic model write structured_schema=T.model_json_schema()"
        )
    if isinstance(inputs, ANSWERS):
        raise InvalidInputError("structured_schema is for a message: a reply that is answered keeps its own")
    return AnswerForm(schema).schema


def check_reply(session_id: object, reply_id: object, after: object = 0) -> None:
    """Raise `UsageError` or `InvalidInputError` for what cannot name a reply, or a number of its events."""
    check_session(session_id)
    is_name = isinstance(reply_id, str) and reply_id.isascii() and reply_id.isprintable()
    if not isinstance(reply_id, str) or not is_name or not 0 < len(reply_id) <= _MAX_REPLY_ID:
        raise InvalidInputError(f"a reply id is the reply_id of a handle, a str, not {reply_id!r:.100}")
    if type(after) is not int or not 0 <= after <= _MAX_SEQ:
        raise UsageError(f"events(after=...) must be the number of an event, 0 or more, not {after!r:.100}")
