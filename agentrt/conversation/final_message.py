"""The message that answers an input: what the last round of a reply said."""

from pydantic_core import to_json

from agentrt.message import DataBlock, Msg, TextBlock, ToolCallBlock, copy_block, new_message_like
from agentrt.state import ReplyContext
from agentrt.types import FinishedReason

__all__ = ["final_message"]

_LAST_WORDS: dict[FinishedReason, str] = {
    "exceed_max_iters": "I used up the rounds that I have for one reply and could not finish.",
    "exceed_max_tool_calls": "I used up the tool calls that I have for one reply and could not finish.",
    "exceed_max_seconds": "I used up the time that I have for one reply and could not finish.",
    "exceed_max_output": "I wrote more than I may in one reply and was stopped.",
}


def final_message(context: ReplyContext, reason: FinishedReason) -> Msg:
    """Return the message that answers the input; the blocks are copies of those of the reply's own message."""
    message = context.message
    answer = [copy_block(block) for block in context.blocks[context.round_start :]]
    if reason in _LAST_WORDS:
        has_calls = any(isinstance(block, ToolCallBlock) for block in answer)
        if has_calls or not any(isinstance(block, (TextBlock, DataBlock)) for block in answer):
            answer = [TextBlock(_LAST_WORDS[reason])]  # what was said before a call is not an answer
    output = context.structured.output if context.structured is not None else None
    if output is not None:
        answer = [block for block in answer if isinstance(block, TextBlock)] or [TextBlock(to_json(output).decode())]
    final = new_message_like(message, answer)
    final.role = "assistant"
    final.usage, final.structured_output, final.finished_reason = message.usage, output, reason
    if context.response is not None:
        final.metadata = dict(context.response.metadata)
    return final
