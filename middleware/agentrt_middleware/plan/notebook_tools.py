"""The tools by which a model makes a plan and works on it."""

from collections.abc import Callable
from typing import Annotated, Literal, Protocol

from pydantic import Field, with_config
from typing_extensions import TypedDict

from agentrt.agent import Agent
from agentrt.errors import ToolError
from agentrt.message import TextBlock, ToolResultState
from agentrt.plan import Plan, PlanStorageBase, SubTask
from agentrt.plan.plan import time_text
from agentrt.tool import FunctionTool, ToolContext, ToolFlow, ToolResponse

_MAX_LISTED = 50  # former plans


# What else a model may say of a subtask, such as its state, changes nothing.
@with_config(extra="ignore")
class SubTaskDraft(TypedDict):
    """A step of the plan."""

    name: Annotated[str, Field(description="Its name: at most 10 words that say what is done.")]
    description: Annotated[str, Field(description="What is to be done, within which limits, and towards which aim.")]
    expected_outcome: Annotated[
        str, Field(description="What there will be when it is done, so that it can be checked.")
    ]


class PlanKeeper(Protocol):
    """The keeper of each conversation's plan."""

    max_subtasks: int

    async def current_plan(self, context: ToolContext) -> Plan | None: ...
    def new_plan(self, context: ToolContext, name: str, description: str = "", expected_outcome: str = "") -> Plan: ...
    async def keep_plan(self, context: ToolContext, plan: Plan | None) -> None: ...
    async def put_away(self, context: ToolContext, plan: Plan) -> None: ...
    def note_recovered(self, agent: Agent, plan: Plan) -> None: ...
    def history_of(self, agent: Agent) -> PlanStorageBase: ...
    def owner_of(self, agent: Agent) -> str: ...


class NotebookTools:
    """The eight tools over one notebook; each changes the plan in whole or not at all."""

    def __init__(self, notebook: PlanKeeper) -> None:
        self._notebook = notebook

    def tools(self) -> list[FunctionTool]:
        """Return the tools, which run one at a time."""
        functions: tuple[Callable[..., object], ...] = (
            self.view_subtasks,
            self.update_subtask_state,
            self.finish_subtask,
            self.create_plan,
            self.revise_current_plan,
            self.finish_plan,
            self.view_historical_plans,
            self.recover_historical_plan,
        )
        # Nothing but the conversation changes, so they may run in any permission mode.
        # What is noted is shown to the model again, and so keeps its handles.
        flow = ToolFlow(trusted_output=True)
        return [
            FunctionTool(
                function,
                is_concurrency_safe=False,
                is_read_only=True,
                flow=flow,
                keeps_handles=True,
                changes_conversation=True,
            )
            for function in functions
        ]

    async def create_plan(
        self, context: ToolContext, name: str, description: str, expected_outcome: str, subtasks: list[SubTaskDraft]
    ) -> ToolResponse:
        """Make a plan of subtasks that are worked on one after the other. It takes the place of the current plan.

        Args:
            name: The plan's name: at most 10 words that say what is done.
            description: What is to be done, within which limits, and towards which aim.
            expected_outcome: What there will be when it is done, so that it can be checked.
            subtasks: The steps, in their order.
        """
        limit = self._notebook.max_subtasks
        if not 1 <= len(subtasks) <= limit:
            current = await self._notebook.current_plan(context)
            otherwise = "" if current is None else f" The current plan is as it was. {current.allowed_now()}"
            return refusal(
                f"no plan was made of {len(subtasks)} subtasks. Allowed now: call create_plan with 1 to {limit}."
                f"{otherwise}"
            )
        plan = self._notebook.new_plan(context, name, description, expected_outcome)
        plan.subtasks = [_subtask(draft, plan.created_at) for draft in subtasks]
        # The old one first: should a storage fail, the old one is still the current one.
        replaced = await self._put_away_current_plan(context, f"It was replaced by the plan '{name}'.")
        await self._notebook.keep_plan(context, plan)
        return _success(f"The plan '{name}' was made. {replaced}{plan.allowed_now()}")

    async def revise_current_plan(
        self,
        context: ToolContext,
        subtask_idx: int,
        action: Literal["add", "revise", "delete"],
        subtask: SubTaskDraft | None = None,
    ) -> ToolResponse:
        """Add a subtask to the current plan, change what one is about, or delete one.

        Args:
            subtask_idx: The index of the subtask, from 0 up. A subtask that is added comes before the one with it.
            action: What is done.
            subtask: The subtask to add, or what it is to be about. Needed for "add" and "revise".
        """

        # On a copy, as all changes are: where a rule is broken, the plan stays as it was.
        def revise(plan: Plan) -> str:
            if action == "delete":
                deleted = plan.delete_subtask(subtask_idx)
                return f"Subtask {subtask_idx} ('{deleted.name}') was deleted."
            if subtask is None:
                raise ToolError(
                    f"subtask is needed for the action '{action}': give name, description, expected_outcome. "
                    f"{plan.allowed_now()}"
                )
            draft = _subtask(subtask, time_text(context.now()))
            if action == "revise":
                plan.revise_subtask(subtask_idx, draft)
                return f"Subtask {subtask_idx} was revised."
            limit = self._notebook.max_subtasks
            if len(plan.subtasks) >= limit:
                raise ToolError(f"the plan has {limit} subtasks, which is the limit. {plan.allowed_now()}")
            plan.add_subtask(subtask_idx, draft)
            return f"A subtask was added at index {subtask_idx}."

        return await self._change(context, revise)

    async def update_subtask_state(
        self, context: ToolContext, subtask_idx: int, state: Literal["todo", "in_progress", "abandoned"]
    ) -> ToolResponse:
        """Start a subtask, set it back, or abandon it. To make it done, call `finish_subtask` with its outcome.

        Args:
            subtask_idx: The index of the subtask, from 0 up.
            state: Its new state.
        """

        def update(plan: Plan) -> str:
            changes = {
                "todo": plan.reopen_subtask,
                "in_progress": plan.start_subtask,
                "abandoned": plan.abandon_subtask,
            }
            before = plan.state
            changes[state](subtask_idx)
            name = plan.subtasks[subtask_idx].name
            change_of_plan = f" The plan state has been updated to '{plan.state}'." if plan.state != before else ""
            return f"Subtask {subtask_idx} ('{name}') is now '{state}'.{change_of_plan}"

        return await self._change(context, update)

    async def finish_subtask(self, context: ToolContext, subtask_idx: int, subtask_outcome: str) -> ToolResponse:
        """Make a subtask done, with its outcome; the next one is then in progress.

        Args:
            subtask_idx: The index of the subtask, from 0 up.
            subtask_outcome: What came out of it: the data, the facts or the path of the file, and not what you did.
        """

        def finish(plan: Plan) -> str:
            following = plan.finish_subtask(subtask_idx, subtask_outcome, time_text(context.now()))
            text = f"Subtask {subtask_idx} ('{plan.subtasks[subtask_idx].name}') is done."
            if following is not None:
                return f"{text} The next one, '{following.name}', is now in progress."
            return f"{text} {plan.allowed_now()}"

        return await self._change(context, finish)

    async def view_subtasks(self, context: ToolContext, subtask_idx: list[int]) -> ToolResponse:
        """Show all that is known of subtasks.

        Args:
            subtask_idx: The indexes of the subtasks, from 0 up.
        """
        plan = await self._notebook.current_plan(context)
        if plan is None:
            return _no_plan()
        # Models ask for what is not there now and then: they get what is, and which is not.
        known = [index for index in dict.fromkeys(subtask_idx) if 0 <= index < len(plan.subtasks)]
        unknown = [index for index in dict.fromkeys(subtask_idx) if index not in known]
        texts = [f"Subtask {index}:\n```\n{plan.subtasks[index].to_markdown(detailed=True)}\n```" for index in known]
        there_are = f"The plan has subtasks 0 to {len(plan.subtasks) - 1}."
        if unknown:
            texts.append(f"Not in the plan: {', '.join(map(str, unknown[:20]))}. {there_are}")
        text = "\n".join(texts) or f"No index was given. {there_are}"
        return _success(text) if known else refusal(text)

    async def finish_plan(
        self, context: ToolContext, state: Literal["done", "abandoned"], outcome: str
    ) -> ToolResponse:
        """End the current plan. Make sure that the user no longer wants it before you abandon it.

        Args:
            state: "done", or "abandoned" if the user no longer wants it.
            outcome: What came out of it, or why it is abandoned.
        """
        plan = await self._notebook.current_plan(context)
        if plan is None:
            return _no_plan()
        plan.finish(state, outcome, time_text(context.now()))
        # First there: should the process end in between, it is in both places, and can be finished again.
        await self._notebook.put_away(context, plan)
        await self._notebook.keep_plan(context, None)
        return _success(f"The plan '{plan.name}' is now '{state}'. It can be recovered by its id, {plan.id}.")

    async def view_historical_plans(self, context: ToolContext) -> ToolResponse:
        """Show the plans that are over."""
        await self._notebook.current_plan(context)  # one that cannot be read joins them here
        agent = context.agent
        plans = await self._notebook.history_of(agent).plans_of(self._notebook.owner_of(agent))
        texts = [
            f"Plan '{plan.name}':\n- ID: {plan.id}\n- Created at: {plan.created_at}\n"
            f"- Description: {plan.description}\n- State: {plan.state}\n- Outcome: {plan.outcome}"
            for plan in plans[-_MAX_LISTED:]
        ]
        return _success("\n".join(texts) or "No former plans were found.")

    async def recover_historical_plan(self, context: ToolContext, plan_id: str) -> ToolResponse:
        """Take up a former plan again. It takes the place of the current plan, which joins the former ones.

        Args:
            plan_id: The plan's id, which `view_historical_plans` shows.
        """
        current = await self._notebook.current_plan(context)
        if current is not None and current.id == plan_id:
            return refusal(f"the plan '{current.name}' is the current one. {current.allowed_now()}")
        agent = context.agent
        # Not by the id alone: a model may know, or guess, the id of another user's plan.
        plans = await self._notebook.history_of(agent).plans_of(self._notebook.owner_of(agent))
        plan = next((plan for plan in plans if plan.id == plan_id), None)
        if plan is None:
            return refusal(f"no former plan has the id '{plan_id:.100}': call view_historical_plans for their ids")
        if not plan.subtasks:
            return refusal(f"the plan '{plan.name}' has no subtasks: make another one with create_plan")
        replaced = await self._put_away_current_plan(context, f"It was interrupted by the plan '{plan.name}'.")
        self._notebook.note_recovered(agent, plan)
        plan.reopen()
        await self._notebook.keep_plan(context, plan)
        return _success(f"The plan '{plan.name}' is the current one again. {replaced}{plan.allowed_now()}")

    async def _put_away_current_plan(self, context: ToolContext, reason: str) -> str:
        """Keep the current plan, if there is one, among the former ones; returns what to say of it."""
        current = await self._notebook.current_plan(context)
        if current is None:
            return ""
        current.finish("abandoned", reason, time_text(context.now()))
        await self._notebook.put_away(context, current)
        return f"The plan before it, '{current.name}', can be recovered by its id, {current.id}. "

    async def _change(self, context: ToolContext, edit: Callable[[Plan], str]) -> ToolResponse:
        plan = await self._notebook.current_plan(context)
        if plan is None:
            return _no_plan()
        try:
            text = edit(plan)
        except ToolError as error:  # what the rules refuse is for the model to know, and not for the log
            return refusal(str(error))
        await self._notebook.keep_plan(context, plan)
        return _success(text)


def _subtask(draft: SubTaskDraft, now: str) -> SubTask:
    return SubTask(draft["name"], draft["description"], draft["expected_outcome"], created_at=now)


def refusal(text: str) -> ToolResponse:
    """Return an error result that says what may be done instead."""
    return ToolResponse([TextBlock(text)], ToolResultState.ERROR)


def _no_plan() -> ToolResponse:
    return refusal(
        "The conversation has no plan. Allowed now: create_plan, view_historical_plans or recover_historical_plan."
    )


def _success(text: str) -> ToolResponse:
    return ToolResponse([TextBlock(text)])
