"""Todos: the model keeps a list of what is left to do, and always has it in view."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import count
from typing import Annotated, ClassVar, Literal

from pydantic import Field
from typing_extensions import TypedDict

from agentrt._runtime.text import one_line
from agentrt.agent import Agent
from agentrt.message import TextBlock
from agentrt.plan import DefaultPlanToHint, Plan, SubTask
from agentrt.plan.plan import time_text
from agentrt.tool import FunctionTool, ToolContext, ToolFlow, ToolResponse
from agentrt_middleware.plan.layer import PlanLayer, PlanToHint
from agentrt_middleware.plan.notebook_tools import refusal

_TITLE = "Todos"  # of the plan that the list is
_MAX_TODO_ID = 100


class _TodoOptionalFields(TypedDict, total=False):
    id: Annotated[str, Field(description="The item's id in the list; leave it out for a new item.")]


class TodoItem(_TodoOptionalFields):
    """An item of the list."""

    content: Annotated[str, Field(description="What is to be done, in a few words.")]
    state: Annotated[
        Literal["todo", "in_progress", "done", "abandoned"],
        Field(description="How far it is. At most one item is in progress."),
    ]


class _TodosToHint(DefaultPlanToHint):
    """The text of the list for the model."""

    no_plan: ClassVar[str] = (
        "If what the user asks for takes several steps, call 'write_todos' first with a list of them. Otherwise answer "
        "without a list."
    )
    todos: ClassVar[str] = (
        "The current todos, each with its id:\n```\n{plan}\n```\n"
        "When one is started or done, call 'write_todos' with the whole list, in which nothing unfinished is missing."
    )

    def _describe(self, plan: Plan) -> str:
        return self.todos.format(plan=self._quote(_list_in_words(plan)))


class TodoMiddleware(PlanLayer):
    """Gives the agent one tool, `write_todos`, that keeps a list of what is to do, and shows it with each request.

    The list is a plan with the items as its subtasks, and is saved with the conversation. Items are matched by their
    ids; one that is unfinished stays in the list until it is done or abandoned. `max_todos` is by default 100.
    `plan_to_hint` is a function of that plan, or of `None`, that returns what the model reads.
    """

    def __init__(self, max_todos: int | None = None, plan_to_hint: PlanToHint | None = None) -> None:
        super().__init__("max_todos", max_todos, _TodosToHint() if plan_to_hint is None else plan_to_hint, None, None)

    @property
    def max_todos(self) -> int:
        """How many items the list may have."""
        return self.max_subtasks

    def plan_of(self, agent: Agent) -> Plan | None:
        """Return a copy of the conversation's list as a plan, `None` if it has none."""
        plan = super().plan_of(agent)
        subtasks = [] if plan is None else plan.subtasks
        new_ids = _new_ids(subtask.id for subtask in subtasks)
        known: set[str] = set()
        for subtask in subtasks:  # the steps of a PlanNotebook's plan have none
            if not subtask.id or subtask.id in known:
                subtask.id = next(new_ids)
            known.add(subtask.id)
        return plan

    def list_tools(self) -> Sequence[FunctionTool]:
        """Return the tool."""
        flow = ToolFlow(trusted_output=True)
        # What is noted is shown to the model again, and so keeps its handles.
        return [
            FunctionTool(
                self.write_todos,
                is_concurrency_safe=False,
                is_read_only=True,
                flow=flow,
                keeps_handles=True,
                changes_conversation=True,
            )
        ]

    async def write_todos(self, context: ToolContext, todos: list[TodoItem]) -> ToolResponse:
        """Write the whole list of what is to do, in place of the one before.

        Items that are unfinished stay in it, by their ids, until they are done or abandoned.

        Args:
            todos: The items, in their order.
        """
        plan = await self.current_plan(context)
        before = {subtask.id: subtask for subtask in plan.subtasks} if plan is not None else {}
        problem = self._problem(todos, before)
        if problem is not None:
            return refusal(
                f"{problem}. The list is as it was. Allowed now: call write_todos again, with the whole list of at "
                f"most {self.max_todos} items."
            )
        now = time_text(context.now())
        if plan is None:
            plan = self.new_plan(context, _TITLE)
        # Without the rules about the order, which is the model's to choose here.
        plan.subtasks, new_ids = [], _new_ids([*before, *(todo.get("id", "") for todo in todos)])
        for todo in todos:
            name = todo.get("id", "") or next(new_ids)
            known = before.get(name)
            subtask = SubTask(todo["content"], created_at=now if known is None else known.created_at, id=name)
            if todo["state"] != "done":
                subtask.set_state(todo["state"])
            elif known is not None and known.state == "done":  # it keeps the time at which it was
                subtask.finish(known.outcome or "", known.finished_at)
            else:
                subtask.finish("", now)
            plan.subtasks.append(subtask)
        plan.refresh_plan_state()
        await self.keep_plan(context, plan if plan.subtasks else None)
        return ToolResponse([TextBlock(_list_in_words(plan))])

    def _problem(self, todos: list[TodoItem], before: dict[str, SubTask]) -> str | None:
        if len(todos) > self.max_todos:
            return f"the list may have at most {self.max_todos} items, not {len(todos)}"
        ids = [todo["id"] for todo in todos if todo.get("id")]
        unreadable = next((name for name in ids if one_line(name, _MAX_TODO_ID) != name), None)
        if unreadable is not None:
            return f"an id is one line of at most {_MAX_TODO_ID} characters, not '{one_line(unreadable, 100)}'"
        # One id for two items would make one of them disappear.
        twice = next((name for name in ids if ids.count(name) > 1), None)
        if twice is not None:
            return f"two items have the id '{one_line(twice, 100)}': leave it out for a new item"
        in_progress = [todo["content"] for todo in todos if todo["state"] == "in_progress"]
        if len(in_progress) > 1:
            names = " and ".join(f"'{one_line(name, 100)}'" for name in in_progress[:2])
            return f"{names} cannot both be in progress: one item at a time"
        # What models forget first in a long task is what is left to do.
        missing = [subtask for name, subtask in before.items() if not subtask.is_closed and name not in ids]
        if missing:
            names = ", ".join(f"'{subtask.id}' ({one_line(subtask.name, 100)})" for subtask in missing)
            return f"these items are unfinished and missing: {names}: keep them, or give them the state 'abandoned'"
        return None


def _new_ids(taken: Iterable[str]) -> Iterator[str]:
    """Yield numbers that are not among the ids which are taken, of which the model may have made up some."""
    names = set(taken)
    # A longer one is not one of ours.
    numbers = [int(name) for name in names if name.isascii() and name.isdecimal() and len(name) < 10]
    return (str(number) for number in count(max(numbers, default=0) + 1) if str(number) not in names)


def _list_in_words(plan: Plan) -> str:
    lines = (f"{subtask.to_oneline_markdown()} (id: {subtask.id})" for subtask in plan.subtasks)
    return "\n".join(lines) or "The list is empty."
