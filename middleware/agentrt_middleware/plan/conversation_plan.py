"""The plan of one conversation, for programs that make it and work on it."""

from collections.abc import Awaitable, Sequence
from typing import Literal

from agentrt.agent import Agent
from agentrt.errors import ToolError
from agentrt.message import Msg, ToolCallBlock
from agentrt.plan import Plan, SubTask
from agentrt.tool import ToolContext, ToolResponse
from agentrt_middleware.plan.layer import PlanLayer
from agentrt_middleware.plan.notebook_tools import NotebookTools, SubTaskDraft, refusal


class PlanOfConversation:
    """The tools of a `PlanNotebook` as methods for a program, over the plan of one conversation.

    A method does what the tool does for the model, by the same rules, and returns its result: with the state "error"
    where the rules refuse. The plan is saved with the conversation, by its next save.
    """

    def __init__(self, notebook: PlanLayer, agent: Agent) -> None:
        self._notebook = notebook
        self._agent = agent
        self._tools = NotebookTools(notebook)

    @property
    def current_plan(self) -> Plan | None:
        """A copy of the plan or `None`."""
        return self._notebook.plan_of(self._agent)

    async def get_current_hint(self) -> Msg | None:
        """Return the hint about the plan that the next request has, `None` if it has none."""
        return self._notebook.hint_about(self._agent, self.current_plan)

    async def create_plan(
        self, name: str, description: str, expected_outcome: str, subtasks: Sequence[SubTask | SubTaskDraft]
    ) -> ToolResponse:
        """Make a plan, in place of the current one."""
        drafts = [_draft(subtask) for subtask in subtasks]
        return await _result_or_refusal(
            self._tools.create_plan(self._context(), name, description, expected_outcome, drafts)
        )

    async def revise_current_plan(
        self,
        subtask_idx: int,
        action: Literal["add", "revise", "delete"],
        subtask: SubTask | SubTaskDraft | None = None,
    ) -> ToolResponse:
        """Add a subtask, change what one is about, or delete one."""
        draft = None if subtask is None else _draft(subtask)
        return await _result_or_refusal(self._tools.revise_current_plan(self._context(), subtask_idx, action, draft))

    async def update_subtask_state(
        self, subtask_idx: int, state: Literal["todo", "in_progress", "abandoned"]
    ) -> ToolResponse:
        """Set the state of a subtask; `finish_subtask` sets "done"."""
        return await _result_or_refusal(self._tools.update_subtask_state(self._context(), subtask_idx, state))

    async def finish_subtask(self, subtask_idx: int, subtask_outcome: str) -> ToolResponse:
        """Mark a subtask as done, with its outcome."""
        return await _result_or_refusal(self._tools.finish_subtask(self._context(), subtask_idx, subtask_outcome))

    async def view_subtasks(self, subtask_idx: list[int]) -> ToolResponse:
        """Return these subtasks in words."""
        return await _result_or_refusal(self._tools.view_subtasks(self._context(), subtask_idx))

    async def finish_plan(self, state: Literal["done", "abandoned"], outcome: str) -> ToolResponse:
        """End the plan, which joins the former ones."""
        return await _result_or_refusal(self._tools.finish_plan(self._context(), state, outcome))

    async def view_historical_plans(self) -> ToolResponse:
        """Return the former plans in words."""
        return await _result_or_refusal(self._tools.view_historical_plans(self._context()))

    async def recover_historical_plan(self, plan_id: str) -> ToolResponse:
        """Make a former plan the current one again."""
        return await _result_or_refusal(self._tools.recover_historical_plan(self._context(), plan_id))

    def _context(self) -> ToolContext:
        # Without a reply: no reader gets the events, but hooks are called.
        return ToolContext(ToolCallBlock("program", "plan"), self._agent)


async def _result_or_refusal(call: Awaitable[ToolResponse]) -> ToolResponse:
    try:
        return await call
    except ToolError as error:  # what the rules refuse
        return refusal(str(error))


def _draft(subtask: SubTask | SubTaskDraft) -> SubTaskDraft:
    if not isinstance(subtask, SubTask):
        return subtask
    return {
        "name": subtask.name,
        "description": subtask.description,
        "expected_outcome": subtask.expected_outcome,
    }
