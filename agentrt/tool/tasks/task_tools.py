"""Tools for a model that has background calls: they list them, read one, and stop one."""

from typing import Any

from agentrt.errors import ToolError
from agentrt.tool.context import ToolContext
from agentrt.tool.function import FunctionTool
from agentrt.types import ToolFlow


async def list_calls(context: ToolContext) -> str:
    """List the background calls of this conversation, with their ids and how they stand."""
    text: str = await _host_of(context).describe()
    return text


async def read_call(task_id: str, context: ToolContext) -> str:
    """Read how a background call stands, and its result if it is over.

    Args:
        task_id: The id that the call returned, or that list_tasks gives.
    """
    text: str = await _host_of(context).read(task_id)
    return text


async def stop_call(task_id: str, context: ToolContext) -> str:
    """Stop a background call. A message says when it has stopped.

    Args:
        task_id: The id that the call returned, or that list_tasks gives.
    """
    was_there = await _host_of(context).stop(task_id)
    return f"{task_id} is told to stop." if was_there else f"{task_id} is over already."


def task_tools() -> list[FunctionTool]:
    """Return `list_tasks`, `read_task` and `stop_task`, for the background calls of the model's own conversation.

    In a sub-agent they are for those of the conversation that it works for.
    """
    flow = ToolFlow(trusted_output=True)  # the runtime's own words, and no result of a call
    return [
        FunctionTool(list_calls, name="list_tasks", is_read_only=True, flow=flow),
        FunctionTool(read_call, name="read_task", is_read_only=True),
        FunctionTool(stop_call, name="stop_task", idempotent=True, flow=flow),
    ]


def _host_of(context: ToolContext) -> Any:
    run = context.run
    conversation = None if run is None else getattr(run.root.agent, "live_conversation", None)
    host = getattr(conversation, "task_host", None)
    if host is None:
        raise ToolError("there are no background calls here: no runner runs this conversation, so they are awaited")
    return host
