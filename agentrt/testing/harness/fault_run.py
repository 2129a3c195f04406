"""One run of a conversation, with at most one fault, and the checks after it."""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from itertools import repeat
from typing import Literal

import anyio

from agentrt.errors import SessionIOError, Transient
from agentrt.event import AgentEvent, ReplyEndEvent, ReplyStartEvent
from agentrt.hooks import ReplyInput
from agentrt.message import Msg
from agentrt.model.scripted import ScriptedChatModel
from agentrt.state import AgentState, InMemoryStateStore
from agentrt.testing.harness.await_points import AwaitWatcher, Task, current_task, describe_position
from agentrt.testing.harness.checkable import Checkable, FaultyModel, FaultyStore
from agentrt.testing.harness.faults import Fault, KilledProcess, Point
from agentrt.testing.harness.invariants import (
    problems_of_events,
    problems_of_killed_process,
    problems_of_runs,
    problems_of_state,
)
from agentrt.testing.harness.tool_log import ToolLog, ToolRun

_MAX_SECONDS = 20.0
_MAX_ANSWERS_PER_REPLY = 10
_LAST_ANSWER = "I continue."


@dataclass(frozen=True, slots=True)
class ConversationPlan:
    """The conversation of all runs.

    With `any_answer` the message in the context need not be the model's: a layer may change it.
    """

    make: Callable[[ToolLog], Checkable]
    inputs: Sequence[str | ReplyInput]
    structured_schema: object
    answer: Callable[[AgentState], ReplyInput]
    any_answer: bool = False


class FaultRun:
    """One run of a conversation, with the fault at the `number`-th of its points. `hit` says where that was."""

    def __init__(self, plan: ConversationPlan, fault: Fault | None = None, number: int = 0) -> None:
        self.hit = ""
        self.reached: Counter[Point] = Counter()
        self._plan = plan
        self._fault = fault
        self._number = number
        self._cancels_again = fault is not None and fault.again
        self._scope = anyio.CancelScope()
        self._task: Task = None
        self._log = ToolLog(on_run=self._on_work)
        # The agent's own parts do the work, each wrapped in one that can fail.
        self.agent = plan.make(self._log)
        self._model = FaultyModel(self.agent.model, lambda place: self._reach("model", place), self._on_work)
        self.agent.model = self._model
        self._store = self.agent.state_store
        self._faulty_store: FaultyStore | None = None
        if self._store is not None:
            self._faulty_store = FaultyStore(self._store, lambda place: self._reach("store", place))
            self.agent.state_store = self._faulty_store
        self._departure: Literal["", "closed", "dropped"] = ""
        self._injected: Exception | None = None
        self._killed: KilledProcess | None = None
        self._events: list[AgentEvent] = []
        self._last_reply_id = ""
        self._problems: list[str] = []
        self._watcher = AwaitWatcher(self._on_suspend, self._on_throw)
        self._is_over = anyio.Event()
        self._was_cancelled = False
        self._error: BaseException | None = None
        self._work_after_fault: list[str] = []

    async def run(self) -> str:
        """Run, check, and continue the conversation; returns the problems in words, "" for none."""
        with self._watcher as watcher:
            async with anyio.create_task_group() as group:
                group.start_soon(self._read_all)
                with anyio.move_on_after(_MAX_SECONDS):
                    await self._is_over.wait()
                # Outside the reader, since a reader that swallows cancellations would also swallow a deadline.
                if not self._is_over.is_set():
                    self._problems.append(f"the run was not over after {_MAX_SECONDS:g} seconds")
                    group.cancel_scope.cancel()
            await watcher.wait_for_leftovers()
            self._report(watcher.find_leftovers(), "{} was left behind")
            self._report(watcher.lost_generators, "the generator {} was not closed, but lost")
        self._check_ending()
        if self._killed is None:
            await self._check_conversation()
        elif self._killed.state is not None:
            # The agent is gone with its process, so only the saved state is judged.
            killed, state = self._killed, self._killed.state
            self._report(problems_of_killed_process(killed.events, killed.runs, killed.last, state))
            await self._continue_elsewhere(state, killed.runs)
        elif self._killed.events:
            self._problems.append("an event was emitted before anything was saved")
        self._report(self._model.problems)
        title = "left alone"
        if self._fault is not None:
            title = f"{self._fault.name} at {self._fault.point} {self._number} {self.hit}"
        # Without repetitions: one fault often shows in the state, in the events and in the next request.
        return "\n".join(f"{title}: {problem}" for problem in dict.fromkeys(self._problems))

    def cancel_scope(self) -> None:
        """Cancel a scope around the reader."""
        self._scope.cancel()

    def cancel_task(self) -> None:
        """Cancel the reader's task itself."""
        self._task.cancel()

    def interrupt(self) -> None:
        """Interrupt the agent."""
        self.agent.interrupt()

    def kill(self) -> None:
        """Keep the state that would be left if the process died now, and stop the reader."""
        saved = self._faulty_store.saved if self._faulty_store is not None else ""
        state = AgentState.model_validate_json(saved) if saved else None
        self._killed = KilledProcess(state, self._log.copy(), list(self._events), self._last_reply_id)
        self._scope.cancel()

    def leave(self) -> None:
        """Have the reader close the stream."""
        self._departure = "closed"

    def drop(self) -> None:
        """Have the reader drop the stream without closing it."""
        self._departure = "dropped"

    def fail_store(self) -> None:
        """Raise in the store, the same error each time."""
        self._injected = self._injected or SessionIOError("the store was made to fail")
        raise self._injected

    def fail_model(self) -> None:
        """Raise in the model."""
        self._injected = Transient("the model was made to fail")
        raise self._injected

    def _report(self, problems: Iterable[str], words: str = "{}") -> None:
        self._problems += [words.format(problem) for problem in problems]

    async def _read_all(self) -> None:
        self._task = current_task()
        try:
            with self._scope:
                for inputs in self._plan.inputs:
                    await self._read_reply(inputs)
                    for _ in range(_MAX_ANSWERS_PER_REPLY):
                        if self.hit or self.agent.state.reply_context is None:
                            break
                        await self._read_reply(self._plan.answer(self.agent.state))
                    if self.hit:
                        break  # the check afterwards continues the conversation
            self._was_cancelled = self._scope.cancelled_caught
        except anyio.get_cancelled_exc_class():
            # On trio, and before the fault, the only other cancellation is that of the task group.
            if not (self.hit and isinstance(self._task, asyncio.Task)):
                raise  # the harness itself is cancelled
            self._was_cancelled = True
        except BaseException as error:  # noqa: BLE001  # judged by what was done
            self._error = error
        finally:
            if self._departure != "dropped":  # a reply that was dropped is closed in a task of its own
                self._report(self._watcher.find_leftovers(self._task), "{} was not over when the reply was")
            self._is_over.set()

    async def _read_reply(self, inputs: str | ReplyInput) -> None:
        self._last_reply_id, last_has_ended = "", False
        schema = self._plan.structured_schema if isinstance(inputs, (str, Msg)) else None
        stream = self.agent.reply_stream(inputs, schema)
        try:
            async for event in stream:
                assert not isinstance(event, Msg)  # which comes only on request
                self._events.append(event)
                # The first event belongs to this reply; those of others, such as a sub-agent's, may follow. Where
                # several agents share a conversation, a further reply begins after its end.
                if not self._last_reply_id or (last_has_ended and isinstance(event, ReplyStartEvent)):
                    self._last_reply_id, last_has_ended = event.reply_id, False
                is_end = isinstance(event, ReplyEndEvent) and event.reply_id == self._last_reply_id
                last_has_ended = last_has_ended or is_end
                await anyio.lowlevel.checkpoint()
                self._reach("item", f"after {event.type}")
                if self._departure:
                    break
        except BaseException:
            await stream.aclose()
            raise
        if self._departure != "dropped":
            await stream.aclose()

    def _on_suspend(self, coroutine: object) -> None:
        if self._is_over.is_set():
            return
        self.reached["suspension"] += 1
        # A second cancellation comes while the first one is handled, as from an impatient supervisor.
        if self.hit and self._cancels_again and current_task() is self._task:
            self._cancels_again = False
            self._task.cancel()
        if self._is_due("suspension"):
            position = describe_position(coroutine)
            try:
                self._inject(f"in {position}" if position else "in the reader of the stream")
            except Exception as error:  # noqa: BLE001  # must not be raised into what was just suspended
                self._problems.append(f"{_type_and_message(error)} was raised at once")

    def _on_throw(self, error: BaseException) -> None:
        if self.hit and isinstance(error, anyio.get_cancelled_exc_class()) and current_task() is self._task:
            self._work_after_fault.append("what it was doing")

    def _reach(self, point: Point, place: str) -> None:
        if self._is_over.is_set():
            return
        self.reached[point] += 1
        if self._is_due(point):  # raises where the fault is an error
            self._inject(place)
        elif self.hit and self._fault is not None and self._fault.persists and self._fault.point == point:
            self._fault.inject(self)

    def _is_due(self, point: Point) -> bool:
        fault = self._fault
        return not self.hit and fault is not None and fault.point == point and self.reached[point] == self._number

    def _inject(self, place: str) -> None:
        self.hit = f"({place})"
        assert self._fault is not None
        self._fault.inject(self)

    def _on_work(self, what: str) -> None:
        if self.hit:
            self._work_after_fault.append(what)
            # The task's own cancellation comes at its next step, so code that starts something there has swallowed it.
            if self._fault is not None and self._fault.strikes_task and current_task() is self._task:
                self._problems.append(f"the cancellation was swallowed, and it continued with {what}")

    def _check_ending(self) -> None:
        fault, error = self._fault, self._error
        if fault is not None and fault.cancels and self.hit and not self._was_cancelled:
            if error is not None:
                self._problems.append(f"{_type_and_message(error)} was raised in place of the cancellation")
            elif self._work_after_fault:
                what = self._work_after_fault[0]
                self._problems.append(f"the cancellation was swallowed, and it continued with {what}")
        elif self._was_cancelled and not (fault is not None and fault.cancels):
            self._problems.append("a cancellation came out that nothing had asked for")
        elif error is not None and not self._was_injected(error):
            self._problems.append(f"{_type_and_message(error)} was raised")
        if fault is not None and fault.name == "interrupt" and self.hit:
            if self.agent.state.reply_context is not None:
                self._problems.append("it was interrupted, but still waits for an answer")
            elif self._work_after_fault and getattr(self.agent.state.last_reply, "finished_reason", "") == "completed":
                what = self._work_after_fault[0]
                self._problems.append(f"the interruption was ignored, and it continued with {what}")

    def _was_injected(self, error: BaseException | None) -> bool:
        while error is not None:
            if error is self._injected:
                return True
            error = error.__cause__ or error.__context__
        return False

    async def _check_conversation(self) -> None:
        state = self.agent.state
        self._report(problems_of_state(state))
        self._report(problems_of_events(self._events, self._last_reply_id, state))
        self._report(problems_of_runs(self._log, state))
        saved = await self._load_saved_state()
        runs = self._log.copy()  # copied now: continuing the conversation in place adds more
        await self._continue(self.agent, self._log, "in place")
        if saved is not None:
            await self._continue_elsewhere(saved, runs)

    async def _load_saved_state(self) -> AgentState | None:
        """Return the saved state, or the one that would be saved, as another process would load it, and check it."""
        state = self.agent.state
        if self._store is None:
            return AgentState.model_validate_json(state.model_dump_json())
        saved = await self._store.load(state.session_id)
        if self._injected is not None or (saved is None and not self._events):
            return saved  # a failed store may be behind
        if saved is None:
            self._problems.append("nothing was saved")
            return None
        words = "in what was saved, {}"
        self._report(problems_of_state(saved), words)
        self._report(problems_of_events(self._events, self._last_reply_id, saved), words)
        if replace(saved, revision=0).model_dump_json() != replace(state, revision=0).model_dump_json():
            self._problems.append("what was saved is not what the agent holds")
        return saved

    async def _continue_elsewhere(self, saved: AgentState, runs: list[ToolRun]) -> None:
        # Another agent, since the continuing process shares nothing with the first one, but the tools did run there.
        log = ToolLog(runs)
        agent = self._plan.make(log).with_state(saved)
        agent.state_store = InMemoryStateStore()
        saved.revision = 0  # the new store has never seen this state
        await self._continue(agent, log, "from what was saved")

    async def _continue(self, agent: Checkable, log: ToolLog, how: str) -> None:
        """Answer waiting calls and send one more message, with a model without faults."""
        model = ScriptedChatModel(repeat(_LAST_ANSWER))
        model.context_size = agent.model.context_size
        checked_model = agent.model = FaultyModel(model, _do_nothing, _do_nothing)
        problems: list[str] = []
        try:
            with anyio.fail_after(_MAX_SECONDS):
                for _ in range(_MAX_ANSWERS_PER_REPLY):
                    context = agent.state.reply_context
                    # By the decisions, since the process may have died before the reply was parked.
                    if context is None or not any(decision.waits_for for decision in context.decisions.values()):
                        break
                    await _drain(agent, self._plan.answer(agent.state))
                await _drain(agent, "continue")
        except Exception as error:  # noqa: BLE001  # whatever it is, it is what is wrong
            problems.append(_type_and_message(error))
        last = agent.state.context[-1] if agent.state.context else None
        is_expected = self._plan.any_answer or (last is not None and last.get_text_content() == _LAST_ANSWER)
        if not problems and not is_expected:
            problems.append(f"the last message is not the model's answer, but {last!r:.200}")
        problems += [*checked_model.problems, *problems_of_state(agent.state), *problems_of_runs(log, agent.state)]
        self._report(problems, f"continuing {how}, {{}}")


async def _drain(agent: Checkable, inputs: str | ReplyInput) -> None:
    async with aclosing(agent.reply_stream(inputs)) as stream:
        async for _ in stream:
            pass


def _do_nothing(_: str) -> None:
    pass


def _type_and_message(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
