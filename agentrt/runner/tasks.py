"""Background calls over a runner: the request of a task, the request that wakes its parent, and what is known of each.

A task is a reply in a session of its own, which begins with the call that was let go. Whatever becomes of it, its end
is a message to the session that let it go, stored under an id that the queue takes once: before the request of the task
is over in the queue, and again by the worker that takes that request over.
"""

import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from json import dumps, loads
from sys import maxsize
from time import monotonic
from typing import Any, Literal

import anyio

from agentrt._runtime.conversation.progress import QuestionEvent
from agentrt._runtime.flow.handles import held_in
from agentrt._runtime.flow.release import describe_held, replace_in_message
from agentrt._runtime.loop.repeat import find_reply
from agentrt.agent import Agent
from agentrt.errors import InvalidInputError, SessionIOError, StateError
from agentrt.message import Msg, TextBlock, ToolCallBlock, ToolResultBlock, ToolResultState
from agentrt.runner.queue import QueueRoom, ReplyQueue, Result
from agentrt.runner.requests import Request, make_request, owner_of
from agentrt.state import AgentState, SessionInfo, SessionStore, TaskRecord
from agentrt.state.store import find_session
from agentrt.types import FinishedReason

TaskStanding = Literal["running", "waiting", "over"]
"""How a task stands: it runs or is queued, it waits for an answer, or its result is on its way or has come."""

TaskOutcome = ToolResultState | Literal["given_up", "none"]
"""How a task ended: the state of its result, "given_up" if it killed too many workers, or "none" without a result."""

UNLIMITED = QueueRoom(maxsize, maxsize)
"""The room for what must not be refused."""

_TASK_ID = re.compile(r"task:[0-9a-f]{16}(\.done)?")
_MAX_OVER = 100  # tasks that are over, in a list
_START_SECONDS = 10.0  # as for a save
_AGAIN_SECONDS = 0.5
_HOW = {
    ToolResultState.SUCCESS: "is done",
    ToolResultState.ERROR: "failed",
    ToolResultState.DENIED: "was not permitted",
    ToolResultState.INTERRUPTED: "was stopped",
    ToolResultState.TIMEOUT: "took too long",
    ToolResultState.UNKNOWN: "may have taken effect or not: nobody knows",
}


@dataclass(frozen=True, slots=True)
class TaskInfo:
    """A background call of a session: its tool, how it stands, and the session and reply that make it.

    `question` is the event that asks, of one that waits: `Runner.answer` takes the answer to it in either session.
    `outcome` says how one ended that is over.
    """

    id: str
    tool: str
    state: TaskStanding
    session_id: str
    reply_id: str
    question: QuestionEvent | None = None
    outcome: TaskOutcome | None = None


def is_task_id(reply_id: object) -> bool:
    """Say whether the runtime gives such ids to tasks, and to the replies that they wake."""
    return isinstance(reply_id, str) and _TASK_ID.fullmatch(reply_id) is not None


def make_wake(task: TaskRecord, state: AgentState, result: Result) -> Request:
    """Return the request that wakes the parent of a task which is over; `state` is that of the task's session.

    It states the outcome of the task, even if its reply has said nothing.
    """
    reason, error = _end_in(state, task) or (result.reason, result.error)
    message = find_reply(state, task.id)
    block = None if message is None else _result_in(message, task)
    outcome = _outcome_of(block, reason)
    if outcome == "given_up":
        how = f"was given up: {error}"
    elif outcome == "none":
        how = f"ended without a result ({reason or 'its session was deleted, or has expired'})"
    else:
        how = _HOW[outcome]
    output = [] if block is None else block.blocks
    content: list[Any] = [part for part in output if not isinstance(part, TextBlock) or part.text.strip()]
    end = ". Its result follows." if content else "."
    metadata: dict[str, Any] = {
        "task_id": task.id,
        "state": (ToolResultState.ERROR if block is None else block.state).value,
    }
    # The values move with their labels: the handles of one conversation mean nothing in another one.
    moving = held_in(state, [item.text for item in content if isinstance(item, TextBlock)])
    if moving is not None:
        metadata["held"] = loads(AgentState(held=moving).model_dump_json())["held"]
    head = TextBlock(f"The background call of {task.tool} ({task.id}) {how}{end}")
    wake = Msg("task", [head, *content], "user", metadata=metadata)
    # Its session must be there: a call of a deleted session does not bring it back.
    return make_request(task.parent, task.wake_id, [wake], None, owner=owner_of(state.labels))


def _end_in(state: AgentState, task: TaskRecord) -> tuple[FinishedReason | None, str | None] | None:
    last = state.last_reply
    return (last.finished_reason, last.error) if last is not None and last.reply_id == task.id else None


def _result_in(message: Msg, task: TaskRecord) -> ToolResultBlock | None:
    results = message.get_content_blocks("tool_result")
    return next((block for block in results if block.id == task.call_id), None)


def _outcome_of(result: ToolResultBlock | None, reason: FinishedReason | None) -> TaskOutcome:
    if reason == "failed":
        return "given_up"
    if result is not None:
        return result.state
    return ToolResultState.INTERRUPTED if reason == "interrupted" else "none"


class Tasks:
    """The tasks of the sessions of a runner. `queue` gives the runner's queue, which is there while it is open."""

    def __init__(
        self, store: SessionStore, queue: Callable[[], ReplyQueue], open_session: Callable[[str], Awaitable[Agent]]
    ) -> None:
        self._store = store
        self._queue = queue
        self._open_session = open_session

    async def find(self, session_id: str) -> list[TaskInfo]:
        """Return the tasks of a session, in the order of their start; of those that are over, the newest 100."""
        state = await self._store.load(session_id)
        known = {} if state is None else dict(state.tasks)
        saved = [info async for info in self._list_saved(session_id)]
        saved.sort(key=lambda info: info.created_at)
        over = [info for info in saved if info.status == "idle"]
        left_out = {info.session_id for info in over[:-_MAX_OVER]}
        found: dict[str, TaskInfo] = {}
        for info in saved:
            if info.session_id in left_out:
                continue
            task = (await self._open_session(info.session_id)).state.task
            if task is not None and task.parent == session_id:
                known[task.id] = task
        for task in known.values():
            described = await self.describe(task)
            if described is not None:
                found[task.id] = described
        return list(found.values())

    async def describe(self, task: TaskRecord) -> TaskInfo | None:
        """Return what is known of a task, `None` for one that was never started."""
        standing = await self._queue().standing(task.session_id, task.id)
        agent = await self._open_session(task.session_id)
        question, outcome = agent.waiting(), None
        state: TaskStanding = "over"
        if standing is not None and standing.is_pending:
            state, question = "running", None
        elif question is not None:
            state = "waiting"
        elif agent.state.reply_context is not None:
            state = "running"
        elif standing is None and not agent.state.revision:
            return None
        else:
            reason, _ = _end_in(agent.state, task) or (None if standing is None else standing.reason, None)
            message = find_reply(agent.state, task.id)
            outcome = _outcome_of(None if message is None else _result_in(message, task), reason)
        return TaskInfo(task.id, task.tool, state, task.session_id, task.id, question, outcome)

    async def session_ids(self, session_id: str) -> list[str]:
        """Return the sessions of the tasks of a session, those that are over too."""
        with_prefix = [info.session_id async for info in self._list_saved(session_id)]
        try:
            state = await self._store.load(session_id)
        except StateError:  # a damaged session can be deleted, and so can its tasks
            state = None
        known = [] if state is None else [task.session_id for task in state.tasks.values()]
        return list(dict.fromkeys([*with_prefix, *known]))

    async def wake_by_deletion(self, session_id: str) -> Request | None:
        """Return what wakes the parent of a task whose session is about to be deleted before it is over."""
        try:
            state = await self._store.load(session_id)
        except StateError:
            return None
        if state is None or state.task is None or state.reply_context is None:
            return None
        if state.task.session_id != session_id:  # a fork of it
            return None
        return make_wake(state.task, state, Result("over", "interrupted", "its session was deleted"))

    async def wake_of_lost(self, task: TaskRecord, labels: Mapping[str, str]) -> Request | None:
        """Return what wakes the parent of a task that is over if nothing else does, as where its session has expired.

        The labels are those of the parent.
        """
        # In this order: a worker stores the wake before the request of the task is over.
        described = await self.describe(task)
        if described is not None and described.state != "over":
            return None
        if await self._queue().standing(task.parent, task.wake_id) is not None:
            return None
        state = (await self._open_session(task.session_id)).state
        state.labels = dict(labels)
        return make_wake(task, state, Result("over"))

    async def session_asked(self, session_id: str, reply_id: str) -> str | None:
        """Return the session of the task of that id, `None` where the session has no such task."""
        if not is_task_id(reply_id):
            return None
        task_session = TaskRecord(reply_id, "", "", session_id).session_id
        if await find_session(self._store, task_session) is None:
            return None
        task = (await self._open_session(task_session)).state.task
        return task_session if task is not None and (task.id, task.parent) == (reply_id, session_id) else None

    async def read(self, task: TaskInfo) -> str:
        """Return the result of a task that is over, as its conversation shows it to a model."""
        state = (await self._open_session(task.session_id)).state
        message = find_reply(state, task.id)
        if message is None or state.task is None:
            return "It ended without a result."
        # Held values are described here, and come with their labels when the task wakes the conversation.
        result = _result_in(replace_in_message(state, message, describe_held), state.task)
        return "" if result is None else result.text

    async def _list_saved(self, session_id: str) -> AsyncIterator[SessionInfo]:
        prefix = TaskRecord("task:" + "0" * 16, "", "", session_id).session_id.removesuffix("0" * 16)
        cursor: str | None = None
        while True:
            page = await self._store.list(prefix=prefix, limit=1000, cursor=cursor)
            for info in page.sessions:
                if is_task_id(info.session_id.rpartition("~")[2]):
                    yield info
            cursor = page.cursor
            if cursor is None:
                return


class SessionTasks:
    """The tasks of one session, for the loop of its replies and for the tools of its model."""

    def __init__(
        self,
        session_id: str,
        tasks: Tasks,
        enqueue: Callable[[Request], Awaitable[None]],
        stop: Callable[[str, str], Awaitable[bool]],
    ) -> None:
        self._session_id = session_id
        self._tasks = tasks
        self._enqueue = enqueue
        self._stop = stop

    async def start(self, task: TaskRecord, state: AgentState) -> None:
        """Store the conversation of a task, to be run by any worker; done again, it changes nothing."""
        assert state.reply_context is not None
        call = state.reply_context.blocks[0]
        assert isinstance(call, ToolCallBlock)
        # Of the call alone: who submits it again, after a kill, may have other data for its layers by then.
        digest = sha256(dumps([task.parent, call.id, call.name, call.input]).encode()).hexdigest()[:32]
        text, labels = state.model_dump_json(), dict(state.labels)
        request = Request(task.session_id, task.id, "task", task.id, digest, text, labels, owner_of(labels))
        deadline = monotonic() + _START_SECONDS
        while True:
            try:
                await self._enqueue(request)
                return
            except SessionIOError:
                if monotonic() > deadline:
                    raise
            await anyio.sleep(_AGAIN_SECONDS)

    async def find_lost_wakes(self, state: AgentState) -> list[Request]:
        """Return what wakes this session, whose state is given, for tasks that are over and would never wake it."""
        found = [await self._tasks.wake_of_lost(task, state.labels) for task in list(state.tasks.values())]
        return [wake for wake in found if wake is not None]

    async def state_of(self, task: TaskRecord) -> TaskStanding | None:
        """Say how a task stands; `None` for one that was never started."""
        described = await self._tasks.describe(task)
        return None if described is None else described.state

    async def describe(self) -> str:
        """Return the tasks of the session, one on each line."""
        lines = [f"{task.id} {task.tool}: {task.state}" for task in await self._tasks.find(self._session_id)]
        return "\n".join(lines) or "There are no background calls."

    async def read(self, task_id: str) -> str:
        """Return how a task stands, and its result where it has one."""
        task = await self._find(task_id)
        head = f"{task.id} {task.tool}: {task.state}"
        return f"{head}\n{await self._tasks.read(task)}" if task.state == "over" else head

    async def stop(self, task_id: str) -> bool:
        """End a task; returns whether there was one to end."""
        return await self._stop(self._session_id, (await self._find(task_id)).id)

    async def _find(self, task_id: str) -> TaskInfo:
        found = {task.id: task for task in await self._tasks.find(self._session_id)}
        if task_id not in found:
            raise InvalidInputError(f"this conversation has no background call {task_id!r:.100}: list_tasks names them")
        return found[task_id]
