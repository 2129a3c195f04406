"""One run of a conversation, with at most one fault, and what must hold after it."""

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import repeat
from typing import Any

import anyio

from agentrt.event import AgentEvent
from agentrt.hooks import ReplyInput
from agentrt.message import Msg
from agentrt.model.scripted import ScriptedChatModel
from agentrt.state import AgentState, InMemoryStateStore
from agentrt.testing.harness.await_points import Watch, current_task, place_of
from agentrt.testing.harness.checkable import Checkable, WatchedModel, WatchedStore
from agentrt.testing.harness.faults import Fault, Kept, Point
from agentrt.testing.harness.invariants import (
    problems_of_events,
    problems_of_runs,
    problems_of_state,
    problems_of_what_is_kept,
)
from agentrt.testing.harness.tool_log import ToolLog, ToolRun

__all__ = ["Scenario", "Trial"]

_PATIENCE = 20.0  # seconds
_STEPS_TO_SETTLE = 50
_SECONDS_TO_SETTLE = 1.0
_MOST_ANSWERS = 10


@dataclass(frozen=True, slots=True)
class Scenario:
    """What is run over and over. With `any_answer` it need not be the model's that is kept: a layer may change it."""

    make: Callable[[ToolLog], Checkable]
    inputs: Sequence[str | ReplyInput]
    structured_schema: Any
    answer: Callable[[AgentState], ReplyInput]
    any_answer: bool = False


class Trial:
    """One run of a scenario, with the fault at the `number`-th of its points. `hit` says where that was."""

    def __init__(self, scenario: Scenario, fault: Fault | None = None, number: int = 0) -> None:
        self.hit = ""
        self.reached: Counter[Point] = Counter()
        self.scope: Any = None
        self.task: Any = None
        self.leaves = ""
        self.injected: Exception | None = None
        self.kept: Kept | None = None
        self._scenario = scenario
        self._fault = fault
        self._number = number
        self._again = fault is not None and fault.again
        self._log = ToolLog(on_run=self._work_begins)
        self.agent = scenario.make(self._log)
        self._model = WatchedModel(self.agent.model, lambda place: self._reach("model", place), self._work_begins)
        self.agent.model = self._model
        self._store = self.agent.state_store
        self._watched_store: WatchedStore | None = None
        if self._store is not None:
            self._watched_store = WatchedStore(self._store, lambda place: self._reach("store", place))
            self.agent.state_store = self._watched_store
        self._events: list[AgentEvent] = []
        self._last = ""
        self._problems: list[str] = []
        self._watch = Watch(self._suspended, self._thrown)
        self._over = anyio.Event()
        self._was_cancelled = False
        self._error: BaseException | None = None
        self._went_on_with: list[str] = []

    async def run(self) -> str:
        """Run, check, and go on with the conversation; returns what is broken, in words, "" for nothing."""
        with self._watch as watch:
            async with anyio.create_task_group() as group:
                group.start_soon(self._main)
                with anyio.move_on_after(_PATIENCE):
                    await self._over.wait()
                if not self._over.is_set():
                    self._problems.append(f"the run was not over after {_PATIENCE:g} seconds")
                    group.cancel_scope.cancel()
            await _settle(watch)
            self._problems += [f"{each} was left behind" for each in watch.left()]
            self._problems += [f"the generator {each} was not closed, but lost" for each in watch.collected]
        self._check_ending()
        if self.kept is None:
            await self._check_conversation()
        else:
            await self._check_kept(self.kept)
        self._problems += self._model.problems
        return "\n".join(f"{self._title()}: {each}" for each in dict.fromkeys(self._problems))

    def keep(self) -> Kept:
        """Return what would be left if the process died now."""
        saved = self._watched_store.saved if self._watched_store is not None else ""
        state = AgentState.model_validate_json(saved) if saved else None
        return Kept(state, self._log.copy(), list(self._events), self._last)

    def _title(self) -> str:
        if self._fault is None:
            return "left alone"
        return f"{self._fault.name} at {self._fault.point} {self._number} {self.hit}"

    async def _main(self) -> None:
        self.task = current_task()
        try:
            with anyio.CancelScope() as self.scope:
                await self._talk()
            self._was_cancelled = self.scope.cancelled_caught
        except anyio.get_cancelled_exc_class():
            if not (self.hit and isinstance(self.task, asyncio.Task)):
                raise  # the harness itself is cancelled
            self._was_cancelled = True
        except BaseException as error:  # noqa: BLE001  # judged by what was done
            self._error = error
        finally:
            if self.leaves != "dropped":
                self._problems += [f"{each} was not over when the reply was" for each in self._watch.left(self.task)]
            self._over.set()

    async def _talk(self) -> None:
        for each in self._scenario.inputs:
            await self._hear(each)
            for _ in range(_MOST_ANSWERS):
                if self.hit or self.agent.state.reply_context is None:
                    break
                await self._hear(self._scenario.answer(self.agent.state))
            if self.hit:
                break

    async def _hear(self, inputs: str | ReplyInput) -> None:
        self._last = ""
        stream = self.agent.reply_stream(inputs, self._schema_for(inputs))
        try:
            async for event in stream:
                self._events.append(event)
                self._last = event.reply_id or self._last
                await anyio.lowlevel.checkpoint()
                self._reach("item", f"after {getattr(event, 'type', event)}")
                if self.leaves:
                    break
        except BaseException:
            await stream.aclose()
            raise
        if self.leaves != "dropped":
            await stream.aclose()

    def _schema_for(self, inputs: str | ReplyInput) -> Any:
        return self._scenario.structured_schema if isinstance(inputs, (str, Msg)) else None

    def _suspended(self, coroutine: Any) -> None:
        if self._over.is_set():
            return
        self.reached["suspension"] += 1
        if self.hit and self._again and current_task() is self.task:
            self._again = False
            self.task.cancel()
        if self._is_due("suspension"):
            place = place_of(coroutine)
            try:
                self._strike(f"in {place}" if place else "in the reader of the stream")
            except Exception as error:  # noqa: BLE001  # must not be raised into whatever was just suspended
                self._problems.append(f"{_told(error)} was raised at once")

    def _thrown(self, coroutine: Any, error: BaseException) -> None:
        if self.hit and isinstance(error, anyio.get_cancelled_exc_class()) and current_task() is self.task:
            self._went_on_with.append("what it was at")

    def _reach(self, point: Point, place: str) -> None:
        if self._over.is_set():
            return
        self.reached[point] += 1
        if self._is_due(point):
            self._strike(place)
        elif self.hit and self._fault is not None and self._fault.stays and self._fault.point == point:
            self._fault.strike(self)

    def _is_due(self, point: Point) -> bool:
        fault = self._fault
        return not self.hit and fault is not None and fault.point == point and self.reached[point] == self._number

    def _strike(self, place: str) -> None:
        self.hit = f"({place})"
        assert self._fault is not None
        self._fault.strike(self)

    def _work_begins(self, what: str) -> None:
        if self.hit:
            self._went_on_with.append(what)
            # The task's own cancellation comes at its next step, so whoever begins something there has swallowed it.
            if self._fault is not None and self._fault.strikes_task and current_task() is self.task:
                self._problems.append(f"the cancellation was swallowed, and it went on with {what}")

    def _check_ending(self) -> None:
        fault, error = self._fault, self._error
        if fault is not None and fault.cancels and self.hit and not self._was_cancelled:
            if error is not None:
                self._problems.append(f"{_told(error)} was raised in place of the cancellation")
            elif self._went_on_with:
                self._problems.append(f"the cancellation was swallowed, and it went on with {self._went_on_with[0]}")
        elif self._was_cancelled and not (fault is not None and fault.cancels):
            self._problems.append("a cancellation came out that nobody had asked for")
        elif error is not None and not _comes_from(error, self.injected):
            self._problems.append(f"{_told(error)} was raised")
        if fault is not None and fault.name == "interrupt" and self.hit:
            self._check_interruption(self.agent.state)

    def _check_interruption(self, state: AgentState) -> None:
        if state.reply_context is not None:
            self._problems.append("it was interrupted, and waits for an answer none the less")
        elif self._went_on_with and state.last_reply is not None and state.last_reply.finished_reason == "completed":
            self._problems.append(f"the interruption was not heeded, and it went on with {self._went_on_with[0]}")

    async def _check_conversation(self) -> None:
        state = self.agent.state
        self._problems += problems_of_state(state)
        self._problems += problems_of_events(self._events, self._last, state)
        self._problems += problems_of_runs(self._log, state)
        saved = await self._saved()
        runs = self._log.copy()
        await self._go_on(self.agent, self._log, "in place")
        if saved is not None:
            await self._go_on_elsewhere(saved, runs)

    async def _check_kept(self, kept: Kept) -> None:
        if kept.state is None:
            self._problems += ["an event was emitted before anything was saved"] if kept.events else []
            return
        self._problems += problems_of_what_is_kept(kept.events, kept.runs, kept.last, kept.state)
        await self._go_on_elsewhere(kept.state, kept.runs)

    async def _go_on_elsewhere(self, saved: AgentState, runs: list[ToolRun]) -> None:
        log = ToolLog(runs)
        again = self._scenario.make(log).with_state(saved)
        again.state_store = InMemoryStateStore()
        saved.revision = 0
        await self._go_on(again, log, "from what was saved")

    async def _saved(self) -> AgentState | None:
        """Return what was saved, or would be, as another process would find it."""
        state = self.agent.state
        if self._store is None:
            return AgentState.model_validate_json(state.model_dump_json())
        saved = await self._store.load(state.session_id)
        if self.injected is not None or (saved is None and not self._events):
            return saved  # a store that failed may be behind
        if saved is None:
            self._problems.append("nothing was saved")
        else:
            self._problems += [f"in what was saved, {each}" for each in problems_of_state(saved)]
            self._problems += [
                f"in what was saved, {each}" for each in problems_of_events(self._events, self._last, saved)
            ]
            if not _same(saved, state):
                self._problems.append("what was saved is not what the agent holds")
        return saved

    async def _go_on(self, agent: Checkable, log: ToolLog, how: str) -> None:
        own = ScriptedChatModel(repeat("I go on."))
        own.context_size = agent.model.context_size
        model = agent.model = WatchedModel(own, _ignore, _ignore)
        problems: list[str] = []
        try:
            with anyio.fail_after(_PATIENCE):
                for _ in range(_MOST_ANSWERS):
                    if not _waits(agent.state):
                        break
                    await _drain(agent, self._scenario.answer(agent.state))
                await _drain(agent, "go on")
        except Exception as error:  # noqa: BLE001  # whatever it is, it is what is wrong
            problems.append(_told(error))
        is_wanted = self._scenario.any_answer or agent.state.context[-1].get_text_content() == "I go on."
        if not problems and not is_wanted:
            problems.append(f"the last message is not the model's answer, but {agent.state.context[-1]!r:.200}")
        problems += [*model.problems, *problems_of_state(agent.state), *problems_of_runs(log, agent.state)]
        self._problems += [f"going on {how}, {each}" for each in problems]


async def _drain(agent: Checkable, inputs: str | ReplyInput) -> None:
    stream = agent.reply_stream(inputs)
    try:
        async for _ in stream:
            pass
    finally:
        await stream.aclose()


async def _settle(watch: Watch) -> None:
    """Give what was told to stop the time that it takes to do so."""
    for _ in range(_STEPS_TO_SETTLE):
        if not watch.left():
            return
        await anyio.lowlevel.checkpoint()
    with anyio.move_on_after(_SECONDS_TO_SETTLE):
        while watch.left():  # noqa: ASYNC110  # nobody tells when it is over
            await anyio.sleep(0.005)


def _same(saved: AgentState, state: AgentState) -> bool:
    return replace(saved, revision=0).model_dump_json() == replace(state, revision=0).model_dump_json()


def _waits(state: AgentState) -> bool:
    """Say whether a call waits for somebody, also where the process ended before the reply was parked."""
    context = state.reply_context
    return context is not None and any(call.waits_for for call in context.decisions.values())


def _ignore(_: str) -> None:
    pass


def _comes_from(error: BaseException | None, injected: Exception | None) -> bool:
    while error is not None:
        if error is injected:
            return True
        error = error.__cause__ or error.__context__
    return False


def _told(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
