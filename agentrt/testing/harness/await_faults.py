"""Running a conversation over and over, with a fault at each place where one can be."""

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count

from agentrt.concurrency.event_loop import running_trio
from agentrt.hooks import ReplyInput
from agentrt.state import AgentState
from agentrt.testing.harness.approve import approve
from agentrt.testing.harness.checkable import Checkable
from agentrt.testing.harness.fault_run import ConversationPlan, FaultRun
from agentrt.testing.harness.faults import FAULTS, faults_named
from agentrt.testing.harness.tool_log import ToolLog

__all__ = ["SuspensionReport", "check_every_suspension", "run_with_every_fault", "silence_expected_errors"]

_MAX_PLACES_SHOWN = 5  # of one fault: what is broken at one place is mostly broken at all that follow


@dataclass(frozen=True, slots=True)
class SuspensionReport:
    """How many suspensions a conversation has when it is left alone, and how many runs there were with each fault."""

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
    """Check that a conversation is whole and continues wherever it is cancelled, interrupted, left or failed by a part.

    `make` builds a new agent for each run, with new parts; tools that it gets from `log.watch(function)` are compared
    with what the state says of their calls. The inputs are sent one after the other, and `answer` answers for a reply
    that waits. The first run is left alone; then, for each fault, there is one run with it at the first place where it
    can be, one with it at the second, and so on, until a run has no such place. For a long conversation, `every=3`
    tries the first place, the fourth and so on.

    After each run: every call in what is kept has one result, or waits; a reply has one end on record and at most one
    `REPLY_END`; no task and no generator is left; tools ran as their results say; a cancellation has left as one; and
    the conversation continues, in place and from what was saved, with requests that are well-formed.

    Raises `AssertionError`, which says in words what was broken by what and where, and also when there are fewer
    suspensions than `at_least`. Suspensions are counted in the task that reads the reply and in every task that starts
    meanwhile; what threads do is not seen. On trio the order of tasks varies, so places may differ from run to run.
    """
    with silence_expected_errors():
        plan = ConversationPlan(make, inputs, structured_schema, answer)
        return await run_with_every_fault(plan, faults, at_least, every)


@contextmanager
def silence_expected_errors() -> Iterator[None]:
    """Keep what fails on purpose off the screen, where no handler for logs is set up."""
    logger, handler = logging.getLogger("agentrt"), logging.NullHandler()
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


async def run_with_every_fault(
    plan: ConversationPlan, faults: Iterable[str], at_least: int = 1, every: int = 1
) -> SuspensionReport:
    """Do what `check_every_suspension` promises."""
    undisturbed = FaultRun(plan)
    # What is broken without any fault would be reported again at every place.
    _raise_for([await undisturbed.run()])
    suspensions = undisturbed.reached["suspension"]
    assert suspensions >= at_least, f"there are {suspensions} suspensions, which is fewer than {at_least}"
    runs: Counter[str] = Counter()
    problems: list[str] = []
    for fault in faults_named(faults, "asyncio" if running_trio() is None else "trio"):
        if undisturbed.agent.state_store is None and fault.name == "kill":
            continue  # nothing survives the process
        places = 0
        for number in count(1, every):  # the places where the fault can be
            run = FaultRun(plan, fault, number)
            problem = await run.run()
            if problem:
                problems.append(problem)
                places += 1
            if not run.hit or places == _MAX_PLACES_SHOWN:
                break
            # Only now: a run without such a place was not a run with the fault.
            runs[fault.name] += 1
    _raise_for(problems)
    return SuspensionReport(suspensions, dict(runs))


def _raise_for(problems: list[str]) -> None:
    if any(problems):
        raise AssertionError("\n".join(filter(None, problems)))
