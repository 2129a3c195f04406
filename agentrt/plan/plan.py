"""A plan and its subtasks, with the rules by which they change.

A subtask is `todo`, then `in_progress`, then `done`; or it is `abandoned`. The last two are closed.

    1. At most one subtask is in progress.
    2. What comes before a subtask that is in progress or done is closed.
    3. What is done stays as it is, until it is set back to `todo`.
    4. A plan that is being worked on has a subtask.

    change                      allowed for
    start                       a `todo` one, if nothing is in progress and all before it are closed
    finish                      a `todo` one, likewise, or the one in progress; the next `todo` one is then started
    abandon                     one that is `todo` or in progress
    set back to `todo`          any, if none after it is in progress or done
    add                         behind the last one that is in progress or done
    revise, delete              one that is not done; the last one that is left is not deleted
"""

from dataclasses import dataclass, field
from functools import cache
from time import time_ns
from typing import Literal, NoReturn

import pydantic

from agentrt._runtime.block import JSONObject, Strict, new_id
from agentrt._runtime.text import one_line
from agentrt._runtime.timestamp import timestamp_text
from agentrt.errors import ToolError

TaskState = Literal["todo", "in_progress", "done", "abandoned"]

# As models and people write lists: a subtask that is not done has an empty box, whatever its state.
_CHECKBOXES: dict[TaskState, str] = {
    "todo": "- [ ] ",
    "in_progress": "- [ ] [WIP] ",
    "done": "- [x] ",
    "abandoned": "- [ ] [Abandoned] ",
}
_CLOSED_STATES = ("done", "abandoned")
_BEGUN_STATES = ("in_progress", "done")
_MAX_PLAN_TITLE = 200  # characters of a name in one line; a model may write a page where a name is due


def time_text(nanoseconds: int) -> str:
    """Return the time in UTC, to the second, for people and models to read."""
    return f"{str(timestamp_text(nanoseconds))[:19]}Z"


def _now() -> str:
    return time_text(time_ns())


@dataclass(slots=True, repr=False, eq=False)
class SubTask(Strict):
    """One step of a plan, with its `outcome` once it is done. The items of a todo list have an `id` as well."""

    name: str
    description: str = ""
    expected_outcome: str = ""
    outcome: str | None = None
    state: TaskState = "todo"
    created_at: str = field(default_factory=_now)
    finished_at: str | None = None
    id: str = ""

    def __post_init__(self) -> None:
        for parameter in ("name", "description", "expected_outcome"):
            value = getattr(self, parameter)
            if not isinstance(value, str):
                raise TypeError(f"SubTask({parameter}=...) must be a str, not {value!r:.200}")

    @property
    def is_closed(self) -> bool:
        """Whether it is done or abandoned."""
        return self.state in _CLOSED_STATES

    def finish(self, outcome: str, finished_at: str | None = None) -> None:
        """Make it done, with this outcome."""
        self.state, self.outcome, self.finished_at = "done", outcome, finished_at or _now()

    def set_state(self, state: TaskState) -> None:
        """Give it a state other than `done`, and no outcome."""
        self.state, self.outcome, self.finished_at = state, None, None

    def to_oneline_markdown(self) -> str:
        """Return its state and name as an item of a Markdown list."""
        return _CHECKBOXES[self.state] + one_line(self.name, _MAX_PLAN_TITLE)

    def to_markdown(self, detailed: bool = False) -> str:
        """Return it as an item of a Markdown list; `detailed` adds all other fields."""
        lines = [self.to_oneline_markdown()]
        if detailed:
            lines += [
                f"\t- Created At: {self.created_at}",
                f"\t- Description: {self.description}",
                f"\t- Expected Outcome: {self.expected_outcome}",
                f"\t- State: {self.state}",
            ]
            if self.state == "done":
                lines += [f"\t- Finished At: {self.finished_at}", f"\t- Actual Outcome: {self.outcome}"]
        return "\n".join(lines)


@dataclass(slots=True, repr=False, eq=False)
class Plan(Strict):
    """Subtasks in their order; the changes keep the rules, and raise `ToolError` for one that would break them.

    The error says what is allowed instead, and the plan stays as it was. `owner` owns the plan: in a storage that
    conversations share, nobody else finds it.
    """

    name: str
    description: str = ""
    expected_outcome: str = ""
    subtasks: list[SubTask] = field(default_factory=list)
    id: str = field(default_factory=new_id)
    created_at: str = field(default_factory=_now)
    state: TaskState = "todo"
    finished_at: str | None = None
    outcome: str | None = None
    owner: str = ""

    def start_subtask(self, index: int) -> None:
        """Make a subtask the one in progress."""
        subtask = self._subtask(index)
        if subtask.is_closed:
            self._refuse(f"{self._title(index)} cannot be started: it is {subtask.state}")
        if subtask.state != "in_progress":
            self._refuse_out_of_order(index, "started")
        subtask.set_state("in_progress")
        self.refresh_plan_state()

    def finish_subtask(self, index: int, outcome: str, finished_at: str | None = None) -> SubTask | None:
        """Make a subtask done, and start the next one; returns the next one or `None`."""
        subtask = self._subtask(index)
        if subtask.is_closed:
            self._refuse(f"{self._title(index)} cannot be finished: it is {subtask.state}")
        if subtask.state != "in_progress":
            self._refuse_out_of_order(index, "finished")
        subtask.finish(outcome, finished_at)
        # By the second rule, no later subtask is in progress or done: each is `todo` or abandoned.
        following = next((later for later in self.subtasks[index + 1 :] if later.state == "todo"), None)
        if following is not None:
            following.set_state("in_progress")
        self.refresh_plan_state()
        return following

    def abandon_subtask(self, index: int) -> None:
        """Give up a subtask."""
        subtask = self._subtask(index)
        # An abandoned one stays abandoned: a repeated call does no harm.
        if subtask.state == "done":
            self._refuse(f"{self._title(index)} cannot be abandoned: it is done")
        subtask.set_state("abandoned")
        self.refresh_plan_state()

    def reopen_subtask(self, index: int) -> None:
        """Set a subtask back to `todo`."""
        subtask = self._subtask(index)
        later = self._begun_until()
        if later > index:
            behind = self._title(later)
            self._refuse(
                f"{self._title(index)} cannot be set back to 'todo': {behind} comes after it and is "
                f"{self.subtasks[later].state}"
            )
        subtask.set_state("todo")
        self.refresh_plan_state()

    def add_subtask(self, index: int, subtask: SubTask) -> None:
        """Put a subtask in front of the one with this index, or at the end."""
        # In front of a subtask that is in progress or done, it would never be started.
        first = self._begun_until() + 1
        if not first <= index <= len(self.subtasks):
            self._refuse(f"a subtask can be added at the indexes {first} to {len(self.subtasks)}, not at {index}")
        self.subtasks.insert(index, subtask)
        self.refresh_plan_state()

    def revise_subtask(self, index: int, subtask: SubTask) -> None:
        """Replace what a subtask is about; its state stays."""
        self._refuse_if_done(index, "revised: add another one")
        # Field by field: state and outcome stay.
        before = self.subtasks[index]
        before.name, before.description = subtask.name, subtask.description
        before.expected_outcome = subtask.expected_outcome

    def delete_subtask(self, index: int) -> SubTask:
        """Take a subtask out, and return it."""
        # Its outcome would be lost, and the model may still need it.
        self._refuse_if_done(index, "deleted: its outcome is kept")
        if len(self.subtasks) == 1:
            self._refuse("the last subtask cannot be deleted: revise it, or finish the plan as 'abandoned'")
        subtask = self.subtasks.pop(index)
        self.refresh_plan_state()
        return subtask

    def subtask_in_progress(self) -> int | None:
        """Return the index of the subtask in progress or `None`."""
        return next((index for index, subtask in enumerate(self.subtasks) if subtask.state == "in_progress"), None)

    def allowed_now(self) -> str:
        """Return the allowed next steps, as a sentence for the model."""
        current = self.subtask_in_progress()
        if current is not None:
            return f"Allowed now: finish or abandon {self._title(current)}, which is in progress."
        for index, subtask in enumerate(self.subtasks):
            if not subtask.is_closed:
                return f"Allowed now: start or abandon {self._title(index)}."
        return "Allowed now: finish the plan, or add a subtask at its end."

    def refresh_plan_state(self) -> str:
        """Bring the plan's state in line with those of its subtasks; returns a sentence if it changed, else "".

        It is in progress while a subtask is, and `todo` while none is and some are left.
        """
        if self.state in _CLOSED_STATES:
            return ""
        # When all are closed, the state stays: only `finish` knows whether the plan is done.
        state: TaskState = self.state
        if self.subtask_in_progress() is not None:
            state = "in_progress"
        elif not all(subtask.is_closed for subtask in self.subtasks):
            state = "todo"
        if state == self.state:
            return ""
        self.state = state
        return f"The plan state has been updated to '{state}'."

    def finish(self, state: Literal["done", "abandoned"], outcome: str, finished_at: str | None = None) -> None:
        """Close the plan, with its outcome, or the reason why it is abandoned."""
        self.state, self.outcome, self.finished_at = state, outcome, finished_at or _now()

    def reopen(self) -> None:
        """Reopen a closed plan."""
        self.state, self.outcome, self.finished_at = "todo", None, None
        self.refresh_plan_state()

    def to_markdown(self, detailed: bool = False) -> str:
        """Return the plan as Markdown, with its subtasks as a list."""
        return "\n".join(
            [
                f"# {one_line(self.name, _MAX_PLAN_TITLE)}",
                f"**Description**: {self.description}",
                f"**Expected Outcome**: {self.expected_outcome}",
                f"**State**: {self.state}",
                f"**Created At**: {self.created_at}",
                "## Subtasks",
                *(subtask.to_markdown(detailed) for subtask in self.subtasks),
            ]
        )

    def _subtask(self, index: int) -> SubTask:
        # A negative index, which Python would count from the end, is the model's mistake.
        if not 0 <= index < len(self.subtasks):
            self._refuse(f"subtask {index} does not exist: the plan has those from 0 to {len(self.subtasks) - 1}")
        return self.subtasks[index]

    def _title(self, index: int) -> str:
        return f"subtask {index} ('{one_line(self.subtasks[index].name, _MAX_PLAN_TITLE)}')"

    def _begun_until(self) -> int:
        """Return the index of the last subtask that is in progress or done, -1 if none is."""
        return max((index for index, subtask in enumerate(self.subtasks) if subtask.state in _BEGUN_STATES), default=-1)

    def _refuse_out_of_order(self, index: int, verb: str) -> None:
        for place, subtask in enumerate(self.subtasks):
            if subtask.state == "in_progress" or (place < index and not subtask.is_closed):
                self._refuse(
                    f"{self._title(index)} cannot be {verb}: {self._title(place)} is {subtask.state}, and comes first"
                )

    def _refuse_if_done(self, index: int, verb: str) -> None:
        subtask = self._subtask(index)
        if subtask.state == "done":
            self._refuse(f"{self._title(index)} is done and cannot be {verb}")

    def _refuse(self, problem: str) -> NoReturn:
        # The message includes the way out: a model that reads only the problem makes another mistake.
        raise ToolError(f"{problem}. {self.allowed_now()}")


# Built at the first use: that takes longer than importing this module.
@cache
def _plan_adapter() -> "pydantic.TypeAdapter[Plan]":
    return pydantic.TypeAdapter(Plan)


def plan_to_json(plan: Plan) -> JSONObject:
    """Return the plan as JSON that shares nothing with it."""
    fields: JSONObject = _plan_adapter().dump_python(plan, mode="json", warnings=False)
    return fields


def plan_from_json(fields: object) -> Plan:
    """Return the plan that `plan_to_json` wrote; raises `ValueError` for anything else."""
    return _plan_adapter().validate_python(fields)
