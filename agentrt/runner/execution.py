"""Running one request: what an engine has chosen to run, from the saved state on, wherever the last process left it."""

import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from time import monotonic
from typing import TypeAlias

import anyio

from agentrt._runtime.loop.repeat import find_reply
from agentrt._runtime.loop.tool_calls.background import task_woken_by
from agentrt.agent import Agent, ReplyStream
from agentrt.errors import AgentRTError, SessionConflict, SessionIOError, StateError, UsageError
from agentrt.event import AnyEvent, ExternalExecutionResultEvent, ToolResultEndEvent, UserConfirmResultEvent
from agentrt.message import Msg, TextBlock, ToolResultState
from agentrt.runner.events import EventLog, resumed_event
from agentrt.runner.queue import ClaimedRequest, Result
from agentrt.runner.requests import Request
from agentrt.runner.tasks import SessionTasks, is_task_id, make_wake
from agentrt.runs.fork import guard_fork
from agentrt.state import AgentState, ReplyContext, ReplyOutcome, SessionStore, TaskRecord

_logger = logging.getLogger("agentrt")
_FIRST_DELAY = 0.1
_MAX_DELAY = 5.0
_PATIENCE = 10.0  # less than the loop's own limit for a save
_ReplyEvents: TypeAlias = ReplyStream[AnyEvent]


class _PatientStore:
    """A store that is asked again when it is away: a server that is started again ends no reply.

    A store of the user's own may say so by a plain `OSError`, which is a `SessionIOError` from here on.

    After a save that failed all the same it saves nothing more: what the reply says from there on, such as that it has
    failed, is not so, since it is resumed from what was saved.
    """

    def __init__(self, store: SessionStore) -> None:
        self._store = store
        self.failure: SessionConflict | SessionIOError | None = None

    async def save(self, state: AgentState) -> None:
        deadline, delay = monotonic() + _PATIENCE, _FIRST_DELAY
        while self.failure is None:
            try:
                # A save whose answer was lost may have been done: then this one is a conflict, or finds itself there.
                await self._store.save(state)
                return
            except SessionConflict as error:
                self.failure = error
                raise
            except (SessionIOError, OSError) as error:
                if monotonic() + delay > deadline:
                    self.failure = _as_session_error(error)
                    break
            await anyio.sleep(delay)
            delay = min(2 * delay, 1.0)
        raise self.failure

    async def load(self, session_id: str) -> AgentState | None:
        try:
            return await self._store.load(session_id)
        except OSError as error:
            raise _as_session_error(error) from error


def _as_session_error(error: SessionIOError | OSError) -> SessionIOError:
    # By its class alone: its words may name what is secret.
    return error if isinstance(error, SessionIOError) else SessionIOError(f"the store failed: {type(error).__name__}")


class Execution:
    """Runs one request, and can be told to stop.

    Where others may take it away, `is_ours` says whether they have. Before anything of a reply runs, `prepare` is
    awaited with the number of workers that died with it since it got on; `on_progress` is called when it gets on, and
    `note_saved` when the session of a task was saved for the first time. `tasks` makes the background calls of its
    session.
    """

    def __init__(
        self,
        agent: Agent,
        store: SessionStore,
        events: EventLog,
        claimed: ClaimedRequest,
        *,
        max_attempts: int,
        is_ours: Callable[[], Awaitable[bool]] | None = None,
        prepare: Callable[[int], Awaitable[None]],
        note_saved: Callable[[], Awaitable[None]],
        on_progress: Callable[[], object],
        tasks: SessionTasks,
    ) -> None:
        self.request = claimed.request
        self.is_interrupted = claimed.is_interrupted
        self._agent = agent
        self._store = store
        self._events = events
        self._deaths = claimed.deaths
        self._max_attempts = max_attempts
        self._is_ours = is_ours
        self._prepare, self._note_saved, self._on_progress = prepare, note_saved, on_progress
        self._tasks = tasks
        self._state: AgentState | None = None  # as it was loaded last
        self._task: TaskRecord | None = None  # that this is the session of; known also when that is deleted
        self._resumed: set[str] = set()  # replies
        self._leaving = anyio.Event()
        self._was_saved = claimed.request.labels is None
        self._conversation: Agent | None = None
        self._stream: _ReplyEvents | None = None

    def interrupt(self) -> None:
        """End the reply tidily, as soon as it runs."""
        if self._conversation is None:
            self.is_interrupted = True
        else:
            _ = self._conversation.interrupt()

    async def leave(self) -> None:
        """Stop, and leave the reply to be resumed elsewhere."""
        self._leaving.set()
        if self._stream is not None:
            await self._stream.hand_over()

    async def run(self) -> Result:
        """Run until there is nothing left to do here. A store that is away is waited for, without an end."""
        delay = _FIRST_DELAY
        while not self._leaving.is_set():
            try:
                # A conflict may come from the worker that has the request now, or from a program that has none of this.
                if self._is_ours is not None and not await self._is_ours():
                    break
                result = await self._take_step()
                if result is not None:
                    await self._keep_wake(result)
                    return result
                delay = _FIRST_DELAY
                continue
            except SessionConflict:
                # Another writer has saved the session. What it has saved counts, so look at that.
                pass
            except SessionIOError as error:
                _logger.warning("%s waits for its store: %s", self._name, error)
            except StateError as error:  # damaged, or of another version
                return self._refuse(error)
            with anyio.move_on_after(delay):
                await self._leaving.wait()
            delay = min(2 * delay, _MAX_DELAY)
        return Result("left")

    async def wakes(self, result: Result) -> list[Request]:
        """Return the requests by which tasks that are over wake their parents: this one, or those of this session.

        Made of the saved state, so that the next worker makes the same.
        """
        wake = self._wake_of_parent(result)
        if wake is not None:
            return [wake]
        return [] if self._state is None or result.kind != "over" else await self._tasks.find_lost_wakes(self._state)

    def _wake_of_parent(self, result: Result) -> Request | None:
        """Return the request that wakes the parent of a task which is over with this result; `None` for others."""
        state, task = self._state, self._task
        if self.request.kind == "task" and task is None:  # what is saved cannot be read, or is not of this task
            state = replace(self.request.new_state(), reply_context=None)
            task = state.task
        if state is None or task is None or task.id != self.request.reply_id or result.kind != "over":
            return None
        # An answer that was refused when its turn came ends its own request, and not the task.
        is_in_progress = state.revision > 0 and state.reply_context is not None
        return None if is_in_progress else make_wake(task, state, result)

    @property
    def is_leaving(self) -> bool:
        return self._leaving.is_set()

    @property
    def _name(self) -> str:
        return f"reply {self.request.reply_id} of session {self.request.session_id!r:.100}"

    async def _take_step(self) -> Result | None:
        """Do the next thing that the saved state asks for; returns `None` where it is to be looked at again."""
        request = self.request
        agent = await open_conversation(self._agent, self._store, request.session_id, request)
        self._state = state = agent.state
        self._task = state.task or self._task
        # A task awaits its own calls: nobody could be woken in its session.
        agent.live_conversation.task_host = self._tasks if state.task is None else None
        if self._was_saved and not state.revision:
            return Result("over", "interrupted", "its session was deleted, or has expired")
        self._was_saved = state.revision > 0
        context = state.reply_context
        if request.kind == "task" and not state.revision and self.is_interrupted:
            return Result("over", "interrupted")
        # A fork of a recorded run waits for nothing, unless its step is a question.
        if context is not None and (not context.parked or agent.waiting() is None):
            await self._resume(agent, context)
            return None
        if request.kind == "message":
            result = self._find_result(state)
            if result is not None:
                return result
            if self._deaths >= self._max_attempts:  # before the first save, each time
                await self._give_up_unsaved(agent)
                return _result_of(state, request.reply_id)
            await self._prepare(self._deaths)
        if request.kind in ("resume", "task"):
            is_own = context is not None and context.reply_id == request.reply_id
            return Result("waiting", number=state.sequence) if is_own else _result_of(state, request.reply_id)
        return await self._begin(agent)

    def _find_result(self, state: AgentState) -> Result | None:
        """Return the result of a message that is not to be run, or not now; `None` for one that is."""
        request, context, last = self.request, state.reply_context, state.last_reply
        if context is not None:
            is_own = context.reply_id == request.reply_id or request.read_input() is None
            return Result("waiting", number=state.sequence) if is_own else Result("held")
        if last is not None and last.reply_id == request.reply_id:
            return _result_of(state, request.reply_id)
        if find_reply(state, request.reply_id) is not None:
            return Result("over")  # it was answered, and others after it, before that was noted
        # A task wakes a reply only where this session has let the task go: another of its id may have, and be deleted.
        is_foreign_wake = is_task_id(request.reply_id) and task_woken_by(state, request.reply_id) is None
        if self.is_interrupted or is_foreign_wake:
            return Result("over", "interrupted")
        return None

    async def _begin(self, agent: Agent) -> Result | None:
        request, state = self.request, agent.state
        inputs = request.read_input()
        try:
            if request.kind == "message":
                stream = agent.reply_stream(inputs, request.read_schema(), reply_id=request.reply_id)
                await self._read(agent, stream, request.reply_id)
            else:
                agent.check_input(inputs)
                if state.reply_context is None:  # the same answer came before, and the reply is over
                    return _result_of(state, request.reply_id)
                if self._deaths >= self._max_attempts:  # before the answer was saved, each time
                    await self._give_up(agent, state.reply_context)
                    return _result_of(state, request.reply_id)
                await self._prepare(self._deaths)
                inputs.seq = state.sequence + 1  # followers see the answer among the events of its reply
                stream = agent.reply_stream(inputs, after=inputs.seq)
                # Layers look at what it says, and until then nobody else does; what it gave follows with the results.
                has_layers = agent.chains.layers["on_content"]
                answer = _decisions_alone(inputs) if has_layers else inputs
                await self._read(agent, stream, request.reply_id, answer=answer)
        except (SessionConflict, SessionIOError):
            raise
        except Exception as error:  # noqa: BLE001  # nobody else would see it; what the state says of it is looked at
            context, last = state.reply_context, state.last_reply
            known = [item.reply_id for item in (context, last) if item is not None]
            if request.reply_id not in known or (request.kind == "answer" and isinstance(error, UsageError)):
                return self._refuse(error)
            self._tell_failure(request.reply_id, error)
            return None  # whether its end was saved is seen by a look at what is saved
        if state.reply_context is not None:
            return Result("waiting", number=state.sequence) if state.reply_context.parked else None
        is_over = state.last_reply is not None and state.last_reply.reply_id == request.reply_id
        return _result_of(state, request.reply_id) if is_over or not self._leaving.is_set() else None

    async def _resume(self, agent: Agent, context: ReplyContext) -> None:
        """Take over a reply whose process died or handed it over, and run it."""
        # Followers may have seen more than was saved, and no number comes twice.
        agent.state.sequence = max(
            agent.state.sequence, await self._events.last_number(agent.state.session_id, context.reply_id)
        )
        _count_deaths(context, self._deaths_of(context))
        if context.takeovers >= self._max_attempts or (not agent.state.revision and self._deaths >= self._max_attempts):
            await self._give_up(agent, context)
            return
        if self.is_interrupted and context.reply_id == self.request.reply_id:
            self._end_unrun(agent)
            await agent.save()
            return
        await self._prepare(context.takeovers)
        # Before anything runs, so that it counts even if that kills this process too. It also fences off the process
        # before this one, if that should still be there: whatever it saves from now on is a conflict.
        is_new = not agent.state.revision
        await agent.save()
        if is_new:  # a task, whose request could make its session again: the call would run twice
            await self._note_saved()
        try:
            await self._read(agent, agent.reply_stream(None), context.reply_id)
        except (SessionConflict, SessionIOError):
            raise
        except Exception as error:  # noqa: BLE001  # as above
            self._tell_failure(context.reply_id, error)

    def _deaths_of(self, context: ReplyContext) -> int:
        if context.reply_id == self.request.reply_id:
            return self._deaths
        # In no queue, so all that is known is that a process has left it in the middle.
        is_death = context.reply_id not in self._resumed and not context.handed_over
        self._resumed.add(context.reply_id)
        return context.deaths + is_death

    async def _read(self, agent: Agent, stream: _ReplyEvents, reply_id: str, *, answer: AnyEvent | None = None) -> None:
        """Read the stream to its end, and tell the followers what comes."""
        if self._leaving.is_set():  # while the session was loaded
            return
        session_id, context, store = self.request.session_id, agent.state.reply_context, agent.state_store
        assert isinstance(store, _PatientStore)
        message = context.message.copy() if context is not None else Msg(agent.name, [], "assistant", id=reply_id)
        # A reply that was left says by itself what there is of it.
        log = self._events.open(session_id, message, agent.state.sequence if answer is not None else 0)
        try:
            if context is not None and context.is_task and context.parked and answer is None:
                # It begins, and has its call already.
                log.add(resumed_event(message, session_id, agent.state.sequence))
            if answer is not None:
                log.add(answer)
            self._conversation, self._stream = agent, stream
            async with stream:
                async for event in stream:
                    if store.failure is not None:
                        raise store.failure
                    log.add(event)
                    if isinstance(event, ToolResultEndEvent) and event.state is not ToolResultState.UNKNOWN:
                        self._on_progress()
                    if self.is_interrupted:
                        self.is_interrupted = False
                        _ = agent.interrupt()
        finally:
            self._conversation = self._stream = None
            self._was_saved = agent.state.revision > 0
            context = agent.state.reply_context
            if self._leaving.is_set() and context is not None and not context.parked:
                # For those who have no queue that says it: this process did not die.
                context.handed_over = True
                with suppress(AgentRTError):  # then it counts as a death, at worst
                    await agent.save()
            self._events.close(session_id, reply_id)

    async def _give_up(self, agent: Agent, context: ReplyContext) -> None:
        """Record the end "failed" of a reply that has killed each process that ran it."""
        error = f"the process that ran it died {self._max_attempts} times"
        message, state = context.message, agent.state
        self._end_unrun(agent)
        if state.last_reply is not None:
            state.last_reply.finished_reason, state.last_reply.error = "failed", error
        message.finished_reason, message.error = "failed", error
        state.sequence += 1
        await agent.save()
        self._tell_end(state, context.reply_id, error)

    async def _give_up_unsaved(self, agent: Agent) -> None:
        """Do the same for one that has killed them before its input was saved."""
        error = f"the process that ran it died {self._max_attempts} times, before it was saved"
        state = agent.state
        self._keep_input(state)
        state.last_reply = ReplyOutcome(self.request.reply_id, "failed", error)
        state.sequence += 1
        await agent.save()
        self._tell_end(state, self.request.reply_id, error)

    async def _keep_wake(self, result: Result) -> None:
        """Keep the message of a task whose reply has ended before that was taken in: nobody would submit it again."""
        state = self._state
        if state is not None and result.kind == "over" and task_woken_by(state, self.request.reply_id) is not None:
            self._keep_input(state)
            await _PatientStore(self._store).save(state)

    def _keep_input(self, state: AgentState) -> None:
        """Add an input to the conversation that its own reply does not answer; the next reply reads it."""
        inputs: list[Msg] = self.request.read_input() or []
        woken_by = task_woken_by(state, self.request.reply_id)
        if self._agent.chains.layers["on_content"]:  # which are not entered either
            # But the first block of a wake is the runtime's own.
            own = [] if woken_by is None else inputs[0].get_content_blocks()[:1]
            inputs = [replace(message, content=[*own, TextBlock("[withheld]")], metadata={}) for message in inputs]
        if woken_by is not None:
            inputs = [replace(message, metadata={"task_id": woken_by.id}) for message in inputs]
            del state.tasks[woken_by.id]
        state.context += inputs

    def _end_unrun(self, agent: Agent) -> None:
        # Enters no chain, so nothing that killed a process runs again: the calls get results, and the end is recorded.
        _ = agent.interrupt()

    def _tell_end(self, state: AgentState, reply_id: str, error: str) -> None:
        session_id = self.request.session_id
        _logger.error("reply %s of session %.100r is given up: %s", reply_id, session_id, error)

    def _tell_failure(self, reply_id: str, error: Exception) -> None:
        # The name alone: the error may quote a provider or a tool.
        name = type(error).__name__
        _logger.warning("reply %s of session %.100r failed: %s", reply_id, self.request.session_id, name)

    def _refuse(self, error: Exception) -> Result:
        # What a provider or a tool has said may hold a secret; our own words about a wrong use do not.
        name = type(error).__name__
        text = f"{name}: {error}" if isinstance(error, (UsageError, StateError)) else name
        _logger.warning("%s was not run: %s", self._name, text)
        return Result("over", "failed", text)


def _count_deaths(context: ReplyContext, deaths: int) -> None:
    """Count the processes that died while running the reply; progress in between resets the count.

    `deaths` is what the queue has counted up to now. It falls when a process turns out to be alive that was taken for
    dead, since its machine was slow, or its connection was cut. Of several that died since the reply was taken over
    last, one had it in its hands, and the others had only claimed it.
    """
    inner = [call.result for call in context.inner.values() if call.is_call and call.result is not None]
    results = [*context.message.get_content_blocks("tool_result"), *inner]
    # A call that has killed its process has the result "unknown", or one that is still running: neither is progress.
    known = sum(result.state not in (ToolResultState.UNKNOWN, ToolResultState.RUNNING) for result in results)
    if known != context.known_results:  # fewer where a call has its result, and drops those of the calls that it made
        context.takeovers, context.known_results = 0, known
    context.takeovers = max(0, context.takeovers + min(1, deaths - context.deaths))
    context.deaths, context.handed_over = deaths, False


def _result_of(state: AgentState, reply_id: str) -> Result:
    last = state.last_reply
    if last is None or last.reply_id != reply_id:  # there were others since
        return Result("over")
    return Result("over", last.finished_reason, last.error, state.sequence)


async def open_conversation(
    agent: Agent, store: SessionStore, session_id: str, request: Request | None = None
) -> Agent:
    """Return the conversation as it is saved, or a new one, for that request perhaps."""
    patient_store = _PatientStore(store)
    state = await patient_store.load(session_id)
    if state is None:
        state = AgentState(session_id=session_id) if request is None else request.new_state()
    conversation = guard_fork(agent, state).with_state(state)
    conversation.state_store = patient_store
    return conversation


def _decisions_alone(answer: AnyEvent) -> AnyEvent:
    """Return the answer without words and results."""
    if isinstance(answer, UserConfirmResultEvent):
        return replace(answer, confirm_results=[replace(one, feedback=None) for one in answer.confirm_results])
    if isinstance(answer, ExternalExecutionResultEvent):
        results = [replace(one, output="", metadata={}) for one in answer.execution_results]
        return replace(answer, execution_results=results)
    return answer
