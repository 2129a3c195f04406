"""The evaluators that need no model: functions that return functions of a trial."""

import json
from collections.abc import Callable, Sequence
from inspect import isawaitable
from typing import Any

import pydantic

from agentrt._runtime.schema.parts import SchemaError
from agentrt._runtime.schema.validator import Validator
from agentrt._runtime.text import repr_of
from agentrt.errors import ConfigError, UsageError
from agentrt.evaluation.case import Evaluator, plain_value
from agentrt.evaluation.spending import is_text
from agentrt.evaluation.trial import Trial, Verdict
from agentrt.message import ToolResultState
from agentrt.testing import ExpectedStep, TrajectoryOrder, assert_trajectory

_OF_CASE: Any = object()
"""Stands for the expected value of the case."""


def exact(expected: Any = _OF_CASE) -> Evaluator:
    """Pass if the answer equals the case's expected value, or `expected`; structured output is compared by value."""

    def compare(trial: Trial) -> Verdict:
        expectation = trial.case.expected if expected is _OF_CASE else expected
        value = _answer_of(trial)
        if isinstance(value, str) and isinstance(expectation, str):
            value, expectation = value.strip(), expectation.strip()
        if plain_value(value) == plain_value(expectation):
            return Verdict(1.0, True)
        return Verdict(0.0, False, f"expected {expectation!r:.300}, not {value!r:.300}")

    return _with_name("exact", compare, expected)


def contains(text: str | Sequence[str] = _OF_CASE, *, ignore_case: bool = False) -> Evaluator:
    """Pass if the answer contains the case's expected text, or `text`; of a list, every text."""

    def search(trial: Trial) -> Verdict:
        # A case may expect several texts, in any order.
        expectation = trial.case.expected if text is _OF_CASE else text
        parts = [expectation] if isinstance(expectation, str) else expectation
        if not isinstance(parts, (list, tuple)) or not parts or not all(isinstance(part, str) for part in parts):
            raise UsageError(
                f"contains() needs a str, or a list of them, as the expected value, not {expectation!r:.200}"
            )
        answer = trial.answer.casefold() if ignore_case else trial.answer
        missing = [part for part in parts if (part.casefold() if ignore_case else part) not in answer]
        return Verdict(1 - len(missing) / len(parts), not missing, f"without {missing[0]!r:.300}" if missing else "")

    return _with_name("contains", search, text)


def fits(schema: Any) -> Evaluator:
    """Pass if the answer, structured or JSON, fits a type or a JSON schema."""
    check: Callable[[Any], str | None]
    if isinstance(schema, dict):
        try:
            check = Validator(schema).problem
        except SchemaError as error:
            raise ConfigError(f"fits(schema) is not a JSON schema: {error}") from error
    else:
        try:
            adapter = pydantic.TypeAdapter(schema)
        except pydantic.PydanticUserError as error:
            raise ConfigError(f"fits(schema) must be a type or a JSON schema, not {schema!r:.100}") from error

        def problem_of(value: Any) -> str | None:
            try:
                adapter.validate_python(value)
            except pydantic.ValidationError as error:
                return str(error)
            return None

        check = problem_of

    def validate(trial: Trial) -> Verdict:
        value = _answer_of(trial)
        if isinstance(value, str):
            # A model may write JSON without being asked for structured output.
            try:
                value = json.loads(value)
            except (ValueError, RecursionError):
                return Verdict(0.0, False, f"not JSON: {value!r:.200}")
        problem = check(plain_value(value))
        return Verdict(float(problem is None), problem is None, problem or "")

    return _with_name("fits", validate, _OF_CASE if isinstance(schema, dict) else schema)


def trajectory(steps: Sequence[ExpectedStep], order: TrajectoryOrder = "subset") -> Evaluator:
    """Pass if the agent took these steps, `call(...)` and `answer(...)` of `agentrt.testing`, over all turns.

    `order` is that of `assert_trajectory`.
    """
    assert_trajectory([], [], order=order)  # refuses a wrong order now, and not in each trial

    def compare(trial: Trial) -> Verdict:
        try:
            assert_trajectory(trial.messages, list(steps), order=order)
        except AssertionError as error:  # which lists what was expected and what happened
            return Verdict(0.0, False, str(error))
        return Verdict(1.0, True)

    return _with_name("trajectory", compare)


def final_state(check: Callable[[Any], Any]) -> Evaluator:
    """Judge the `world` of the trial, which `build` returned: `check(world)` returns what an evaluator returns."""
    if not callable(check):
        raise ConfigError(f"final_state(check) must be a function of the world, not {check!r:.100}")

    async def judge(trial: Trial) -> Any:
        result = check(trial.world)
        return await result if isawaitable(result) else result

    return _with_name("final_state", judge)


def called(tool: str, times: int | None = None) -> Evaluator:
    """Pass if a tool was called at all, or exactly `times` times; sub-agents count, and so do failed calls."""
    if not is_text(tool):
        raise ConfigError(f"called(tool) must be the name of a tool, not {tool!r:.100}")
    if times is not None:
        _check_amount("called(times=...)", times)

    def count(trial: Trial) -> Verdict:
        calls = sum(use.tool == tool for use in trial.tool_uses)
        passed = calls > 0 if times is None else calls == times
        return Verdict(float(passed), passed, f"{calls} calls")

    return _with_name("called", count, tool)


def calls_at_most(limit: int) -> Evaluator:
    """Pass if there were at most `limit` tool calls."""
    return _at_most("calls_at_most", limit, lambda trial: len(trial.tool_uses))


def requests_at_most(limit: int) -> Evaluator:
    """Pass if models got at most `limit` requests, attempts and sub-agents included."""
    return _at_most("requests_at_most", limit, lambda trial: sum(run.calls for run in trial.runs))


def costs_at_most(limit: float) -> Evaluator:
    """Pass if the runs cost at most `limit`; an unknown price is an error of the trial."""

    def cost_of(trial: Trial) -> float:
        if trial.cost is None:
            raise UsageError("the price of a model is unknown: give the agent RunRecorder(store, prices={...})")
        return trial.cost

    return _at_most("costs_at_most", limit, cost_of)


def takes_at_most(seconds: float) -> Evaluator:
    """Pass if the replies took at most `seconds` in all."""
    return _at_most("takes_at_most", seconds, lambda trial: trial.seconds)


def no_error() -> Evaluator:
    """Pass if every reply was completed and no tool call failed."""

    def look(trial: Trial) -> Verdict:
        problems = [f"a reply is {run.status}" for run in trial.runs if run.status != "completed"]
        # A denied call has not failed: the denial was a decision.
        failed = (ToolResultState.ERROR, ToolResultState.TIMEOUT, ToolResultState.UNKNOWN)
        problems += [f"{use.tool} failed" for use in trial.tool_uses if use.state in failed]
        if trial.error is not None:
            problems.insert(0, str(trial.error))
        return Verdict(float(not problems), not problems, problems[0] if problems else "")

    return _with_name("no_error", look)


def _at_most(name: str, limit: float, amount_of: Callable[[Trial], float]) -> Evaluator:
    _check_amount(f"{name}(...)", limit)

    def compare(trial: Trial) -> Verdict:
        amount = amount_of(trial)
        return Verdict(float(amount <= limit), amount <= limit, f"{amount:g}")

    return _with_name(name, compare, limit)


def _check_amount(option: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < float("inf"):
        raise ConfigError(f"{option} must be a number of at least 0, not {value!r:.100}")


def _answer_of(trial: Trial) -> Any:
    structured = None if trial.message is None else trial.message.structured_output
    return trial.answer if structured is None else structured


def _with_name(name: str, evaluator: Any, argument: Any = _OF_CASE) -> Evaluator:
    """Return the evaluator with its name in reports, which differs for other arguments."""
    evaluator.__name__ = name if argument is _OF_CASE else f"{name}({repr_of(argument, 40)})"
    named: Evaluator = evaluator
    return named
