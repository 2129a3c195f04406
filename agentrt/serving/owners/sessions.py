"""The sessions of one owner, by the ids that clients know, and what a client is shown of them."""

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import ExitStack, aclosing, asynccontextmanager
from dataclasses import replace
from json import loads
from typing import Any

import anyio

from agentrt import Agent, AgentState, Msg
from agentrt._runtime.conversation.inputs import AnswerEvent
from agentrt._runtime.timestamp import timestamp_text
from agentrt.errors import SessionConflict, SessionCorrupt
from agentrt.event import (
    AgentEvent,
    AnyEvent,
    ExternalExecutionResultEvent,
    ReplyEndEvent,
    ReplyResumedEvent,
    ReplyStartEvent,
    SubagentEndEvent,
    SubagentStartEvent,
    TaskStartedEvent,
    UserConfirmResultEvent,
    UserInterruptEvent,
)
from agentrt.runner import ReplyHandle, TaskInfo
from agentrt.runner.base import RunnerBase
from agentrt.runs import RunStore, run_stores
from agentrt.serving.failure import ApiError
from agentrt.serving.owners.owner import Owner, PlaceKind
from agentrt.serving.owners.session_counts import full_of_bytes
from agentrt.serving.sse import public_error
from agentrt.state import SessionInfo, SessionPage
from agentrt.state.store import find_session
from agentrt.types import JSONSchema

_MAX_STORED_ID = 500  # characters
_SECONDS_TO_FORGET = 30.0
_MAX_LOOKED_AT = 100
"""How many sessions in progress are searched for a reply that the queue does not know."""
_SESSION_FIELDS: dict[type, str] = {
    **dict.fromkeys((ReplyStartEvent, ReplyResumedEvent, ReplyEndEvent), "session_id"),
    **dict.fromkeys((UserConfirmResultEvent, ExternalExecutionResultEvent, UserInterruptEvent), "session_id"),
    **dict.fromkeys((SubagentStartEvent, SubagentEndEvent), "child_session_id"),
    TaskStartedEvent: "session_id",
}
"""The events that have the id of a session, and where."""


class OwnerSessions:
    """The sessions of one owner with one agent. Ids that come in and go out are public; stored ones stay inside.

    A session is the owner's by its label. Its stored id is in the owner's namespace, or the public one, as it was
    before there were namespaces, and is where a program names it. `places` end with the request.
    """

    def __init__(self, owner: Owner, runner: RunnerBase, places: ExitStack | None = None) -> None:
        self.owner = owner
        self._runner = runner
        self._places = places
        self._stored_ids: dict[str, str] = {}  # by the public ones that were found
        self._sizes: dict[str, int] = {}  # by the stored ids

    @property
    def agent(self) -> Agent:
        """The agent that they are with."""
        return self._runner.agent

    @property
    def runs(self) -> RunStore | None:
        """The store of the agent's recorded runs; `None` where nothing can be recorded."""
        store: object = next(iter(run_stores(self.agent)), getattr(self._runner.store, "runs", None))
        return store if isinstance(store, RunStore) else None

    @property
    def is_open(self) -> bool:
        """Whether the runner of the agent is open."""
        return self._runner.is_open

    def take_place(self, kind: PlaceKind) -> None:
        """Count one more of this kind until the request ends; raises `ApiError` where the owner has all it may have."""
        assert self._places is not None
        self._places.enter_context(self.owner.place(kind))

    def with_runner(self, runner: RunnerBase) -> "OwnerSessions":
        """Return the sessions of the same owner with another agent."""
        return OwnerSessions(self.owner, runner, self._places)

    # Sessions.

    async def find(self, session_id: str) -> SessionInfo | None:
        """Return what is known of a session, `None` where the owner has none of this id."""
        if not _is_session_id(session_id):
            raise no_session()
        for stored_id in self.possible_ids(session_id):
            try:
                info = await find_session(self._runner.store, stored_id)
            except SessionCorrupt:
                if self._is_own(stored_id) or not self.owner.prefix:  # the owner's, who may delete it
                    self._stored_ids[session_id] = stored_id
                raise
            if info is not None and self.owns(info.labels):
                self._stored_ids[session_id] = stored_id
                size = getattr(info, "size", None)
                if size is not None and self._is_own(stored_id):
                    self._sizes[stored_id] = size
                    self.owner.session_counts.note_size(self.owner.prefix, self._runner.store, stored_id, size)
                return replace(info, session_id=session_id)
        return None

    def possible_ids(self, session_id: str) -> list[str]:
        """Return the stored ids that may belong to a public id: that in the namespace, and the one outside."""
        own_id = self.owner.session_id(session_id)
        # Without the last condition, an id with the digest in it would be another name of a session.
        return [
            stored_id
            for stored_id in dict.fromkeys((own_id, session_id))
            if len(stored_id) <= _MAX_STORED_ID and (stored_id == own_id or not self._is_own(stored_id))
        ]

    async def get(self, session_id: str) -> SessionInfo:
        """Return the info of a session; raises `ApiError` for an unknown one."""
        info = await self.find(session_id)
        if info is None:
            raise no_session()
        return info

    async def find_state(self, session_id: str) -> AgentState | None:
        """Return the state of a session, which has its stored id; `None` where the owner has none of this id."""
        state = await self._runner.store.load(await self.stored_id(session_id))
        # Checked again: it may have been deleted, and created by another owner, since it was found.
        return state if state is not None and self.owns(state.labels) else None

    async def load(self, session_id: str) -> AgentState:
        """Return the state of a session as its owner reads it; raises `ApiError` for an unknown one.

        Its messages have the values for which the saved ones have handles, so it must not be saved.
        """
        state = await self.find_state(session_id)
        if state is None:
            raise no_session()
        conversation = self.agent.with_state(state)
        state.context = [conversation.released(message, "output") for message in state.context]
        if state.reply_context is not None:
            state.reply_context.message = conversation.released(state.reply_context.message, "output")
        return state

    async def ensure(self, session_id: str) -> None:
        """Begin the session, if it is new. It is saved before anything is asked of it, so it has one owner."""
        check_sent_id(session_id, "the id of the session")
        if session_id not in self._stored_ids and await self.find(session_id) is None:
            await self.begin(session_id)

    async def begin(
        self, session_id: str, context: Sequence[Msg] = (), labels: Mapping[str, str] | None = None
    ) -> None:
        """Create a session; one created at the same time by the same owner is used instead."""
        stored_id = self.new_id(session_id, "the id of the session")
        state = AgentState(session_id=stored_id, context=list(context), labels={**self.owner.labels, **(labels or {})})
        try:
            await self._save_new(state)
        except SessionConflict:
            await self.get(session_id)
        self._stored_ids[session_id] = stored_id

    async def begin_with(self, fork: Agent) -> ReplyHandle:
        """Save the conversation of a fork, which has a stored id that is new, and continue its reply."""
        state, runner = fork.state, self._runner
        assert state.reply_context is not None  # each step has one
        state.labels.update(self.owner.labels)
        stored_id, session_id = state.session_id, self.owner.public_id(state.session_id)
        try:
            await self._save_new(state)
        except SessionConflict:
            raise ApiError(409, "exists", "a session with this id already exists") from None
        self._stored_ids[session_id] = stored_id
        runner.run_with(fork, stored_id)
        reply_id = state.reply_context.reply_id
        if fork.waiting() is None:
            max_queued = self.owner.limits.queued_per_owner
            try:
                await runner.submit(stored_id, None, reply_id=reply_id, max_queued_per_owner=max_queued)
            except BaseException:
                with anyio.move_on_after(_SECONDS_TO_FORGET, shield=True):
                    await self.forget(session_id)
                raise
        return self.handle(session_id, reply_id)

    async def _save_new(self, state: AgentState) -> None:
        async with self._count_new(state.session_id, _size_of(state.context)):
            await self._runner.store.save(state)

    async def fork(self, session_id: str, new_id: str, messages: int | None) -> SessionInfo:
        """Copy a session, as the store's `fork` does; raises `ApiError` where the new one is there already."""
        stored_id = self.new_id(new_id, "'session_id'")
        source = await self.stored_id(session_id)
        if await self.find(new_id) is not None:
            raise ApiError(409, "exists", "a session with this id already exists")
        try:
            # Before it is copied, so that many forks at once count too; `get` corrects the size.
            async with self._count_new(stored_id, self._sizes.get(source, 0)):
                await self._runner.store.fork(source, stored_id, messages=messages)
        except SessionConflict:
            raise ApiError(409, "exists", "a session with this id already exists") from None
        return await self.get(new_id)

    async def delete(self, session_id: str) -> None:
        """Delete a session, with what is queued for it."""
        stored_id = await self.stored_id(session_id)
        await self._runner.delete(stored_id)
        self._note_end(stored_id)

    async def forget(self, session_id: str) -> None:
        """Delete a session whose reply has ended; what the queue knows of that stays."""
        stored_id = await self.stored_id(session_id)
        await self._runner.store.delete(stored_id)
        self._note_end(stored_id)

    async def list_page(self, *, prefix: str = "", limit: int, cursor: str | None = None) -> SessionPage:
        """Return a page of the sessions whose public ids begin with the prefix: first those in the namespace."""
        store, labels = self._runner.store, self.owner.labels
        if not labels:
            return await store.list(labels=labels, prefix=prefix, limit=limit, cursor=cursor)
        # All of them are found by the label alone, and those of a prefix in two places.
        prefixes = [self.owner.session_id(prefix), prefix] if prefix else [""]
        place, stored_cursor = self._read_cursor(cursor, len(prefixes))
        while True:
            page = await store.list(labels=labels, prefix=prefixes[place], limit=limit, cursor=stored_cursor)
            found = [
                replace(info, session_id=self.owner.public_id(info.session_id))
                for info in page.sessions
                if not place or not self._is_own(info.session_id)
            ]
            stored_cursor = page.cursor
            place += stored_cursor is None
            following = None if place == len(prefixes) else self._make_cursor(place, stored_cursor)
            if found or following is None:
                return SessionPage(found, following)

    async def stored_id(self, session_id: str) -> str:
        """Return the stored id of a session, or the one that a new session gets; no client is shown it."""
        if session_id not in self._stored_ids:
            await self.find(session_id)
        return self._stored_ids.get(session_id) or self.owner.session_id(session_id)

    async def tasks(self, session_id: str) -> list[TaskInfo]:
        """Return the background calls of a session; raises `ApiError` for an unknown one."""
        await self.get(session_id)
        tasks = await self._runner.tasks(await self.stored_id(session_id))
        return [
            replace(task, session_id=self.owner.public_id(task.session_id)) if self._is_own(task.session_id) else task
            for task in tasks
        ]

    # Replies.

    async def submit(
        self, session_id: str, messages: Sequence[Msg], reply_id: str | None, schema: JSONSchema | None = None
    ) -> ReplyHandle:
        """Start a reply in a found or created session; raises like the runner's `submit`."""
        stored_id = await self.stored_id(session_id)
        counts, limits = self.owner.session_counts, self.owner.limits
        is_full = self._is_own(stored_id) and await counts.is_full(self.owner.prefix, self._runner.store, limits)
        # What was sent before is not added, and is answered as it was then.
        if is_full and (reply_id is None or not await self._runner.has_reply(stored_id, reply_id)):
            raise full_of_bytes(limits)
        handle = await self._runner.submit(
            stored_id,
            [*messages],
            schema,
            reply_id=reply_id,
            labels=self.owner.labels,
            max_queued_per_owner=limits.queued_per_owner,
        )
        # The store tells the bytes of a session only when it is asked for it, so these are counted here.
        if self._is_own(stored_id):
            added, size = _size_of(messages), self._sizes.get(stored_id, 0)
            self.owner.session_counts.add_bytes(self.owner.prefix, self._runner.store, stored_id, added, size)
        return self.handle(session_id, handle.reply_id)

    async def answer(self, session_id: str, answer: AnswerEvent) -> ReplyHandle:
        """Resume a reply, or a background call of the session that asks; raises as the runner's `answer` does."""
        stored_id = await self.stored_id(session_id)
        if answer.session_id == session_id:
            answer = replace(answer, session_id=stored_id)
        handle = await self._runner.answer(stored_id, answer)
        is_elsewhere = handle.session_id != stored_id
        own_id = self.owner.public_id(handle.session_id) if is_elsewhere else session_id
        return self.handle(own_id, handle.reply_id)

    def handle(self, session_id: str, reply_id: str) -> ReplyHandle:
        """Return a handle of a reply, for which this is the runner."""
        return ReplyHandle(self, session_id, reply_id)

    async def events(self, session_id: str, reply_id: str, *, after: int = 0) -> AsyncGenerator[AnyEvent, None]:
        """Follow a reply; its events have public ids."""
        async with aclosing(self._runner.events(await self.stored_id(session_id), reply_id, after=after)) as events:
            async for event in events:
                field = _SESSION_FIELDS.get(event.__class__)
                if field is not None and self._is_own(getattr(event, field) or ""):
                    # Copied: other followers get the same event.
                    changes: dict[str, Any] = {field: self.owner.public_id(getattr(event, field))}
                    event = replace(event, **changes)
                yield event

    async def interrupt(self, session_id: str, reply_id: str) -> bool:
        return await self._runner.interrupt(await self.stored_id(session_id), reply_id)

    async def read_message(self, session_id: str, reply_id: str) -> Msg:
        return await self._runner.read_message(await self.stored_id(session_id), reply_id)

    async def has_reply(self, session_id: str, reply_id: str) -> bool:
        return await self._runner.has_reply(await self.stored_id(session_id), reply_id)

    async def status(self, session_id: str, reply_id: str) -> str | None:
        return await self._runner.status(await self.stored_id(session_id), reply_id)

    async def queued_replies(self, session_id: str) -> list[str]:
        """Return the replies of a found session that are queued or running."""
        return await self._runner.queued_replies(await self.stored_id(session_id))

    async def can_have_sent(self, state: AgentState, reply_id: str, number: int) -> bool:
        return await self._runner.can_have_sent(state, reply_id, number)

    async def find_session_of(self, reply_id: str) -> str:
        """Return the session of a reply; raises `ApiError` unless there is exactly one."""
        # Ids that clients choose are unique in a session, and not among owners.
        names = await self._runner.find_sessions(reply_id, owner=self.owner.name)
        found = [self.owner.public_id(name) for name in names if self._is_own(name)]
        if not found:
            found = [name for name in names if _is_session_id(name) and await self.find(name) is not None]
        if not found:
            found = await self._find_in_progress(reply_id)
        if not found:
            raise no_reply()
        if len(found) > 1:
            raise ApiError(
                409, "ambiguous", "several of your sessions have a reply with this id: add ?session= and the session id"
            )
        return found[0]

    def cost_of(self, state: AgentState) -> float | None:
        """Return the cost of the conversation; `None` where no layer counts it, or knows the prices."""
        conversation = self.agent.with_state(state)
        for layer in conversation.middlewares:
            report = getattr(layer, "of_conversation", None)  # as `UsageMiddleware` has it
            if callable(report):
                cost: float | None = report(conversation).cost
                return cost
        return None

    def question_of(self, state: AgentState) -> dict[str, Any] | None:
        """Return the event that asks for what the session waits for."""
        question = self.agent.with_state(state).waiting()
        return None if question is None else event_json(question)

    def task_of(self, state: AgentState) -> dict[str, str] | None:
        """Return the background call that a session makes, with the session that let it go; `None` for other ones."""
        task = state.task
        if task is None or task.session_id != state.session_id:  # a fork of it
            return None
        return {"id": task.id, "tool": task.tool, "session_id": self.owner.public_id(task.parent)}

    def owns(self, labels: Mapping[str, str]) -> bool:
        """Say whether something with these labels is the owner's."""
        return self.owner.labels.items() <= labels.items()

    def _is_own(self, stored_id: str) -> bool:
        return bool(self.owner.prefix) and stored_id.startswith(self.owner.prefix)

    @asynccontextmanager
    async def _count_new(self, stored_id: str, size: int) -> AsyncGenerator[None, None]:
        """Count a session that is saved in the body; raises `ApiError` where the owner has reached a limit."""
        owner, store = self.owner, self._runner.store
        if owner.name is None:
            yield
            return
        await owner.session_counts.add(owner.prefix, store, owner.limits, stored_id, size)
        try:
            yield
        except BaseException:
            owner.session_counts.remove(owner.prefix, store, stored_id)
            raise

    def _note_end(self, stored_id: str) -> None:
        if self._is_own(stored_id):
            self.owner.session_counts.remove(self.owner.prefix, self._runner.store, stored_id)

    def new_id(self, session_id: str, place: str) -> str:
        """Return the stored id of a new session; raises `ApiError` for a public id that it cannot have."""
        check_new_id(session_id, place)
        stored_id = self.owner.session_id(session_id)
        if len(stored_id) > _MAX_STORED_ID:
            longest = _MAX_STORED_ID - len(self.owner.prefix)
            raise ApiError(400, "session_id", f"{place} must be text of 1 to {longest} characters")
        return stored_id

    def _make_cursor(self, place: int, stored_cursor: str | None) -> str:
        # A cursor is an id, with what clients do not see, or whatever a custom store has in its place.
        if stored_cursor is not None and self._is_own(stored_cursor):
            return f"{place}.{self.owner.public_id(stored_cursor)}"
        return f"{place}:{stored_cursor or ''}"

    def _read_cursor(self, cursor: str | None, places: int) -> tuple[int, str | None]:
        if cursor is None:
            return 0, None
        place, mark, rest = cursor[:1], cursor[1:2], cursor[2:]
        if place not in "01"[:places] or mark not in (".", ":"):
            raise ApiError(400, "cursor", "?cursor= must be the cursor of the page before")
        return int(place), (self.owner.session_id(rest) if mark == "." else rest) or None

    async def _find_in_progress(self, reply_id: str) -> list[str]:
        # A queue in memory has forgotten, after a restart, which replies wait for an answer.
        page = await self._runner.store.list(labels=self.owner.labels, limit=1000)
        in_progress = [info.session_id for info in page.sessions if info.status != "idle"]
        for session_id in in_progress[:_MAX_LOOKED_AT]:
            state = await self._runner.store.load(session_id)
            context = state.reply_context if state is not None else None
            if context is not None and context.reply_id == reply_id:
                return [self.owner.public_id(session_id)]
        return []


def _size_of(messages: Sequence[Msg]) -> int:
    return sum(len(message.to_json()) for message in messages)


def describe_session(info: SessionInfo) -> dict[str, Any]:
    """Return what a list says of a session."""
    return {
        "session_id": info.session_id,
        "revision": info.revision,
        "status": info.status,
        "messages": info.messages,
        "size": info.size,
        "created_at": timestamp_text(info.created_at),
        "updated_at": timestamp_text(info.updated_at),
    }


def message_json(message: Msg) -> dict[str, Any]:
    """Return a message as a client sees it."""
    values: dict[str, Any] = loads(message.to_json())
    values["error"] = public_error(message.finished_reason, message.error)
    return values


def event_json(event: AgentEvent) -> dict[str, Any]:
    """Return an event as a client sees it."""
    values: dict[str, Any] = loads(event.to_json())
    return values


def check_sent_id(session_id: object, place: str) -> str:
    """Return the id; raises `ApiError` for what cannot be the id of a session."""
    if not isinstance(session_id, str) or not _is_session_id(session_id):
        raise ApiError(400, "session_id", f"{place} must be text of 1 to 500 characters without control characters")
    return session_id


def check_new_id(session_id: object, place: str) -> str:
    """Return the id; raises `ApiError` for what a new session cannot have."""
    checked = check_sent_id(session_id, place)
    # Clients and proxies take these for folders, and ask for another path.
    if not {".", ".."}.isdisjoint(checked.split("/")):
        raise ApiError(400, "session_id", f"{place} must not have '.' or '..' alone, or between slashes")
    return checked


def _is_session_id(text: str) -> bool:
    # What cannot be printed would be invisible in a log, or break its lines.
    return 1 <= len(text) <= 500 and text.isprintable()


def no_session() -> ApiError:
    return ApiError(404, "no_session", "this session does not exist")


def no_reply() -> ApiError:
    return ApiError(404, "no_reply", "this reply does not exist, or was deleted")
