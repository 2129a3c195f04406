"""All activities of the check, in order."""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial

import anyio.lowlevel

from agentrt.agent import Agent
from agentrt.errors import ConfigError
from agentrt.hooks import ReplyInput
from agentrt.state import InMemoryStateStore
from agentrt.testing.harness.approve import approve
from agentrt.testing.harness.await_faults import run_with_every_fault
from agentrt.testing.harness.fault_run import ConversationPlan
from agentrt.testing.harness.tool_log import ToolLog
from agentrt.testing.kit.baseline import (
    answer_alone,
    answer_beside_layers,
    answer_one_after_the_other,
    answer_with_delays,
    look_for_inheritance,
    resume_again,
)
from agentrt.testing.kit.conversations import hold_own_conversation, inputs_of_author, save_and_load
from agentrt.testing.kit.disturbances import (
    break_off_streams,
    cancel_at_each_point,
    fail_everywhere,
    leave_at_each_item,
)
from agentrt.testing.kit.growth import reply_many_times
from agentrt.testing.kit.isolation import (
    pass_foreign_events,
    put_two_in_one_agent,
    run_tools_side_by_side,
    share_one_instance,
)
from agentrt.testing.kit.kit_agents import FORM, PLAIN_QUESTION, TWO_TOOLS_QUESTION, WAITING_QUESTION, AgentOptions
from agentrt.testing.kit.observe_and_print import observe_messages, print_messages
from agentrt.testing.kit.session import KitRun, TimedOut, describe_error
from agentrt.types import JSONSchema

_SCENARIOS: dict[str, Callable[[KitRun], Awaitable[None]]] = {
    "left alone": answer_alone,
    "several questions": answer_one_after_the_other,
    "left by its reader": leave_at_each_item,
    "cancelled": cancel_at_each_point,
    "something fails": fail_everywhere,
    "something fails: the model's stream breaks off, and the question is a plain one": break_off_streams,
    "items come later": answer_with_delays,
    "beside a layer": answer_beside_layers,
    "beside a layer that resumes a reply again": resume_again,
    "events of another reply pass through": pass_foreign_events,
    "tools side by side": run_tools_side_by_side,
    "two instances in one agent": put_two_in_one_agent,
    "one instance in": share_one_instance,
    "saved and loaded": save_and_load,
    "many replies": reply_many_times,
    "in the conversation that was given": hold_own_conversation,
    "observing": observe_messages,
    "printing": print_messages,
}
"""The activities, by their names in a report; the first leaves the middleware alone."""


async def run_scenarios(run: KitRun, faults: Iterable[str], every: int) -> None:
    """Run all activities, the faults at every suspension last, and only if nothing was found before."""
    try:
        run.check_factory()
        for index, (activity, scenario) in enumerate(_SCENARIOS.items()):
            run.activity = activity
            try:
                await scenario(run)
            except (ConfigError, TimedOut):
                raise  # the next ones would fail in the same way
            except Exception as error:  # noqa: BLE001  # the other scenarios are tried all the same
                run.report(describe_error(error))
            if run.problems and not index:
                return  # a problem without a fault would be reported again and again
        if not run.problems:
            run.activity = "in an agent with sub-agents"
            look_for_inheritance(run)
        if not run.problems:
            await _run_with_faults(run, faults, every)
    except ConfigError as error:
        run.activity = "putting it into an agent"
        run.report(f"it is refused, before anything runs: {error}")
    except TimedOut as error:
        run.report(str(error))


async def _run_with_faults(run: KitRun, faults: Iterable[str], every: int) -> None:
    """Run some conversations with each of the faults at every suspension."""
    faults = tuple(faults)  # they are iterated for each conversation
    conversations: list[tuple[Sequence[str | ReplyInput], JSONSchema | None, AgentOptions]] = [
        ([PLAIN_QUESTION, TWO_TOOLS_QUESTION], None, {}),
        ([WAITING_QUESTION], None, {"stream": False}),
        ([PLAIN_QUESTION], FORM, {}),
    ]
    own_inputs = inputs_of_author(run)
    if own_inputs:
        conversations.append((own_inputs, None, {"model": run.model}))
    for inputs, schema, options in conversations:
        run.activity = f"a fault at every suspension of {' '.join(map(str, inputs))!r:.200}"
        make = partial(_make_logged_agent, run, options)
        plan = ConversationPlan(make, inputs, schema, approve, any_answer=True)
        try:
            report = await run_with_every_fault(plan, faults, every=every)
        except AssertionError as error:
            run.report(*str(error).splitlines())
            return  # the other conversations are slow, and most likely find the same
        run.conversations += sum(report.runs.values())


def _make_logged_agent(run: KitRun, options: AgentOptions, log: ToolLog) -> Agent:
    async def on_point(point: str) -> None:
        # Tool runs are not logged: a layer may answer instead.
        if point == "tool" and log.on_run is not None:
            log.on_run("a tool")
        await anyio.lowlevel.checkpoint()

    options = {**options, "on_point": on_point, "state_store": InMemoryStateStore()}
    return run.make_agent([run.factory()], **options)
