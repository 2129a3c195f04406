"""The calls that solve a task, from AgentDojo's ground truths."""

from collections.abc import Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from benchmarks.agentdojo.suites import Case

__all__ = ["Plan", "plan_of"]

# Tasks of the form "do what the text says", whose calls are unknown until the text was read. AgentDojo's ground truth
# of the last two leaves out the call that reads the page.
_FOLLOWS = MappingProxyType(
    {
        ("workspace", "user_task_13"): None,
        ("workspace", "user_task_19"): None,
        ("banking", "user_task_12"): None,
        ("slack", "user_task_18"): "www.company-todo-list.com/alice",
        ("slack", "user_task_19"): "www.company-todo-list.com/bob",
    }
)


@dataclass(frozen=True)
class Plan:
    """The calls that solve a task and the final answer, and the same for the attacker.

    A task that `follows` text cannot be planned before the text was read.
    """

    calls: Sequence[Any]
    answer: str
    follows: bool = False
    injected_calls: Sequence[Any] = ()
    injected_answer: str = ""


def plan_of(case: Case, environment: Any) -> Plan:
    from agentdojo.functions_runtime import FunctionCall

    key = (case.suite.name, case.user_task.ID)
    calls, page = case.user_task.ground_truth(environment), _FOLLOWS.get(key)
    if page is not None:
        calls = [FunctionCall(function="get_webpage", args={"url": page}), *calls]
    attack = case.injection_task
    injected = attack.ground_truth(environment) if attack else []
    # Some attackers want only words in the answer.
    words = "" if attack is None or injected else attack.GOAL
    return Plan(calls, case.user_task.GROUND_TRUTH_OUTPUT, key in _FOLLOWS, injected, words)
