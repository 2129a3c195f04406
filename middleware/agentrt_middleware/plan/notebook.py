"""Plan notebook: the model makes a plan, works on it step by step, and always has it in view."""

from collections.abc import Sequence
from typing import Any

from agentrt._runtime.keywords.attributes import suggest_attributes
from agentrt.agent import Agent
from agentrt.plan import DefaultPlanToHint, PlanStorageBase
from agentrt.tool import ToolGroup
from agentrt.tool.base import check_name
from agentrt_middleware.plan.conversation_plan import PlanOfConversation
from agentrt_middleware.plan.layer import PlanLayer, PlanOwner, PlanToHint
from agentrt_middleware.plan.notebook_tools import NotebookTools

_PLAN_METHODS = (
    "create_plan",
    "finish_plan",
    "finish_subtask",
    "get_current_hint",
    "recover_historical_plan",
    "revise_current_plan",
    "update_subtask_state",
    "view_historical_plans",
    "view_subtasks",
)


@suggest_attributes(
    **{name: f"write notebook.of(agent).{name}(...): a notebook serves many agents" for name in _PLAN_METHODS}
)
class PlanNotebook(PlanLayer):
    """Gives the agent eight tools to make a plan and to work on it, and shows it the plan with each request.

    The plan is kept in the conversation and saved with it. So are the last 20 plans that are over, unless there is a
    `storage`; in that, conversations find the plans of their `owner`, a str or a function of the agent, which is by
    default the conversation itself. A plan has at most `max_subtasks` steps, by default 100. With a `group`, the tools
    are in a group of that name, which the model switches on when it needs them. `plan_to_hint` is a function of the
    plan, or of `None` without one, that returns the text for the model.
    """

    description: str = (
        "Tools for a plan. Switch them on for a task of many steps, such as a program to be written: make a plan with "
        "them, and follow it step by step. A hint in <system-hint></system-hint> then says with each request where "
        "the plan is. If the user no longer wants the plan, make sure of it and call 'finish_plan'."
    )

    def __init__(
        self,
        max_subtasks: int | None = None,
        plan_to_hint: PlanToHint | None = None,
        storage: PlanStorageBase | None = None,
        group: str | None = None,
        *,
        owner: PlanOwner = None,
    ) -> None:
        hint = DefaultPlanToHint() if plan_to_hint is None else plan_to_hint
        super().__init__("max_subtasks", max_subtasks, hint, storage, owner)
        if group is not None:
            check_name("group", group)
        self.group = group

    def of(self, agent: Agent) -> PlanOfConversation:
        """Return the plan of the agent's conversation, with the tools as methods for a program."""
        return PlanOfConversation(self, agent)

    def list_tools(self) -> Sequence[Any]:
        """Return the eight tools, or the group that has them."""
        # Tools of this list only: another agent with the same notebook gets its own.
        tools = NotebookTools(self).tools()
        return tools if self.group is None else [ToolGroup(self.group, self.description, tools=tools)]
