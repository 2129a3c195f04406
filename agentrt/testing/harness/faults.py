"""What can be made to go wrong in one run of a conversation, and how the run must then end."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from agentrt.errors import SessionIOError, Transient
from agentrt.event import AgentEvent
from agentrt.state import AgentState
from agentrt.testing.harness.tool_log import ToolRun

__all__ = ["FAULTS", "Fault", "Kept", "Point", "Struck", "faults_named"]

Point = Literal["suspension", "store", "model", "item"]


class Struck(Protocol):
    """The run that a fault strikes."""

    scope: Any
    task: Any
    agent: Any
    leaves: str
    kept: "Kept | None"
    injected: Exception | None

    def keep(self) -> "Kept": ...


@dataclass(frozen=True, slots=True)
class Kept:
    """What is left of a process that was killed: the state last saved, the runs of tools and the events heard so far.

    `last` is the id of the last reply, empty where nothing was heard of it.
    """

    state: AgentState | None
    runs: list[ToolRun]
    events: list[AgentEvent]
    last: str


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that goes wrong at the n-th of its points.

    `cancels` says that the caller's cancellation is what goes wrong, `again` that it comes a second time, at the next
    suspension, `strikes_task` that the task itself is cancelled, `stays` that it goes on at all later points, and
    `only_on` names the one event loop that has it.
    """

    name: str
    point: Point
    strike: Callable[[Struck], None]
    cancels: bool = False
    again: bool = False
    strikes_task: bool = False
    stays: bool = False
    only_on: str = ""


def _cancel(run: Struck) -> None:
    run.scope.cancel()


def _cancel_task(run: Struck) -> None:
    run.task.cancel()


def _interrupt(run: Struck) -> None:
    run.agent.interrupt()


def _kill(run: Struck) -> None:
    run.kept = run.keep()
    run.scope.cancel()


def _leave(run: Struck) -> None:
    run.leaves = "closed"


def _drop(run: Struck) -> None:
    run.leaves = "dropped"


def _fail_store(run: Struck) -> None:
    run.injected = run.injected or SessionIOError("the store was made to fail")
    raise run.injected


def _fail_model(run: Struck) -> None:
    run.injected = Transient("the model was made to fail")
    raise run.injected


_ALL = [
    Fault("cancel", "suspension", _cancel, cancels=True),
    Fault("cancel_task", "suspension", _cancel_task, cancels=True, strikes_task=True, only_on="asyncio"),
    Fault("cancel_task_twice", "suspension", _cancel_task, cancels=True, again=True, only_on="asyncio"),
    Fault("interrupt", "suspension", _interrupt),
    Fault("kill", "suspension", _kill, cancels=True),
    Fault("leave", "item", _leave),
    Fault("drop", "item", _drop),
    Fault("fail_store", "store", _fail_store),
    Fault("break_store", "store", _fail_store, stays=True),
    Fault("fail_model", "model", _fail_model),
]

FAULTS = tuple(fault.name for fault in _ALL)
"""The names of all faults, in the order of their trial.

At a suspension: `cancel` cancels a scope around the caller, `cancel_task` the task itself, as asyncio does it, and
`cancel_task_twice` once more at its next suspension; `interrupt` calls `agent.interrupt()`; `kill` goes on from what
was saved by then, as if the process had died. After an item: `leave` closes the stream, `drop` merely drops it.
`fail_store` and `fail_model` raise once, before or after what the store and the model do; `break_store` has the store
fail from there on.
"""


def faults_named(names: Any, backend: str) -> list[Fault]:
    """Return these faults, without those that this event loop does not have."""
    unknown = sorted(set(names) - set(FAULTS))
    if unknown:
        raise ValueError(f"there is no fault {unknown[0]!r}: choose from {', '.join(FAULTS)}")
    return [fault for fault in _ALL if fault.name in names and fault.only_on in ("", backend)]
