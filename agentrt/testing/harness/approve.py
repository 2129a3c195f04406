"""The answer that a waiting reply asks for."""

from dataclasses import replace

from agentrt._runtime.conversation.open_calls import asked_calls
from agentrt.event import ConfirmResult, ExternalExecutionResultEvent, UserConfirmResultEvent
from agentrt.message import TextBlock, ToolCallBlock, ToolResultBlock, ToolResultState
from agentrt.state import AgentState, ReplyContext


def approve(state: AgentState) -> UserConfirmResultEvent | ExternalExecutionResultEvent:
    """Return the event that approves every call that waits for the user, or else answers the external ones."""
    context = state.reply_context
    assert context is not None, "no reply waits for an answer"
    # The runtime takes one kind of answer at a time, and asks again for the calls that still wait.
    calls_to_confirm = _asked_calls(context, "user")
    if calls_to_confirm:
        results = [ConfirmResult(True, replace(call)) for call in calls_to_confirm]
        return UserConfirmResultEvent(context.reply_id, results)
    return ExternalExecutionResultEvent(
        context.reply_id,
        [
            ToolResultBlock(call.id, call.name, [TextBlock("Done elsewhere.")], ToolResultState.SUCCESS)
            for call in _asked_calls(context, "external")
        ],
    )


def _asked_calls(context: ReplyContext, waits_for: str) -> list[ToolCallBlock]:
    return [question.call for question in asked_calls(context) if question.decision.waits_for == waits_for]
