"""What a sub-agent learns of its supervisor's conversation beside its task."""

from typing import Any

from pydantic_core import to_json

from agentrt.agent.subagent.context import compress_conversation, describe_context, recent_results
from agentrt.agent.subagent.spec import CONTEXT_KEY, ContextBundle
from agentrt.block import JSONObject
from agentrt.message import Msg
from agentrt.tool import ToolContext

__all__ = ["summarize_conversation"]


def summarize_conversation(context: ToolContext, arguments: JSONObject) -> Msg | None:
    """Return a message with the task and the newest events of the supervisor's conversation.

    Its metadata have a `DelegationContext`.
    """
    supervisor: Any = context.agent
    if supervisor is None:  # the tool was called outside of any agent
        return None
    state = supervisor.state
    files = context.workspace
    bundle = ContextBundle(
        state.context,
        recent_results(supervisor.name, state.reply_context),
        workspace=None if files is None else files.namespace(f"subagents/{context.tool_call.name}"),
    )
    task = arguments["query"] if arguments.keys() == {"query"} else to_json(arguments).decode()
    summary = compress_conversation(bundle, str(task))
    return Msg(supervisor.name, describe_context(dict(summary)), "user", metadata={CONTEXT_KEY: dict(summary)})
