"""The answer that a waiting reply asks for."""

from dataclasses import replace

from agentrt.event import ConfirmResult, ExternalExecutionResultEvent, UserConfirmResultEvent
from agentrt.message import TextBlock, ToolCallBlock, ToolResultBlock, ToolResultState
from agentrt.state import AgentState, ReplyContext

__all__ = ["approve"]


def approve(state: AgentState) -> UserConfirmResultEvent | ExternalExecutionResultEvent:
    """Return the event that says yes to every call which waits for a person, or else answers the external ones."""
    context = state.reply_context
    assert context is not None, "no reply waits for an answer"
    asking = _waiting(context, "user")
    if asking:
        return UserConfirmResultEvent(context.reply_id, [ConfirmResult(True, replace(call)) for call in asking])
    return ExternalExecutionResultEvent(context.reply_id, [_result(call) for call in _waiting(context, "external")])


def _waiting(context: ReplyContext, whom: str) -> list[ToolCallBlock]:
    waiting = {call_id for call_id, decision in context.decisions.items() if decision.waits_for == whom}
    return [block for block in context.blocks if isinstance(block, ToolCallBlock) and block.id in waiting]


def _result(call: ToolCallBlock) -> ToolResultBlock:
    return ToolResultBlock(call.id, call.name, [TextBlock("Done elsewhere.")], ToolResultState.SUCCESS)
