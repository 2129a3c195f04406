"""Runs a conversation again and again, with a fault at each possible place."""

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count

from agentrt._runtime.concurrency.event_loop import running_trio
from agentrt.hooks import ReplyInput
from agentrt.state import AgentState
from agentrt.testing.harness.approve import approve
from agentrt.testing.harness.checkable import Checkable
from agentrt.testing.harness.fault_run import ConversationPlan, FaultRun
from agentrt.testing.harness.faults import FAULTS, faults_named
from agentrt.testing.harness.tool_log import ToolLog

_MAX_PLACES_SHOWN = 5  # of one fault: a problem at one place mostly repeats at all later ones


@dataclass(frozen=True, slots=True)
class SuspensionReport:
    """The number of suspensions in an undisturbed conversation, and the number of runs with each fault."""

    suspensions: int
    runs: dict[str, int] = field(default_factory=dict)

    def __str__(self) -> str:
        runs = ", ".join(f"{name} {number}" for name, number in self.runs.items())
        return f"{self.suspensions} suspensions; runs with a fault: {sum(self.runs.values())} ({runs})"


async def check_every_suspension(
    make: Callable[[ToolLog], Checkable],
    inputs: Sequence[str | ReplyInput] = ("go",),
    *,
    structured_schema: object = None,
    answer: Callable[[AgentState], ReplyInput] = approve,
    faults: Iterable[str] = FAULTS,
    at_least: int = 1,
    every: int = 1,
) -> SuspensionReport:
    """Check that a conversation stays whole and continues wherever it is cancelled, interrupted, left or fails.

    `make` builds a new agent for each run, with new parts; runs of tools from `log.watch(function)` are compared
    with the state of their calls. The inputs are sent one after the other, and `answer` answers a reply
    that waits. The first run is undisturbed; then, for each fault, there is one run with it at its first possible
    place, one at the second, and so on, until a run has no such place. For a long conversation, `every=3`
    tries a third of the places with each fault: the first, the fourth and so on with one, the second, the fifth and
    so on with the next.

    After each run: every call in the context has one result, or waits; a reply has one end on record and at most one
    `REPLY_END`; no task and no generator is left; tools ran as their results say; a cancellation propagated; and
    the conversation continues, in place and from the saved state, with well-formed requests.

    Raises `AssertionError`, which names the broken promise, the fault and the place; also when there are fewer
    suspensions than `at_least`. Suspensions are counted in the task that reads the reply and in every task that starts
    meanwhile; threads are not observed. On trio the order of tasks varies, so places may differ from run to run.
    """
    with silence_expected_errors():
        plan = ConversationPlan(make, inputs, structured_schema, answer)
        return await run_with_every_fault(plan, faults, at_least, every)


@contextmanager
def silence_expected_errors() -> Iterator[None]:
    """Hide the log of intended failures, unless the program has log handlers."""
    logger, handler = logging.getLogger("agentrt"), logging.NullHandler()
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


async def run_with_every_fault(
    plan: ConversationPlan, faults: Iterable[str], at_least: int = 1, every: int = 1
) -> SuspensionReport:
    """Implements `check_every_suspension`."""
    undisturbed = FaultRun(plan)
    # A problem without any fault would be reported again at every place.
    _raise_for([await undisturbed.run()])
    suspensions = undisturbed.reached["suspension"]
    assert suspensions >= at_least, f"there are {suspensions} suspensions, which is fewer than {at_least}"
    runs: Counter[str] = Counter()
    problems: list[str] = []
    for index, fault in enumerate(faults_named(faults, "asyncio" if running_trio() is None else "trio")):
        if undisturbed.agent.state_store is None and fault.name == "kill":
            continue  # nothing survives the process
        places = 0
        # Each fault begins at another place than the one before it, so that together they leave none out.
        first = 1 + index % min(every, max(1, undisturbed.reached[fault.point]))
        for number in count(first, every):  # the places of the fault
            run = FaultRun(plan, fault, number)
            problem = await run.run()
            if problem:
                problems.append(problem)
                places += 1
            if not run.hit or places == _MAX_PLACES_SHOWN:
                break
            # Counted only now: a run without such a place had no fault.
            runs[fault.name] += 1
    _raise_for(problems)
    return SuspensionReport(suspensions, dict(runs))


def _raise_for(problems: list[str]) -> None:
    if any(problems):
        raise AssertionError("\n".join(filter(None, problems)))
