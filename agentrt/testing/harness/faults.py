"""The faults that can be injected into a run of a conversation, and how the run must then end."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal, Protocol

from agentrt.event import AgentEvent
from agentrt.state import AgentState
from agentrt.testing.harness.tool_log import ToolRun

Point = Literal["suspension", "store", "model", "item"]


class FaultTarget(Protocol):
    """The run that a fault is injected into, with a method for each fault."""

    def cancel_scope(self) -> None: ...
    def cancel_task(self) -> None: ...
    def interrupt(self) -> None: ...
    def kill(self) -> None: ...
    def leave(self) -> None: ...
    def drop(self) -> None: ...
    def fail_store(self) -> None: ...
    def fail_model(self) -> None: ...


@dataclass(frozen=True, slots=True)
class KilledProcess:
    """The remains of a killed process: the last saved state, the runs of tools and the events until then.

    `last` is the id of the last reply, empty if it has no events.
    """

    state: AgentState | None
    runs: list[ToolRun]
    events: list[AgentEvent]
    last: str


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault at the n-th of its points.

    `cancels` says that the fault is the caller's cancellation, `again` that it comes a second time, at the next
    suspension, `strikes_task` that the task itself is cancelled, `persists` that it repeats at all later points, and
    `only_on` names the one event loop that has it.
    """

    name: str
    point: Point
    inject: Callable[[FaultTarget], None]
    cancels: bool = False
    again: bool = False
    strikes_task: bool = False
    persists: bool = False
    only_on: str = ""


_ALL_FAULTS = [
    Fault("cancel", "suspension", lambda run: run.cancel_scope(), cancels=True),
    Fault(
        "cancel_task",
        "suspension",
        lambda run: run.cancel_task(),
        cancels=True,
        strikes_task=True,
        only_on="asyncio",  # trio cancels scopes only
    ),
    Fault(
        "cancel_task_twice",
        "suspension",
        lambda run: run.cancel_task(),
        cancels=True,
        again=True,
        only_on="asyncio",
    ),
    Fault("interrupt", "suspension", lambda run: run.interrupt()),
    Fault("kill", "suspension", lambda run: run.kill(), cancels=True),
    # A reader can leave only when it has control: after an item.
    Fault("leave", "item", lambda run: run.leave()),
    Fault("drop", "item", lambda run: run.drop()),
    Fault("fail_store", "store", lambda run: run.fail_store()),
    Fault("break_store", "store", lambda run: run.fail_store(), persists=True),
    Fault("fail_model", "model", lambda run: run.fail_model()),
]

FAULTS = tuple(fault.name for fault in _ALL_FAULTS)
"""The names of all faults, in the order in which they are tried.

At a suspension: `cancel` cancels a scope around the caller, `cancel_task` the task itself, as asyncio does it, and
`cancel_task_twice` once more at its next suspension; `interrupt` calls `agent.interrupt()`; `kill` continues from the
state saved by then, as if the process had died. After an item: `leave` closes the stream, `drop` merely drops it.
`fail_store` and `fail_model` raise once, before or after the store's or the model's work; `break_store` has the store
fail from then on.
"""


def faults_named(names: Iterable[str], backend: str) -> list[Fault]:
    """Return these faults, without those that do not exist on this event loop."""
    names = set(names)
    unknown = sorted(names - set(FAULTS))
    if unknown:
        raise ValueError(f"{unknown[0]!r} is not a fault: choose from {', '.join(FAULTS)}")
    return [fault for fault in _ALL_FAULTS if fault.name in names and fault.only_on in ("", backend)]
