"""Trials: the run of a case, and the verdicts of evaluators on it."""

import itertools
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from inspect import isawaitable
from typing import Any

import anyio
import pydantic

from agentrt._runtime.text import first_error, repr_of
from agentrt.agent import Agent
from agentrt.errors import ConfigError, UsageError
from agentrt.evaluation.case import Case, Evaluator, Turn, name_evaluators, text_of_turn
from agentrt.evaluation.spending import SpendingAccount, open_budget
from agentrt.evaluation.user import SimulatedUser
from agentrt.event import ConfirmResult, RequireUserConfirmEvent, UserConfirmResultEvent
from agentrt.hooks import MiddlewareBase
from agentrt.message import Msg, ToolCallBlock, ToolResultBlock, ToolResultState
from agentrt.middleware import Budget, BudgetMiddleware
from agentrt.model import ChatUsage
from agentrt.runs import Run, RunRecorder, run_stores
from agentrt.state import AgentState, InMemoryStateStore
from agentrt.testing import ChaosLayer, InjectedFault
from agentrt.types import JSONObject

Build = Agent | Callable[[Case], Any]
"""An agent, or a function of a case that returns an agent, or an agent and its world; sync or async."""

_PASSES_AT = 0.5
_MAX_REASON = 2_000
_MAX_QUESTIONS_IN_TURN = 100  # about tool calls, within one turn
_STEP_TIMEOUT = 600.0
# `sys.exit` in a function of the user's would end an evaluation as if it had passed.
_TRIAL_FAILURES = (Exception, SystemExit)


@dataclass(frozen=True, slots=True)
class Verdict:
    """The judgement of an evaluator: a score from 0 to 1, whether that passes, and why."""

    score: float
    passed: bool
    reason: str = ""

    @classmethod
    def of(cls, value: Any) -> "Verdict":
        """Return the verdict for a `bool`, a number (which passes from 0.5 on) or a verdict.

        Raises `UsageError` for anything else, and for a score outside of 0 to 1.
        """
        if isinstance(value, bool):
            return cls(float(value), value)
        score = value.score if isinstance(value, Verdict) else value
        is_score = not isinstance(score, bool) and isinstance(score, (int, float)) and 0 <= score <= 1
        # By its value, since NumPy has a bool of its own.
        if not is_score or (isinstance(value, Verdict) and value.passed not in (True, False)):
            raise UsageError(
                f"an evaluator must return a bool, a number from 0 to 1, a Verdict, or a dict of these that is not "
                f"empty, not {repr_of(value)}"
            )
        if isinstance(value, Verdict):
            reason = str(value.reason or "")[:_MAX_REASON]
            return replace(value, score=float(score), passed=bool(value.passed), reason=reason)
        return cls(float(score), score >= _PASSES_AT)


@dataclass(frozen=True, slots=True)
class TrialError:
    """An exception in a trial: `where` is "build", "layer", "user", "reply", "run", or the name of an evaluator."""

    where: str
    type: str
    text: str

    @classmethod
    def of(cls, where: str, error: BaseException) -> "TrialError":
        error = first_error(error)
        try:
            text = str(error) or ("it took too long" if isinstance(error, TimeoutError) else "")
        except Exception:  # noqa: BLE001  # the error's own __str__; the error itself matters more
            text = repr_of(error)
        return cls(where, type(error).__name__, text[:_MAX_REASON])

    def __str__(self) -> str:
        return f"{self.where}: {self.type}: {self.text}"


@dataclass(frozen=True, slots=True)
class ToolUse:
    """A tool call of a trial: its tool, its arguments (a str, if they are not JSON), and the state of its result."""

    tool: str
    arguments: Any
    state: ToolResultState | None


class TrialInFile(pydantic.BaseModel):
    """A trial in the file of a report."""

    case: str
    repeat: int
    answer: str
    error: TrialError | None
    verdicts: dict[str, Verdict]
    tokens: tuple[int, int, int, int]
    cost: float | None
    judge_token_counts: tuple[int, int, int, int]
    judge_cost: float | None
    user_token_counts: tuple[int, int, int, int]
    user_cost: float | None
    seconds: float = 0.0
    runs: list[tuple[str, str]] = pydantic.Field(default_factory=list)
    model_config = pydantic.ConfigDict(strict=True, allow_inf_nan=False)


@dataclass(slots=True, eq=False)
class Trial:
    """A run of a case, and the verdicts on it; `without` names the layer that was left out.

    `message` is the last answer, and `messages` are the replies of all turns with their calls and results;
    `conversation` has the speaker and the text of each message. `runs` are the recorded runs, `run_ids` their session
    and reply ids, and `world` is the object that `build` returned beside the agent.
    `judges` and `users` count the usage of judges and simulated users.
    A trial of a loaded report has no messages, runs and world.
    """

    case: Case
    repeat: int = 0
    without: str | None = None
    runs: list[Run] = field(default_factory=list, repr=False)
    message: Msg | None = field(default=None, repr=False)
    messages: list[Msg] = field(default_factory=list, repr=False)
    world: Any = field(default=None, repr=False)
    verdicts: dict[str, Verdict] = field(default_factory=dict)
    error: TrialError | None = None
    answer: str = ""
    conversation: list[tuple[str, str]] = field(default_factory=list, repr=False)
    usage: ChatUsage = field(default_factory=ChatUsage, repr=False)
    cost: float | None = 0.0
    seconds: float = 0.0
    judges: SpendingAccount = field(default_factory=SpendingAccount, repr=False)
    users: SpendingAccount = field(default_factory=SpendingAccount, repr=False)
    layers: dict[str, type[MiddlewareBase]] = field(default_factory=dict, repr=False)
    run_ids: list[tuple[str, str]] = field(default_factory=list, repr=False)

    @property
    def run(self) -> Run | None:
        """The run of the last turn, if there was one."""
        return self.runs[-1] if self.runs else None

    @property
    def tool_uses(self) -> list[ToolUse]:
        """The tool calls of all turns and their sub-agents, without those of hidden tools."""
        messages = self.messages
        # The user's own recorder may leave out content; then the calls of sub-agents are unknown.
        if self.runs and all(run.has_content for run in self.runs):
            messages = [message for run in self.runs for message in _messages_in(run)]
        uses: list[ToolUse] = []
        for message in messages:
            blocks = message.get_content_blocks()
            states = {block.id: block.state for block in blocks if isinstance(block, ToolResultBlock)}
            for block in blocks:
                if isinstance(block, ToolCallBlock) and not block.is_hidden:
                    try:
                        arguments: Any = json.loads(block.input or "{}")
                    except ValueError:
                        arguments = block.input
                    uses.append(ToolUse(block.name, arguments, states.get(block.id)))
        return uses

    @property
    def passed(self) -> bool:
        """Whether nothing raised and every verdict passed."""
        return self.error is None and all(verdict.passed for verdict in self.verdicts.values())

    @property
    def score(self) -> float:
        """The mean score of the verdicts; without verdicts, 1 if the trial passed."""
        scores = [verdict.score for verdict in self.verdicts.values()]
        return math.fsum(scores) / len(scores) if scores else float(self.passed)

    def check(self) -> None:
        """Raise `AssertionError` with the failed verdicts, or the error, unless the trial passed."""
        if not self.passed:
            raise AssertionError(f"case {str(self.case)!r:.200} failed:\n" + "\n".join(self.problems()))

    def problems(self) -> list[str]:
        """Return the error and the failed verdicts, a line each."""
        failed = [
            f"{name}: {verdict.score:.2f}{verdict.reason and f', {verdict.reason}'}"
            for name, verdict in self.verdicts.items()
            if not verdict.passed
        ]
        return [*([] if self.error is None else [str(self.error)]), *failed]

    def to_json(self, *, times: bool) -> JSONObject:
        """Return the trial as JSON; without `times`, equal for equal inputs, seed and cassette."""
        error = self.error
        # The text of an error may contain an id or an address in memory.
        value: JSONObject = {
            "case": str(self.case),
            "repeat": self.repeat,
            "passed": self.passed,
            "answer": self.answer,
            "error": None if error is None else asdict(error if times else replace(error, text="")),
            "verdicts": {name: asdict(verdict) for name, verdict in self.verdicts.items()},
            "tokens": _token_counts(self.usage),
            "cost": self.cost,
        }
        for name, account in (("judge", self.judges), ("user", self.users)):
            value[f"{name}_token_counts"], value[f"{name}_cost"] = _token_counts(account.usage), account.cost
        if times:
            value["seconds"] = self.seconds
            value["runs"] = list(map(list, self.run_ids))
        return value

    @classmethod
    def from_json(cls, saved: TrialInFile, case: Case) -> "Trial":
        """Return the trial that `to_json` wrote, without its messages, runs and world."""
        trial = cls(case, saved.repeat)
        trial.answer, trial.cost, trial.error, trial.seconds = saved.answer, saved.cost, saved.error, saved.seconds
        trial.usage = ChatUsage(*saved.tokens)
        trial.verdicts = {name: Verdict.of(verdict) for name, verdict in saved.verdicts.items()}
        trial.judges.usage, trial.judges.cost = ChatUsage(*saved.judge_token_counts), saved.judge_cost
        trial.users.usage, trial.users.cost = ChatUsage(*saved.user_token_counts), saved.user_cost
        trial.run_ids = saved.runs
        return trial


def _whole_reply(agent: Agent, seen: dict[str, None]) -> list[Msg]:
    """Return the message of the last reply with its calls and results, which the answer leaves out, and note its id."""
    state, reply_id = agent.state, agent.reply_id or ""
    if reply_id in seen:  # the reply before: this one was refused
        return []
    seen[reply_id] = None
    if state.reply_context is not None:  # it waits
        return [state.reply_context.message]
    return [message for message in state.context[-1:] if message.id == reply_id]


def _messages_in(run: Run) -> list[Msg]:
    own = [] if run.message is None else [run.message]
    return [*own, *(message for child in run.children for message in _messages_in(child))]


def _token_counts(usage: ChatUsage) -> list[int]:
    return [usage.input_tokens, usage.output_tokens, usage.cache_input_tokens, usage.cache_creation_input_tokens]


async def judge_trial(trial: Trial, evaluators: Mapping[str, Evaluator], timeout: float) -> None:  # noqa: ASYNC109
    """Put the verdicts of the evaluators into the trial; an evaluator that raises is its error."""
    for name, evaluator in evaluators.items():
        try:
            with anyio.fail_after(timeout):
                result = evaluator(trial)
                if isawaitable(result):
                    result = await result
            parts = (
                {f"{name}.{key}": part for key, part in result.items()}
                if isinstance(result, dict) and result
                else {name: result}
            )
            trial.verdicts.update({key: Verdict.of(part) for key, part in parts.items()})
        except _TRIAL_FAILURES as error:  # an error of a user's function fails this trial alone
            trial.error = trial.error or TrialError.of(name, error)


def check_steps(function: str, build: Any, timeout: Any) -> None:
    """Refuse a `build` that cannot build an agent, and a `timeout` that is not a time."""
    if not callable(build):
        raise ConfigError(f"{function}(build) must be an Agent, or a function of a case, not {build!r:.100}")
    if isinstance(timeout, bool) or not isinstance(timeout, (int, float)) or not 0 < timeout <= 1e6:
        raise ConfigError(f"{function}(timeout=...) must be a number of seconds above 0, not {timeout!r:.50}")


@dataclass(slots=True)
class TrialRunner:
    """Runs trials, and records their runs in the agent's own `RunRecorder`, or else in `store`.

    Judges and simulated users spend `budget`. `timeout` is for the replies of a trial, and for each evaluator, in
    seconds.
    """

    build: Build
    evaluators: Mapping[str, Evaluator]
    store: InMemoryStateStore
    budget: BudgetMiddleware | None = None
    timeout: float = _STEP_TIMEOUT
    sessions: set[str] = field(default_factory=set)

    async def run(self, trial: Trial) -> Trial:
        """Run the case of an empty trial, and fill in the rest."""
        trial.judges.budget = trial.users.budget = self.budget
        where = "build"
        try:
            with anyio.fail_after(self.timeout):
                agent = await self._build(trial)
                where = "layer"
                if trial.without in trial.layers:
                    agent = agent.without(trial.without)
                agent = self._prepare(agent, trial.case)
        except _TRIAL_FAILURES as error:  # a function of the user's; its error fails this trial alone
            trial.error = TrialError.of(where, error)
            return trial
        await self._converse(agent, trial)
        await judge_trial(trial, self.evaluators, self.timeout)
        return trial

    async def _build(self, trial: Trial) -> Agent:
        agent: Any = self.build
        if isinstance(agent, Agent):
            agent = agent.with_state(AgentState())
        else:
            agent = agent(trial.case)
            if isawaitable(agent):
                agent = await agent
            if isinstance(agent, tuple) and len(agent) == 2:
                agent, trial.world = agent
        if not isinstance(agent, Agent):
            raise UsageError(f"build(case) must return an Agent, or an Agent and its world, not {repr_of(agent)}")
        # Otherwise a trial would see the messages of another one.
        if agent.state.session_id in self.sessions:
            raise UsageError(
                "build(case) returned a conversation that another trial has: make a new agent for each trial, or give "
                "the agent itself in place of build"
            )
        self.sessions.add(agent.state.session_id)
        chains = agent.chains
        trial.layers = {
            chains.name_of(layer): type(layer) for layer in agent.middlewares if not isinstance(layer, RunRecorder)
        }
        return agent

    def _prepare(self, agent: Agent, case: Case) -> Agent:
        """Return the agent with the layers that inject faults and record runs."""
        layers = list(agent.middlewares)
        if not run_stores(agent):
            # It only observes, so any place will do: the first one that the other layers allow.
            place = sum(layer.position == "outermost" for layer in layers)
            layers.insert(place, RunRecorder(self.store, layers=False))
        faults = [fault for fault in case.faults if isinstance(fault, InjectedFault)]
        # The user's middlewares go between the agent's layers and the injected faults, which are innermost.
        layers += [fault for fault in case.faults if isinstance(fault, MiddlewareBase)]
        if faults:
            layers.append(ChaosLayer(faults))
        return agent if layers == list(agent.middlewares) else agent.with_middlewares(layers)

    async def _converse(self, agent: Agent, trial: Trial) -> None:
        reply_ids: dict[str, None] = {}
        where = "reply"
        try:
            with anyio.fail_after(self.timeout):
                async with agent:
                    for count in itertools.count():
                        where = "user"
                        turn = await self._next_turn(trial, count)
                        if turn is None:
                            break
                        trial.conversation.append(("user", text_of_turn(turn)))
                        where = "reply"
                        try:
                            trial.message = await self._reply(agent, turn, trial.case)
                        finally:
                            trial.messages += _whole_reply(agent, reply_ids)
                        trial.answer = trial.message.get_text_content() or ""
                        trial.conversation.append(("assistant", trial.answer))
                        if agent.waiting() is not None:
                            break
        except _TRIAL_FAILURES as error:  # a failed reply is a failed trial, and the others continue
            trial.error = TrialError.of(where, error)
        [runs, *_] = run_stores(agent)
        for reply_id in reply_ids:
            try:
                trial.runs.append(await runs.load(agent.state.session_id, reply_id))
                trial.run_ids.append((agent.state.session_id, reply_id))
            except UsageError:  # refused before it started, so it was not recorded
                continue
            except Exception as error:  # noqa: BLE001  # the user's own store failed
                trial.error = trial.error or TrialError.of("run", error)
        costs = [run.cost for run in trial.runs]
        trial.cost = None if None in costs else math.fsum(cost for cost in costs if cost is not None)
        trial.usage = sum((run.usage for run in trial.runs), ChatUsage())
        trial.seconds = math.fsum(run.seconds or 0.0 for run in trial.runs)

    async def _next_turn(self, trial: Trial, count: int) -> Turn | None:
        inputs = trial.case.inputs
        if isinstance(inputs, SimulatedUser):
            return await inputs.next_message(trial.conversation, trial.users) if count < inputs.max_turns else None
        return trial.case.turns[count] if count < len(trial.case.turns) else None

    async def _reply(self, agent: Agent, turn: Turn, case: Case) -> Msg:
        """Return the answer to a turn, after answering its questions as the case says."""
        message = await agent.reply(turn)
        for _ in range(_MAX_QUESTIONS_IN_TURN):
            question = agent.waiting()
            if case.approve is None or not isinstance(question, RequireUserConfirmEvent):
                return message
            results = []
            for call in question.tool_calls:
                allowed: Any = case.approve(call) if callable(case.approve) else case.approve
                # A coroutine, or the text "no", is true and must not allow anything.
                if isawaitable(allowed):
                    allowed = await allowed
                if not isinstance(allowed, bool):
                    raise UsageError(f"Case(approve=...) must return a bool for each call, not {repr_of(allowed)}")
                results.append(ConfirmResult(allowed, replace(call)))
            message = await agent.reply(UserConfirmResultEvent(question.reply_id, results))
        raise UsageError(
            f"the agent asked {_MAX_QUESTIONS_IN_TURN} times within one turn: give the case approve=None, or False"
        )


async def run_case(
    build: Build,
    case: Case,
    evaluators: Sequence[Evaluator] = (),
    *,
    budget: Budget | None = None,
    timeout: float = _STEP_TIMEOUT,  # noqa: ASYNC109  # of each step, not of the call
) -> Trial:
    """Run a case once, and return the trial with the verdicts of the evaluators; a failure does not raise.

    In a test, `trial.check()` raises `AssertionError` if the trial failed.
    """
    if not isinstance(case, Case):
        raise ConfigError(f"run_case(case) must be a Case, not {case!r:.100}")
    check_steps("run_case", build, timeout)
    named = name_evaluators("run_case(evaluators)", evaluators)
    async with InMemoryStateStore() as store:
        runner = TrialRunner(build, named, store, open_budget(budget), timeout)
        return await runner.run(Trial(case))
