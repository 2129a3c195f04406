"""`check_middleware`: checks a middleware in every situation that it may meet."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec

import anyio

from agentrt.hooks import MiddlewareBase, ReplyInput
from agentrt.model import ChatModelBase
from agentrt.testing.harness.await_faults import silence_expected_errors
from agentrt.testing.harness.faults import FAULTS
from agentrt.testing.kit.scenarios import run_scenarios
from agentrt.testing.kit.session import KitRun


@dataclass(frozen=True, slots=True)
class MiddlewareReport:
    """The findings about a middleware: `problems` maps each activity to its problems, in words."""

    middleware: str
    conversations: int
    problems: dict[str, list[str]]

    def __str__(self) -> str:
        if not self.problems:
            return f"{self.middleware}: nothing found in {self.conversations} conversations"
        lines = [f"{self.middleware} breaks the contract of a middleware:"]
        for activity, problems in self.problems.items():
            lines += [f"- {activity}:", *(f"    - {problem}" for problem in problems)]
        return "\n".join(lines)


class MiddlewareProblems(AssertionError):
    """A middleware breaks the contract of its hooks; `report` has the findings."""

    def __init__(self, report: MiddlewareReport) -> None:
        super().__init__(str(report))
        self.report = report


async def check_middleware(
    factory: Callable[[], MiddlewareBase],
    *,
    faults: Iterable[str] = FAULTS,
    every: int = 1,
    patience: float = 10.0,
    beside: Sequence[Callable[[], MiddlewareBase]] = (),
    inputs: Sequence[str | ReplyInput] = (),
    model: Callable[[], ChatModelBase] | None = None,
) -> MiddlewareReport:
    """Check that a middleware keeps the contract of its hooks, on this event loop, and return a report.

    `factory` makes a new instance each time, with settings for short waits: a rate limit that is not reached, a retry
    without a pause. A conversation that takes longer than `patience`, in seconds, is abandoned. `faults` are those that
    are injected at every suspension; `every=3` tries every third one, another third with each fault.

    `beside` are factories of other layers that it needs: each stands outside of it, unless the order that the classes
    state wants it inside. If only certain words trigger the middleware, give them as `inputs`, or give `model`, a
    factory of a model that says them: the middleware is then tried in a conversation with these as well, undisturbed,
    left early, cancelled, saved and loaded, and with the faults.

    It is tried with answers that stream and that do not, with tools side by side, with calls that wait for the user and
    for a result from outside, with structured output and with compression; it is left early and cancelled; its model,
    its tools, its store and the layers inside of it fail; items are held back; a layer beside it answers by itself, or
    rewrites the answer; events of another reply pass through, as those of a sub-agent do; two instances serve one
    agent, and one instance two conversations and two agents at once; its conversation is saved and continues with
    another instance; it observes and prints, is cancelled meanwhile, and the store and the queue fail.

    It may do what a middleware may do: wait, ask the model again or not at all, answer by itself, change what is asked
    or answered, change or drop what is observed or printed, deal with an error. What must hold: what it is given is not
    changed in place; what it yields has the types of its hook and ends as it must; it does not yield in an open scope
    or task group, nor after it was closed; a request begins like the one before it, apart from what `rewrites` states;
    no context variable leaks; a cancellation leaves, and so does an error, with its type, or it is dealt with, except
    that of a store which has not kept what was observed: this always leaves, and nothing is taken in; nothing is left
    behind or held back for good; each call has one result, its own, and each reply one end; the events rebuild the
    message that is kept, without what an attempt said that was given up, and it says what the reply answers; answers
    are the same whether they stream or not and whatever else is answered meanwhile.

    Raises `MiddlewareProblems`, an `AssertionError` that says in words what was broken by what. The faults at every
    suspension are tried last, and only when nothing was found before.
    """
    # A single str is one input, not a sequence of its characters.
    inputs = (inputs,) if isinstance(inputs, str) else tuple(inputs)
    run = KitRun(factory, patience, tuple(beside), inputs, model)
    with silence_expected_errors():
        await run_scenarios(run, faults, every)
    report = MiddlewareReport(run.name, run.conversations, run.problems)
    if report.problems:
        raise MiddlewareProblems(report)
    return report


def check_middleware_on_both_loops(
    factory: Callable[[], MiddlewareBase],
    *,
    faults: Iterable[str] = FAULTS,
    every: int = 1,
    patience: float = 10.0,
    beside: Sequence[Callable[[], MiddlewareBase]] = (),
    inputs: Sequence[str | ReplyInput] = (),
    model: Callable[[], ChatModelBase] | None = None,
) -> dict[str, MiddlewareReport]:
    """Check a middleware as `check_middleware` does, on asyncio and, if it is installed, on trio.

    For tests that are not coroutines. Returns the report of each event loop.
    """
    faults = tuple(faults)  # it is iterated once for each event loop

    async def check() -> MiddlewareReport:
        return await check_middleware(
            factory, faults=faults, every=every, patience=patience, beside=beside, inputs=inputs, model=model
        )

    return {loop: anyio.run(check, backend=loop) for loop in ("asyncio", "trio") if find_spec(loop)}
